//! A forward pass over one micro batch, over all stages of a pipeline: what a model says of labels, without gradients.

use fathom_grad::{Counters, Eval, Params, Scope, Tables, TileLoss};
use fathom_model::Model;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, Device, Tensor};

use crate::loaded::Loaded;
use crate::micro_batch::MicroBatch;
use crate::step::InStep;

/// Whom it asks, and how steps are run.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub device: &'a Device,
    pub model: &'a Model,
    pub params: &'a Params,
    pub counters: &'a Counters,
    pub how: &'a InStep,
}

impl Pass<'_> {
    /// A loss of each label of the stream, in the order of its tokens; 0 where there is no label. Empty on ranks that do not have the model's end, and without data. All ranks that share the micro batch call this together.
    pub fn losses(&self, micro: &MicroBatch, loss: &dyn TileLoss) -> Vec<f32> {
        let loaded = Loaded::new(self.device, (self.model, self.params), None, micro, self.how);
        let hidden = self.hidden(&loaded);
        hidden.map_or_else(Vec::new, |hidden| loaded.losses(self.model, &self.scope(&loaded), &hidden, loss))
    }

    /// What the second head says of each token, one number each; where as [`Pass::losses`].
    pub fn values(&self, micro: &MicroBatch) -> Vec<f32> {
        let loaded = Loaded::new(self.device, (self.model, self.params), None, micro, self.how);
        let hidden = self.hidden(&loaded);
        hidden.map_or_else(Vec::new, |hidden| loaded.values(self.model, &self.scope(&loaded), &hidden))
    }

    fn scope(&self, loaded: &Loaded<'_>) -> Scope<'_> {
        let Pass { device, params, counters, .. } = *self;
        Scope { device, params, batch: Tables::Shared(loaded.batch.clone()), counters }
    }

    /// The hidden states before the head of this rank's tokens, on the last stage.
    fn hidden(&self, loaded: &Loaded<'_>) -> Option<Tensor> {
        let Pass { device, model, .. } = *self;
        let (pp, chunks) = (device.mesh.group(&[Axis::Pp]), model.portion.chunks.len());
        let neighbour = |next: usize| (pp.index() + next) % pp.size();
        let rows = loaded.batch.tokens / self.scope(loaded).spread().share();
        for chunk in 0..chunks {
            let x = (!model.portion.first || chunk > 0).then(|| {
                device.pool.enter("pipeline", -1);
                let dtype = model.dtype(self.params);
                let x = device.empty(rows, model.spec.hidden, dtype, Category::Activations);
                pp.exchange(device, "forward", &[], &[(neighbour(pp.size() - 1), &x)]).wait();
                x
            });
            let mut run = Eval::new(self.scope(loaded), self.how.places.tile_rows, None);
            let y = model.forward_chunk(&mut run, chunk, x);
            if model.portion.last && chunk + 1 == chunks {
                return Some(y);
            }
            device.pool.enter("pipeline", -1);
            pp.exchange(device, "forward", &[(neighbour(1), &y)], &[]).wait();
        }
        None
    }
}
