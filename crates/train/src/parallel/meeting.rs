//! Passes of a model whose source reads neighbours of its main stream, on one stage: the main stream up to the layer in which
//! both meet, its rows for the source, the source, and the rest of the main stream, each with a tape of its own.

use std::rc::Rc;

use fathom_grad::{Batch, Grads, Memory, Tape};
use fathom_model::Retrieved;
use fathom_tensor::Tensor;

use super::pipeline::Pipeline;
use crate::loaded::DeviceMicroBatch;

/// The backward pass of a tape: the gradient of its input.
type Back<'b, 'a> = &'b mut dyn FnMut(Tape<'a>, Tensor, &mut Grads) -> Option<Tensor>;

/// Forward passes before that of the main stream's last layers, whose backward passes are still to come.
pub(super) struct Meeting<'a> {
    below: Tape<'a>,
    rows: Tape<'a>,
    source: Tape<'a>,
    chunks: Memory,
    neighbours: Memory,
}

impl<'a> Pipeline<'a> {
    /// Runs a micro-batch forward; `above` is the tape of the main stream's last layers. Returns the hidden states before
    /// the head.
    pub(super) fn meet(
        &self,
        micro: &DeviceMicroBatch<'a>,
        above: &mut Tape<'a>,
        tape: &dyn Fn(&Rc<Batch>) -> Tape<'a>,
    ) -> (Tensor, Meeting<'a>) {
        let Some(batch) = &micro.source else { panic!("step: a micro-batch without a stream of neighbours") };
        let mut below = tape(&micro.batch).with_jitter(micro.jitter.as_ref());
        // Its input is that of the main stream's last layers too, so it stays in memory.
        let mut rows = tape(&micro.batch).with_input_gradient().with_offload(None);
        let mut source = tape(batch);
        let runs = [&mut below, &mut rows, &mut source, above];
        let Retrieved { main, chunks, neighbours } =
            self.model.forward_retrieval(runs, &|value| self.remember(value));
        (main, Meeting { below, rows, source, chunks, neighbours })
    }
}

impl<'a> Meeting<'a> {
    /// The backward passes from the gradient of the rows where both streams meet.
    pub fn backward(self, pipeline: &Pipeline<'a>, dx: Tensor, back: Back<'_, 'a>, grads: &mut Grads) {
        let Meeting { below, rows, source, chunks, neighbours } = self;
        drop((chunks.value, neighbours.value));
        if let Some(sum) = neighbours.gradient {
            back(source, pipeline.rounded(sum), grads);
        }
        let more = chunks.gradient.and_then(|sum| back(rows, pipeline.rounded(sum), grads));
        if let Some(more) = more {
            pipeline.device.machine.add(&dx, &more, &dx);
        }
        back(below, dx, grads);
    }
}
