//! A model with an adapter over weights that the model without it, and others with adapters of their own, have too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fathom_grad::{LinearCut, Param, ParamId, Params, RowTerm, Terms, Value, length_factors};
use fathom_tensor::{Category, Device, Meta};

use super::PeftTensors;
use super::declare::parts;
use crate::error::{Error, Result};
use crate::files::{Slot, Source, load_slots};
use crate::given::Given;
use crate::loaded::ModelView;
use crate::model::Model;
use crate::pieces::Piece;
use crate::spec::{Adapter, AdapterMethod, Quantized, Spec};
use crate::weight::{AdapterParams, Kind, LinearParams, Module, NOWHERE, Parallel, Term};

/// The model of `spec`, a base's with an adapter, over the base's weights, packed or not: nothing of these is copied but biases that the
/// adapter has in place of the base's, and what the adapter adds is read from its folder. A rank that has a part of the base has the same
/// part of the adapter.
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

/// Whether an adapter has weights of its base that are not those of others, besides biases: the base's singular parts, or tensors in the
/// place of its own.
pub fn changes_base(spec: &Spec, tensors: &PeftTensors) -> bool {
    let method = spec.adapter.as_deref().map(|adapter| adapter.method);
    let alone = || {
        let biases = spec.own_biases();
        tensors.in_place_of_base(spec).iter().all(|name| biases.contains(*name))
    };
    matches!(method, Some(AdapterMethod::Lora { singular: true, .. })) || !alone()
}

/// Biases that an adapter has in place of its base's (PEFT's `bias`).
fn biases(spec: &Spec, tensors: &PeftTensors) -> BTreeSet<String> {
    tensors.in_place_of_base(spec).into_iter().map(str::to_string).collect()
}

/// Whether some of a weight is one of these tensors.
fn any_of(pieces: &[Piece], names: &BTreeSet<String>) -> bool {
    pieces.iter().any(|piece| names.contains(&piece.name))
}

/// Bytes of what an adapter adds to a base, of the part that the rank has, with what is kept of its lengths ([`Model::terms`]) and with
/// biases of its own.
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

/// The model of `spec` over the base of another, which has an adapter of its own: nothing of the base is copied, wherever it is: in memory,
/// on disk, or a part of it on each of several ranks. The adapter's weights are uninitialised and where the other's are, as is a head of
/// scores, which each has for itself ([`load_scores`]), and nothing but the base is frozen yet. The rank has of both models the same
/// layers, and the same part of each weight.
///
/// # Panics
/// If the models have other bases.
#[track_caller]
pub fn share_untrained(
    ModelView { device, model: other, params }: ModelView<'_>,
    spec: &Spec,
) -> (Model, Params) {
    let own = Own { scores: true, biases: BTreeSet::new() };
    over_base(ModelView { device, model: other, params }, (spec, other.quantized.as_ref()), own)
}

/// Fills the head of scores alone from a source, if the rank has it.
///
/// # Errors
/// As [`load_slots`].
pub fn load_scores(device: &Device, model: &Model, params: &Params, source: &dyn Source) -> Result<()> {
    load_slots(device, model, &model.slots(params, |weight| weight.is_scores()), source)
}

/// What a model over the values of a base has of its own.
struct Own {
    /// A head of scores.
    scores: bool,
    /// Tensors of biases, which begin as the base's.
    biases: BTreeSet<String>,
}

/// The model of `spec` over the values of a base, which another model may have an adapter of its own over.
#[track_caller]
fn over_base(
    ModelView { device, model: base, params }: ModelView<'_>,
    (spec, quantized): (&Spec, Option<&Quantized>),
    own: Own,
) -> (Model, Params) {
    let mut given = Given { own_scores: own.scores, ..Given::default() };
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

/// A vector that is in memory, once more.
fn copied(device: &Device, params: &Params, id: ParamId) -> Value {
    let from = params.tensor(id);
    let to = device.empty(from.rows(), from.cols(), from.dtype(), Category::Params);
    device.machine.copy(&from, &to);
    to.into()
}

impl Model {
    /// What its adapter does at products of the base, by the base's weights, if that is all that the adapter does: low-rank terms of
    /// projections, with lengths or not, factors, and biases of projections in place of the base's, of a model whose projections are read
    /// by products alone. The ranks that have parts of a projection all have to ask.
    pub fn terms(&self, device: &Device, params: &Params) -> Option<Terms> {
        if !self.joins_products() {
            return None;
        }
        // The number that each weight has in the base.
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

    /// The parts of biases that are of its adapter, not of the base.
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

    /// All that its adapter does happens at products: the same on all ranks.
    fn joins_products(&self) -> bool {
        let (mut all, mut used) = (0, 0);
        self.spec.walk(&mut |_, weight| {
            all += u32::from(weight.kind == Kind::Adapter);
            NOWHERE
        });
        // Those of norms, routers and experts are not added by products.
        let mut biases = BTreeSet::new();
        self.see_projections(&mut |layer, p, projection| {
            if p.bias && p.kind == Kind::Linear {
                let at = self.spec.family.names.prefix(layer, p.module);
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
        let plain = self.spec.latent.is_none() && self.spec.encoder.is_none();
        all == used && plain && self.own_biases.is_subset(&biases)
    }
}

/// The weights of a whole model, in which those that are the lengths of an adapter ([`Adapter::fixed`](super::Adapter)) are what columns
/// are multiplied with: made once, of weights that are packed or not and stay as they are.
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
    /// Tensors that an adapter may have in place of its base's where others share the base: vectors that are added, but at the head.
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

    /// The same, whose adapter's lengths, if it has some, are to be made into factors once its weights are there ([`fix_lengths`]).
    pub fn fixing_lengths(mut self) -> Spec {
        if let Some(adapter) = self.adapter.as_deref().filter(|adapter| adapter.has_lengths()) {
            self.adapter = Some(Adapter { fixed: true, ..adapter.clone() }.into());
        }
        self
    }

    /// Elements of the adapter's weights.
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
