//! Models with adapters that share the weights of one base.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fathom_grad::{LinearCut, Param, ParamId, Params, RowTerm, Terms, Value, length_factors};
use fathom_tensor::{Category, Device, Meta};

use super::PeftTensors;
use super::declare::parts;
use crate::error::{Error, Result};
use crate::files::{Slot, Source, load_slots};
use crate::given::ExistingWeights;
use crate::loaded::ModelView;
use crate::model::Model;
use crate::pieces::Piece;
use crate::spec::{Adapter, AdapterMethod, Quantization, Spec};
use crate::weight::{AdapterParams, Kind, LinearParams, Module, NOWHERE, Parallel, Term};

/// Returns the model of `spec`, the base's with an adapter, over the base's weights, packed or not. Only biases that
/// the adapter replaces are copied; the adapter's weights are read from its folder. A rank with a part of the base
/// has the same part of the adapter.
///
/// # Errors
/// Files that cannot be read; an adapter that changes weights of its base.
///
/// # Panics
/// If `params` are not the base's.
#[track_caller]
pub fn share_base(
    ModelView { device, model: base, params }: ModelView<'_>,
    (spec, tensors): (&Spec, &PeftTensors),
) -> Result<(Model, Params)> {
    let refuse = |what: &str| Err(Error::file(&tensors.path, what));
    if changes_base(spec, tensors) {
        let biases = spec.own_biases();
        let mut own = tensors.in_place_of_base(spec);
        own.retain(|name| !biases.contains(*name));
        let what = match own.as_slice() {
            [] => {
                "begins from the base's singular parts (PiSSA), which changes weights of its base".to_string()
            }
            [first, rest @ ..] => {
                let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
                format!("has weights of its base: `{first}`{more} in place of the base's own")
            }
        };
        return refuse(&format!(
            "{what}, which others share; merge it (fathom export --with) and serve that model"
        ));
    }
    if spec.virtual_tokens() > 0 {
        return refuse(
            "puts virtual tokens before every text, which others next to it do not have; talk with it by `fathom chat --adapter`",
        );
    }
    let own = Own { biases: biases(spec, tensors), scores: false };
    let (model, mut whole) = over_base(ModelView { device, model: base, params }, (spec, None), own);
    model.visit(&mut |id, _, _| whole.freeze(id));
    let mut slots = model.slots(&whole, |weight| weight.is_added());
    slots.extend(model.bias_slots(&whole));
    load_slots(device, &model, &slots, tensors)?;
    Ok((model, whole))
}

/// Returns whether an adapter changes base weights other than biases: with PiSSA, or with tensors that replace the
/// base's. Such an adapter cannot share its base.
pub fn changes_base(spec: &Spec, tensors: &PeftTensors) -> bool {
    let method = spec.adapter.as_deref().map(|adapter| adapter.method);
    let alone = || {
        let biases = spec.own_biases();
        tensors.in_place_of_base(spec).iter().all(|name| biases.contains(*name))
    };
    matches!(method, Some(AdapterMethod::Lora { singular: true, .. })) || !alone()
}

/// Biases of the base that an adapter replaces (PEFT's `bias`).
fn biases(spec: &Spec, tensors: &PeftTensors) -> BTreeSet<String> {
    tensors.in_place_of_base(spec).into_iter().map(str::to_string).collect()
}

/// Returns whether any piece of a weight is one of these tensors.
fn any_of(pieces: &[Piece], names: &BTreeSet<String>) -> bool {
    pieces.iter().any(|piece| names.contains(&piece.name))
}

/// Bytes that an adapter adds to a base, for the rank's part, including the factors kept for its magnitudes
/// ([`Model::terms`]) and its own biases.
pub fn shared_bytes(base: ModelView<'_>, (spec, tensors): (&Spec, &PeftTensors)) -> u64 {
    let own = biases(spec, tensors);
    let nowhere = Device::new(Arc::new(Meta::new(base.device.machine.profile().clone())), u64::MAX);
    let (dtype, portion) = (base.model.dtype(base.params), base.model.portion.clone());
    let (model, declared) = Model::declare_part(&nowhere, spec, dtype, None, portion);
    let (pieces, mut bytes) = (model.pieces(), 0);
    model.visit(&mut |id, _, weight| {
        if weight.kind == Kind::Adapter || any_of(&pieces[id.index()], &own) {
            let value = &declared.get(id).value;
            let lengths = if weight.term == Term::Lengths { 4 } else { 0 };
            bytes += (value.len() * (value.dtype().bytes() + lengths)) as u64;
        }
    });
    bytes
}

/// Returns the model of `spec` over the base of another model with an adapter. Nothing of the base is copied, be it
/// in memory, on disk or split among ranks. The adapter's weights and the score head, which each model has for itself
/// ([`load_scores`]), are uninitialised and placed as the other's; only the base is frozen. The rank has the same
/// layers and the same part of each weight of both models.
///
/// # Panics
/// If the models' bases differ.
#[track_caller]
pub fn share_untrained(
    ModelView { device, model: other, params }: ModelView<'_>,
    spec: &Spec,
) -> (Model, Params) {
    let own = Own { scores: true, biases: BTreeSet::new() };
    over_base(ModelView { device, model: other, params }, (spec, other.quantized.as_ref()), own)
}

/// Loads only the score head from a source, if the rank has it.
///
/// # Errors
/// Those of [`load_slots`].
pub fn load_scores(device: &Device, model: &Model, params: &Params, source: &dyn Source) -> Result<()> {
    load_slots(device, model, &model.slots(params, |weight| weight.is_scores()), source)
}

/// Weights that a model does not share with its base.
struct Own {
    /// Whether the score head is its own.
    scores: bool,
    /// Bias tensors of its own, initialized from the base's.
    biases: BTreeSet<String>,
}

/// Returns the model of `spec` over a base's values; the base may be that of another model with an adapter.
#[track_caller]
fn over_base(
    ModelView { device, model: base, params }: ModelView<'_>,
    (spec, quantized): (&Spec, Option<&Quantization>),
    own: Own,
) -> (Model, Params) {
    let mut given = ExistingWeights { own_scores: own.scores, ..ExistingWeights::default() };
    let (pieces, mut values) = (base.pieces(), Vec::new());
    base.visit(&mut |id, _, weight| {
        if given.shares(weight) {
            let is_own = any_of(&pieces[id.index()], &own.biases);
            let shared = || params.get(id).value.clone();
            values.push(if is_own { copied(device, params, id) } else { shared() });
        }
    });
    given.base = Some(values.into_iter());
    let (dtype, disk) = (base.dtype(params), params.disk().cloned());
    let held = (base.portion.clone(), quantized);
    let (model, params) = Model::declare_held(device, spec, dtype, disk, held, given);
    (Model { own_biases: own.biases, ..model }, params)
}

/// Copies a vector that is in memory.
fn copied(device: &Device, params: &Params, id: ParamId) -> Value {
    let from = params.tensor(id);
    let to = device.empty(from.rows(), from.cols(), from.dtype(), Category::Params);
    device.machine.copy(&from, &to);
    to.into()
}

impl Model {
    /// The adapter's effect on the base's products, by base weight, or `None` if it has other effects. Covered are
    /// low-rank terms of projections with or without magnitudes, factors, and replaced biases of projections, in
    /// models that read projections only in products. A collective: all ranks that share a projection must call it.
    pub fn terms(&self, device: &Device, params: &Params) -> Option<Terms> {
        if !self.joins_products() {
            return None;
        }
        // Each weight's number in the base.
        let (mut numbers, mut adapters) = (Vec::new(), 0);
        self.visit(&mut |id, _, weight| {
            numbers.push(ParamId(id.0 - adapters));
            adapters += u32::from(weight.kind == Kind::Adapter);
        });
        let (mut terms, ranks, pieces) = (Terms::new(), self.portion.sharers(), self.pieces());
        let is_own = |bias: &ParamId| any_of(&pieces[bias.index()], &self.own_biases);
        self.see_projections(&mut |_, p, LinearParams { weight, bias, adapter }| {
            // Other stages of a pipeline have other layers.
            if weight == NOWHERE {
                return;
            }
            let cut = match p.parallel {
                Parallel::Whole(_) => LinearCut::Whole,
                Parallel::Columns => LinearCut::Columns,
                Parallel::Rows => LinearCut::Rows,
            };
            let term = match adapter {
                Some(AdapterParams::Lora(lora, None)) => RowTerm::low(lora, (cut, ranks), params),
                Some(AdapterParams::Lora(lora, Some(lengths))) => {
                    RowTerm::rescaled(device, (lora, lengths), weight, (cut, ranks), params)
                }
                Some(AdapterParams::Factors { factors, runs, input }) => {
                    RowTerm::factors((factors, runs, input), (cut, ranks), params)
                }
                Some(AdapterParams::Experts(_)) | None => RowTerm::default(),
            };
            let term = match bias.filter(is_own) {
                Some(bias) => term.with_bias(bias, params),
                None => term,
            };
            if !term.is_nothing() {
                terms.insert(numbers[weight.index()], term);
            }
        });
        Some(terms)
    }

    /// Slots of the biases that the adapter replaces.
    fn bias_slots(&self, params: &Params) -> Vec<Slot> {
        let mut slots = Vec::new();
        for (index, pieces) in self.pieces().into_iter().enumerate() {
            for piece in pieces.iter().filter(|piece| self.own_biases.contains(&piece.name)) {
                let (id, range) =
                    (ParamId(index as u32), piece.param_row..piece.param_row + piece.rows.len());
                let value = params.tensor(id).view_cols(range.clone()).into();
                slots.push(Slot { id, value, range, coded: None });
            }
        }
        slots
    }

    /// Returns whether the adapter takes effect at products only; equal on all ranks.
    fn joins_products(&self) -> bool {
        let (mut all, mut used) = (0, 0);
        self.spec.walk(&mut |_, weight| {
            all += u32::from(weight.kind == Kind::Adapter);
            NOWHERE
        });
        // Biases of norms, routers and experts are not added by products.
        let mut biases = BTreeSet::new();
        self.see_projections(&mut |layer, p, projection| {
            if p.bias && p.kind == Kind::Linear {
                let at = self.spec.prefix(layer, p.module);
                biases.extend(parts(p).into_iter().map(|part| format!("{at}{}.bias", part.name)));
            }
            used += match projection.adapter {
                Some(AdapterParams::Lora(lora, lengths)) => {
                    2 + u32::from(lora.bias.is_some()) + u32::from(lengths.is_some())
                }
                Some(AdapterParams::Factors { .. }) => 1,
                Some(AdapterParams::Experts(_)) | None => 0,
            };
        });
        let plain = self.spec.latent.is_none() && self.spec.encoder.is_none() && self.spec.source == 0;
        all == used && plain && self.own_biases.is_subset(&biases)
    }
}

/// Replaces an adapter's magnitudes ([`Adapter::fixed`](super::Adapter)) with the factors by which columns are
/// multiplied. Computed once for a whole model; the weights, packed or not, must stay unchanged afterwards.
pub fn fix_lengths(device: &Device, model: &Model, params: Params) -> Params {
    if !model.spec.adapter.as_ref().is_some_and(|adapter| adapter.fixed) {
        return params;
    }
    let mut factors = BTreeMap::new();
    model.see_projections(&mut |_, _, LinearParams { weight, adapter, .. }| {
        if let Some(AdapterParams::Lora(lora, Some(lengths))) = adapter {
            let cut = (LinearCut::Whole, 1);
            factors.insert(lengths, length_factors(device, (lora, lengths), weight, cut, &params));
        }
    });
    let mut whole = Params::default();
    for (id, Param { name, value, decays, .. }) in params.iter() {
        let value = factors.remove(&id).map_or_else(|| value.clone(), Into::into);
        whole.push(Param { name: name.clone(), value, decays: *decays, trainable: false });
    }
    whole
}

impl Spec {
    /// Tensors that an adapter may replace while sharing its base: added vectors, except the head's.
    fn own_biases(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.walk(&mut |layer, weight| {
            if weight.kind == Kind::Bias && weight.module != Module::Head {
                let vectors = self.pieces(layer, weight).into_iter().filter(|piece| piece.shape.len() == 1);
                names.extend(vectors.map(|piece| piece.name));
            }
            NOWHERE
        });
        names
    }

    /// The same specification, with the adapter's magnitudes to be replaced by factors after loading
    /// ([`fix_lengths`]).
    pub fn fixing_lengths(mut self) -> Spec {
        if let Some(adapter) = self.adapter.as_deref().filter(|adapter| adapter.has_lengths()) {
            self.adapter = Some(Adapter { fixed: true, ..adapter.clone() }.into());
        }
        self
    }

    /// Number of elements of the adapter's weights.
    pub fn adapter_elements(&self) -> u64 {
        let mut elements = 0;
        self.walk(&mut |_, weight| {
            if weight.kind == Kind::Adapter {
                elements += weight.shape.iter().product::<usize>() as u64;
            }
            fathom_grad::ParamId(0)
        });
        elements
    }
}
