//! A model with its weights, on its device.

use fathom_grad::Params;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, Device, Tensor};

use crate::model::Model;

/// A model with its weights, on its device.
pub struct LoadedModel {
    /// Compute and memory.
    pub device: Device,
    /// The architecture, and which weights are here.
    pub model: Model,
    /// The weights.
    pub params: Params,
}

/// A model with its weights, borrowed.
#[derive(Clone, Copy)]
pub struct ModelView<'a> {
    /// Compute and memory.
    pub device: &'a Device,
    /// The architecture, and which weights are here.
    pub model: &'a Model,
    /// The weights.
    pub params: &'a Params,
}

impl LoadedModel {
    /// The model, borrowed.
    pub fn view(&self) -> ModelView<'_> {
        let LoadedModel { device, model, params } = self;
        ModelView { device, model, params }
    }
}

impl ModelView<'_> {
    /// A forward pass over all stages of the pipeline, of `rows` rows on this rank: `forward` takes the number of one of the rank's
    /// runs of layers and what the stage before gives, of the first none ([`Model::forward_chunk`]). Returns what this rank's last run
    /// gives: on the last stage the hidden states before the head. All ranks of the pipeline call this together.
    ///
    /// # Panics
    /// If the rank has no layers.
    #[track_caller]
    pub fn forward_stages(
        self,
        rows: usize,
        forward: &mut dyn FnMut(usize, Option<Tensor>) -> Tensor,
    ) -> Tensor {
        let ModelView { device, model, params } = self;
        let (pp, chunks) = (device.mesh.group(&[Axis::Pp]), model.portion.chunks.len());
        let neighbour = |next: usize| (pp.index() + next) % pp.size();
        let mut hidden = None;
        for chunk in 0..chunks {
            let x = (!model.portion.first || chunk > 0).then(|| {
                device.pool.enter("pipeline", -1);
                let x = device.empty(rows, model.spec.hidden, model.dtype(params), Category::Activations);
                pp.exchange(device, "forward", &[], &[(neighbour(pp.size() - 1), &x)]).wait();
                x
            });
            let y = forward(chunk, x);
            if !(model.portion.last && chunk + 1 == chunks) {
                device.pool.enter("pipeline", -1);
                pp.exchange(device, "forward", &[(neighbour(1), &y)], &[]).wait();
            }
            hidden = Some(y);
        }
        hidden.unwrap_or_else(|| panic!("forward: this rank has no layers"))
    }
}
