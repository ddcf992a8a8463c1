//! A model with its weights, on its device.

use fathom_grad::Params;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, Device, Tensor};

use crate::model::Model;

/// A model with its weights, on its device.
pub struct LoadedModel {
    /// Machine and memory accounting.
    pub device: Device,
    /// The architecture, and the weights present on this rank.
    pub model: Model,
    /// The weights.
    pub params: Params,
}

/// A model with its weights, borrowed.
#[derive(Clone, Copy)]
pub struct ModelView<'a> {
    /// Machine and memory accounting.
    pub device: &'a Device,
    /// The architecture, and the weights present on this rank.
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
    /// Runs a forward pass over all pipeline stages, with `rows` rows on this rank. `forward` takes the index of one
    /// of the rank's chunks of layers and the previous stage's output, `None` for the first
    /// ([`Model::forward_chunk`]). Returns the output of this rank's last chunk: on the last stage, the hidden states
    /// before the head. Collective over the pipeline.
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
