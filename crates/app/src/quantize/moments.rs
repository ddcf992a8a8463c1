//! What a model's projections are given for some text.

use std::collections::BTreeMap;

use fathom_model::{BlockTensor, InputSizes, Moments};
use fathom_tensor::Device;

use crate::calibration::each_kept;
use crate::events::Events;
use crate::models::Loaded;

/// Bytes of second moments that are held at once, if a layer's are not more.
const BUDGET: usize = 2 << 30;

/// A model with the text that it is judged by.
pub(super) struct Judged<'a> {
    pub device: &'a Device,
    pub loaded: &'a Loaded,
    pub texts: &'a [Vec<u32>],
    pub events: &'a dyn Events,
}

/// The projection that reads a value of the forward pass.
fn role(value: &str) -> Option<&'static str> {
    Some(match value {
        "attn.norm" => "qkv",
        "attn.out" => "attn_out",
        "mlp.norm" => "up",
        "mlp.act" => "down",
        _ => return None,
    })
}

/// A projection's layer and role.
pub(super) type At = (usize, &'static str);

impl<'a> Judged<'a> {
    /// Shows the inputs of all projections, row by row.
    fn each(&self, see: &mut dyn FnMut(At, &[f32], usize)) {
        let Loaded { model, params } = self.loaded;
        for text in self.texts {
            each_kept(self.device, (model, params), text, &mut |layer, name, tensor| {
                if let (Ok(layer), Some(role)) = (usize::try_from(layer), role(name)) {
                    see((layer, role), &self.device.to_f32(tensor), tensor.cols());
                }
            });
        }
    }

    /// Sizes of the inputs of all projections.
    pub fn sizes(&self) -> BTreeMap<At, InputSizes> {
        self.events.doing("reading the text for the sizes of what projections are given");
        let mut all = BTreeMap::<At, InputSizes>::new();
        self.each(&mut |at, rows, cols| all.entry(at).or_default().add(rows, cols));
        all
    }

    /// Their second moments, some layers at a time.
    pub fn moments<'b>(&'b self, tensors: &[BlockTensor]) -> AllMoments<'a, 'b> {
        let matrices = tensors.iter().filter(|tensor| tensor.shape.len() == 2);
        let of: BTreeMap<String, At> =
            matrices.clone().map(|tensor| (tensor.name.clone(), (tensor.layer, tensor.role))).collect();
        let widths: BTreeMap<&str, usize> = matrices.map(|tensor| (tensor.role, tensor.shape[1])).collect();
        let bytes: usize = widths.values().map(|width| size_of::<f32>() * width * width).sum();
        let layers = (BUDGET / bytes.max(1)).max(1);
        AllMoments { judged: self, of, layers, held: BTreeMap::new() }
    }
}

/// Second moments that are computed when they are asked for.
pub(super) struct AllMoments<'a, 'b> {
    judged: &'b Judged<'a>,
    of: BTreeMap<String, At>,
    /// Held at once.
    layers: usize,
    held: BTreeMap<At, Moments>,
}

impl AllMoments<'_, '_> {
    /// Of what a projection is given.
    pub fn of(&mut self, name: &str) -> Option<&Moments> {
        let at = *self.of.get(name)?;
        if !self.held.contains_key(&at) {
            let layers = at.0..at.0 + self.layers;
            let last = layers.end.min(self.judged.loaded.model.spec.layers.len()) - 1;
            let what = format!("reading the text for what layers {} to {last} are given", layers.start);
            self.judged.events.doing(&what);
            self.held.clear();
            let held = &mut self.held;
            self.judged.each(&mut |at, rows, cols| {
                if layers.contains(&at.0) {
                    held.entry(at).or_insert_with(|| Moments::new(cols)).add(rows);
                }
            });
        }
        self.held.get(&at)
    }
}
