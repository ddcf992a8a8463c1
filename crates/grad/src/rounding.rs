//! Quantization-aware training: steps compute with the f32 masters of some weights rounded to a four-bit format.
//! Gradients with respect to the rounded values are applied to the masters (the straight-through estimator, Bengio et
//! al., 2013), so the rest of a step is unaffected: weights are rewritten after an update, and after masters were
//! loaded.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, FourBits, Tensor};

use crate::param_id::ParamId;

/// The weights that are rounded.
#[derive(Debug)]
pub struct Rounding {
    format: FourBits,
    /// By weight, its index among them.
    numbers: Vec<Option<usize>>,
    /// f32 [1, weights]: their largest magnitudes, over all ranks, for formats with a factor for the whole weight.
    largest: Option<Tensor>,
}

impl Rounding {
    /// Rounding of these weights, of `count` in all.
    pub fn new(device: &Device, format: FourBits, ids: &[ParamId], count: usize) -> Rounding {
        let mut numbers = vec![None; count];
        ids.iter().enumerate().for_each(|(number, id)| numbers[id.index()] = Some(number));
        device.pool.enter("round weights", -1);
        let cells = format.has_factor() && !ids.is_empty();
        let largest = cells.then(|| device.zeros(1, ids.len(), DType::F32, Category::Optimizer));
        Rounding { format, numbers, largest }
    }

    /// The format.
    pub fn format(&self) -> FourBits {
        self.format
    }

    /// True if a weight is rounded.
    pub fn has(&self, id: ParamId) -> bool {
        self.number(id).is_some()
    }

    fn number(&self, id: ParamId) -> Option<usize> {
        *self.numbers.get(id.index())?
    }

    /// f32 [1, 1]: the largest magnitude of a weight, if the format needs it.
    pub(crate) fn largest(&self, id: ParamId) -> Option<Tensor> {
        let number = self.number(id)?;
        Some(self.largest.as_ref()?.view_cols(number..number + 1))
    }

    /// Resets the magnitudes; false if none are needed.
    pub(crate) fn begin(&self, device: &Device) -> bool {
        self.largest.iter().for_each(|largest| device.machine.zero(largest));
        self.largest.is_some()
    }

    /// Reduces the largest magnitudes of parts to those of whole weights, over all ranks with the same layers.
    /// Collective.
    pub(crate) fn join(&self, device: &Device) {
        let ranks = device.mesh.group(&[Axis::Tp, Axis::Cp, Axis::Dp]);
        let Some(largest) = self.largest.as_ref().filter(|_| ranks.size() > 1) else { return };
        let all = device.empty(ranks.size(), largest.cols(), DType::F32, Category::Comm);
        let parts: Vec<Tensor> = (0..ranks.size()).map(|rank| all.view_rows(rank..rank + 1)).collect();
        ranks.all_gather(device, largest, &parts).wait();
        device.machine.largest(&all, largest);
    }
}
