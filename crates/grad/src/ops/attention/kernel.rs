//! Calls of the kernels with their scratch.

use std::ops::Range;

use fathom_tensor::{Attention as Call, AttentionBackward, DistanceBias, Mask, OpDesc, Tensor};

use super::call::AttentionUse;
use crate::op::Exec;

/// Some heads of some queries and keys.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub how: AttentionUse,
    /// [tq, heads x head_dim], and two [tk, kv_heads x head_dim].
    pub qkv: [&'a Tensor; 3],
    /// A tensor like q, and f32 [tq, heads] without gaps.
    pub results: [&'a Tensor; 2],
    /// [1, heads].
    pub sinks: Option<&'a Tensor>,
    /// Terms by distance.
    pub bias: Option<DistanceBias<'a>>,
    /// Minimum number of keys for which scratch is allocated, so that memory does not depend on the masks.
    pub least_keys: usize,
}

impl<'a> Heads<'a> {
    /// The same heads for some of the rows.
    pub fn rows(&self, rows: &Range<usize>, work: &mut dyn FnMut(&Heads<'_>)) {
        let of = |tensor: &Tensor| tensor.view_rows(rows.clone());
        let [q, k, v] = self.qkv.map(of);
        let [out, lse] = self.results.map(of);
        work(&Heads { qkv: [&q, &k, &v], results: [&out, &lse], ..*self });
    }

    fn call(&self, mask: &'a Mask, resume: bool) -> Call<'a> {
        let AttentionUse { head_dim, scale, softcap, .. } = self.how;
        let ([q, k, v], [out, lse]) = (self.qkv, self.results);
        let (sinks, bias) = (self.sinks, self.bias);
        Call { q, k, v, out, lse, mask, head_dim, scale, softcap, sinks, bias, resume }
    }

    /// Computes the results, or continues those of other keys.
    pub fn attend(&self, x: &Exec<'_>, mask: &Mask, resume: bool) {
        let call = self.call(mask, resume);
        let ws = self.scratch(x, &call, false);
        x.device.machine.attention(&call, &ws);
    }

    /// Allocates the memory of a call that is omitted, for the same duration.
    pub fn leave_out(&self, x: &Exec<'_>, mask: &Mask, backward: bool) {
        drop(self.scratch(x, &self.call(mask, false), backward));
    }

    fn scratch(&self, x: &Exec<'_>, call: &Call<'_>, backward: bool) -> Tensor {
        let mut desc = call.desc(backward);
        if let OpDesc::Attention(sizes) = &mut desc {
            sizes.k_tokens = self.least_keys.max(sizes.k_tokens);
        }
        x.workspace(x.device.machine.profile().workspace(&desc))
    }

    /// The gradients, from results over all keys. `accumulate` adds to that of q.
    pub fn backward(&self, x: &Exec<'_>, mask: &Mask, gradients: &Gradients<'_>, accumulate: bool) {
        let forward = self.call(mask, false);
        let ws = self.scratch(x, &forward, true);
        let Gradients { dout, dqkv: [dq, dk, dv] } = *gradients;
        let call = AttentionBackward { forward, dout, dq, dk, dv, accumulate };
        x.device.machine.attention_backward(&call, &ws);
    }
}

/// Input and outputs of a backward pass, shaped like the tensors they are the gradients of.
#[derive(Clone, Copy)]
pub(super) struct Gradients<'a> {
    pub dout: &'a Tensor,
    pub dqkv: [&'a Tensor; 3],
}
