//! A forward pass over one micro-batch and all stages of a pipeline, which evaluates labels without gradients.

use std::rc::Rc;

use fathom_grad::{Batch, Counters, Eval, Memory, Scope, Tables, TileLoss};
use fathom_model::ModelView;
use fathom_tensor::Tensor;

use crate::in_step::InStep;
use crate::loaded::DeviceMicroBatch;
use crate::micro_batch::MicroBatch;
use crate::terms::states;

/// The model to run, and how its steps are run.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub of: ModelView<'a>,
    pub counters: &'a Counters,
    pub how: &'a InStep,
}

impl Pass<'_> {
    /// A loss of each label of the stream, in token order; 0 without a label. Empty on ranks without the end of the
    /// model, and without data. All ranks that share the micro-batch call this together.
    pub fn losses(&self, micro: &MicroBatch, loss: &dyn TileLoss) -> Vec<f32> {
        let loaded = DeviceMicroBatch::new(self.of, None, micro, self.how);
        let hidden = self.hidden(&loaded);
        hidden
            .map_or_else(Vec::new, |hidden| loaded.losses(self.of.model, &self.scope(&loaded), &hidden, loss))
    }

    /// Output of the second head, one number per token; empty where [`Pass::losses`] is.
    pub fn values(&self, micro: &MicroBatch) -> Vec<f32> {
        let loaded = DeviceMicroBatch::new(self.of, None, micro, self.how);
        let hidden = self.hidden(&loaded);
        hidden.map_or_else(Vec::new, |hidden| loaded.values(self.of.model, &self.scope(&loaded), &hidden))
    }

    /// Hidden states of all tokens of the stream; empty where [`Pass::losses`] is.
    pub fn states(&self, micro: &MicroBatch) -> Vec<f32> {
        let loaded = DeviceMicroBatch::new(self.of, None, micro, self.how);
        let Some(hidden) = self.hidden(&loaded) else { return Vec::new() };
        loaded.scores(&self.scope(&loaded), &states(self.of.device, &hidden))
    }

    fn scope(&self, loaded: &DeviceMicroBatch<'_>) -> Scope<'_> {
        let (ModelView { device, params, .. }, counters) = (self.of, self.counters);
        Scope { device, params, batch: Tables::Shared(loaded.batch.clone()), counters }
    }

    /// Hidden states of this rank's tokens before the head, on the last stage.
    fn hidden(&self, loaded: &DeviceMicroBatch<'_>) -> Option<Tensor> {
        if let Some(source) = loaded.source.as_ref().filter(|_| self.of.model.spec.retrieval.is_some()) {
            let of = |batch: &Rc<Batch>| Scope { batch: Tables::Shared(batch.clone()), ..self.scope(loaded) };
            let run = |batch: &Rc<Batch>| Eval::new(of(batch), self.how.places.tile_rows, None);
            let main = &loaded.batch;
            let mut runs = [main, main, source, main].map(run);
            let remember = |value| Memory { value, gradient: None };
            return Some(self.of.model.forward_retrieval(runs.each_mut(), &remember).main);
        }
        let rows = loaded.batch.tokens / self.scope(loaded).spread().share();
        let y = self.of.forward_stages(rows, &mut |chunk, x| {
            let mut run = Eval::new(self.scope(loaded), self.how.places.tile_rows, None);
            self.of.model.forward_chunk(&mut run, chunk, x)
        });
        self.of.model.portion.last.then_some(y)
    }
}
