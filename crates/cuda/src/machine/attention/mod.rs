//! Selection of the attention calls for the library, and their description to it.
//!
//! The library handles masks that the host knows as packed sequences ([`fathom_tensor::PackedMask`]) and 16-bit
//! operands. Everything else is for kernels: other masks, sinks, capped scores, biases.
//!
//! Consecutive documents are one call for a group of heads, whose results are written to their destination. If the keys
//! are only some of those that the queries attend to ([`fathom_tensor::Mask::partial`]: ring steps, gathered keys),
//! there is one call per layer of sequences ([`layers`]). Its results are a part of the whole, in scratch and in the
//! operands' type: outputs are merged with those of other keys by their logarithms, gradients are added (`parts.rs`).
//!
//! Scratch ([`fathom_tensor::gpu::AttentionScratch`]) also holds the logarithms of a single sequence, which the library stores head after
//! head and all other code in rows of tokens, and the gradients of packed sequences.
#![allow(unsafe_code)]

mod call;
#[cfg(test)]
mod fake_attention;
mod layers;
mod operands;
mod parts;
mod row_set;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use fathom_tensor::{Attention, AttentionBackward, Tensor};

use super::Cuda;
use crate::Result;
use crate::driver::Rows;
use crate::kernels;
use crate::memory::{AttentionOp, Work};
use crate::operand::output;
use crate::sdpa::{Attend, uid};
use call::{Call, Round};
use parts::Progress;

impl Cuda {
    /// Issues attention if the library supports it.
    #[track_caller]
    pub(super) fn attended(&self, op: &Attention<'_>, ws: &Tensor) -> bool {
        Call::of(op, None, ws).is_some_and(|call| self.issue_call(&call))
    }

    /// Issues attention's gradient if the library supports it.
    #[track_caller]
    pub(super) fn attended_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor) -> bool {
        Call::of(&op.forward, Some(op), ws).is_some_and(|call| self.issue_call(&call))
    }

    /// Issues the call if there is a library and it supports all rounds.
    #[track_caller]
    fn issue_call(&self, call: &Call<'_>) -> bool {
        let mask = call.op.mask;
        let (Some(library), Some(packed)) = (&self.attend, &mask.packed) else { return false };
        let Some(element) = call.operands.element() else { return false };
        let rounds = if mask.partial { call.layered(packed, element) } else { call.whole(packed, element) };
        let Some(rounds) = rounds else { return false };
        let backward = call.gradients.is_some();
        let takes = |round: &Round| {
            let (_, [_, bytes]) = call.in_scratch(round.case.packed);
            self.within(|| Ok(library.takes(&round.case, backward, bytes))).unwrap_or(false)
        };
        let mut progress = Progress::of(call);
        if !progress.fills(call, &rounds) || !rounds.iter().all(takes) {
            return false;
        }
        for round in &rounds {
            self.must("attention", self.by_heads(library, call, round, &progress));
            progress.made(round);
        }
        self.clear_gradients(call, &progress);
        true
    }

    /// Calls the library for one group of key heads after another.
    fn by_heads(
        &self,
        library: &Arc<dyn Attend>,
        call: &Call<'_>,
        round: &Round,
        progress: &Progress,
    ) -> Result<()> {
        let (case, backward) = (round.case, call.gradients.is_some());
        let (mut named, workspace) = call.in_scratch(case.packed);
        if case.packed {
            let last = if backward { uid::DV } else { uid::LSE };
            let (bytes, places) = round.layer.lists(&case, &(uid::Q..=last).collect::<Vec<_>>());
            let lists_at = output(call.ws) + call.scratch.parts().lists;
            let to = Rows::flat(lists_at, bytes.len());
            self.writes.write("lists of packed documents", &bytes, to)?;
            named.extend(places.iter().map(|(number, at)| (*number, lists_at + at)));
        }
        let groups = call.op.k.cols() / call.op.head_dim / call.scratch.kv_heads;
        for group in 0..groups {
            let firsts = call.heads().map(|heads| group * heads);
            let mut tensors = named.clone();
            let elsewhere = call.operands.addresses(firsts, round.first_rows(), call.op.head_dim);
            tensors.extend(elsewhere.filter(|(number, _)| named.iter().all(|(of, _)| of != number)));
            if backward && !case.packed {
                let [theirs, ours] = call.logarithms(round, group);
                self.run(&kernels::transpose(&theirs, &ours));
            }
            let (scale, window) = (call.op.scale, round.window.unwrap_or_default());
            let op = AttentionOp { case, backward, tensors, workspace, scale, window };
            // SAFETY: the case was made of these tensors, which live; see `Cuda::run` for their storage.
            unsafe { self.streams.issue(Work::Attend(library.clone(), Box::new(op)))? };
            self.place(call, round, group, progress);
        }
        Ok(())
    }
}
