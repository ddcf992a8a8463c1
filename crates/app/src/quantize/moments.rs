//! Inputs of a model's projections for calibration text.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{BlockTensor, InputMoments, InputSizes, ModelView, Residual};
use fathom_tensor::{Device, Tensor};

use crate::calibration::each_kept;
use crate::events::Events;
use fathom_model::LoadedModel;

/// Bytes of second moments held at once, unless one layer needs more.
const BUDGET: usize = 2 << 30;
/// Name of the value with the experts chosen for each token's slots.
const INDEX: &str = "moe.index";

/// A model with its calibration text.
pub(super) struct CalibrationModel<'a> {
    pub loaded: &'a LoadedModel,
    pub texts: &'a [Vec<u32>],
    pub events: &'a dyn Events,
}

/// Returns the projections that read a value of the forward pass: those applied to all tokens, and those of the chosen
/// experts.
fn roles(value: &str) -> (&'static [&'static str], Option<&'static str>) {
    match value {
        "attn.norm" => (&["qkv"], None),
        "attn.out" => (&["attn_out"], None),
        "mlp.norm" => (&["up", "shared.up"], Some("experts.up")),
        "mlp.act" => (&["down"], None),
        "moe.act" => (&[], Some("experts.down")),
        "moe.shared.act" => (&["shared.down"], None),
        _ => (&[], None),
    }
}

/// Layer, role and expert of a projection.
pub(super) type At = (usize, &'static str, Option<usize>);
/// Receives some rows of a projection's inputs, with the number of columns.
type See<'a> = dyn FnMut(At, &[f32], usize) + 'a;

/// Inputs of a layer's experts: the rows of each value, and the experts of its tokens' slots.
#[derive(Default)]
struct Layer {
    values: Vec<(&'static str, Tensor)>,
    index: Option<Tensor>,
}

impl Layer {
    /// Passes on the rows of each expert: a token's row or its slot's.
    fn by_expert(&self, device: &Device, layer: usize, see: &mut See<'_>) {
        let Some(index) = &self.index else { return };
        let bytes = device.machine.read(index).wait();
        let chosen: Vec<i32> =
            bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
        for (role, value) in &self.values {
            let rows = device.to_f32(value);
            // `experts.up` reads one row per token, shared by its slots; `experts.down` reads one row per slot.
            let slots = if *role == "experts.up" { index.cols() } else { 1 };
            let cols = value.cols() * slots / index.cols();
            let mut each = BTreeMap::<usize, Vec<f32>>::new();
            for (slot, expert) in chosen.iter().enumerate() {
                // Slots can be empty.
                let Ok(expert) = usize::try_from(*expert) else { continue };
                each.entry(expert).or_default().extend_from_slice(&rows[slot / slots * cols..][..cols]);
            }
            for (expert, rows) in each {
                see((layer, role, Some(expert)), &rows, cols);
            }
        }
    }
}

impl<'a> CalibrationModel<'a> {
    /// Runs the text through the model and passes on the inputs of all projections.
    fn each(&self, see: &mut See<'_>) {
        let LoadedModel { device, model, params } = self.loaded;
        // Attention and MLP can share a norm.
        let shared = model.spec.has_residual(Residual::SharedNorm);
        for text in self.texts {
            let mut layers = BTreeMap::<usize, Layer>::new();
            each_kept(ModelView { device, model, params }, text, &mut |layer, name, tensor| {
                let Ok(layer) = usize::try_from(layer) else { return };
                let (of_all, mut of_experts) = roles(name);
                let mut also: &[&str] = &[];
                if shared && name == "attn.norm" {
                    (also, of_experts) = roles("mlp.norm");
                }
                if !of_all.is_empty() {
                    let rows = device.to_f32(tensor);
                    let all = of_all.iter().chain(also);
                    all.for_each(|role| see((layer, role, None), &rows, tensor.cols()));
                }
                if model.spec.experts_of(layer).is_none() {
                    return;
                }
                let seen = layers.entry(layer).or_default();
                seen.values.extend(of_experts.map(|role| (role, tensor.clone())));
                if name == INDEX {
                    seen.index = Some(tensor.clone());
                }
            });
            layers.iter().for_each(|(layer, seen)| seen.by_expert(device, *layer, see));
        }
    }

    /// Computes the sizes of the inputs of all projections.
    pub fn sizes(&self) -> BTreeMap<At, InputSizes> {
        self.events.doing("reading the text for the sizes of what projections are given");
        let mut all = BTreeMap::<At, InputSizes>::new();
        self.each(&mut |at, rows, cols| all.entry(at).or_default().add(rows, cols));
        all
    }

    /// Prepares the second moments of the inputs, computed for a few layers at a time.
    pub fn moments<'b>(&'b self, tensors: &[BlockTensor]) -> AllMoments<'a, 'b> {
        let matrices = tensors.iter().filter(|tensor| tensor.shape.len() == 2);
        let at = |tensor: &BlockTensor| (tensor.layer, tensor.role, tensor.expert);
        let of: BTreeMap<String, At> =
            matrices.clone().map(|tensor| (tensor.name.clone(), at(tensor))).collect();
        // The budget is divided by the largest layer; the others are not much smaller.
        let mut bytes = BTreeMap::<usize, BTreeMap<At, usize>>::new();
        for tensor in matrices {
            let size = size_of::<f32>() * tensor.shape[1] * tensor.shape[1];
            bytes.entry(tensor.layer).or_default().insert(at(tensor), size);
        }
        let most = bytes.values().map(|layer| layer.values().sum()).max().unwrap_or(1);
        let layers = (BUDGET / most.max(1)).max(1);
        let wanted = of.values().copied().collect();
        AllMoments { calibration: self, of, wanted, layers, held: BTreeMap::new(), first: None }
    }
}

/// Second moments of a projection's inputs, as far as known.
pub(super) enum KnownMoments<'a> {
    /// Enough inputs were seen.
    Enough(&'a InputMoments),
    /// Too few tokens were routed to the expert.
    TooLittle,
    /// None seen, which does not happen for a projection of all tokens.
    Nothing,
}

/// Second moments, computed on demand.
pub(super) struct AllMoments<'a, 'b> {
    calibration: &'b CalibrationModel<'a>,
    of: BTreeMap<String, At>,
    wanted: BTreeSet<At>,
    /// Number of layers held at once.
    layers: usize,
    held: BTreeMap<At, InputMoments>,
    /// First layer that is held.
    first: Option<usize>,
}

impl AllMoments<'_, '_> {
    /// Returns the moments of a projection's inputs.
    pub fn of(&mut self, name: &str) -> KnownMoments<'_> {
        let Some(at) = self.of.get(name).copied() else { return KnownMoments::Nothing };
        let is_held = |first: usize| (first..first + self.layers).contains(&at.0);
        if !self.first.is_some_and(is_held) {
            self.read(at.0);
        }
        match (self.held.get(&at), at.2) {
            (Some(moments), None) => KnownMoments::Enough(moments),
            (Some(moments), Some(_)) if moments.are_enough() => KnownMoments::Enough(moments),
            (_, Some(_)) => KnownMoments::TooLittle,
            (None, None) => KnownMoments::Nothing,
        }
    }

    /// Runs the text for the layers from `first` on.
    fn read(&mut self, first: usize) {
        let layers = first..first + self.layers;
        let last = layers.end.min(self.calibration.loaded.model.spec.layers.len()) - 1;
        let what = format!("reading the text for what layers {first} to {last} are given");
        self.calibration.events.doing(&what);
        self.held.clear();
        self.first = Some(first);
        let (held, wanted) = (&mut self.held, &self.wanted);
        self.calibration.each(&mut |at, rows, cols| {
            if layers.contains(&at.0) && wanted.contains(&at) {
                held.entry(at).or_insert_with(|| InputMoments::new(cols)).add(rows);
            }
        });
    }
}
