//! Softmax attention under the batch's masks (flash attention: Dao et al., 2022; never a score matrix).

use std::ops::Range;

use fathom_tensor::{Attention as Call, AttentionBackward, Category, Tensor};

use crate::op::{Desc, Dx, Exec, Flops, Op, Out, Saved, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionUse {
    /// Index of the batch's mask.
    pub mask: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Multiplies q k.
    pub scale: f32,
    /// `cap tanh(s / cap)`; 0 for none.
    pub softcap: f32,
}

struct Attention {
    how: AttentionUse,
}

impl Ctx<'_> {
    /// q [t, heads x head_dim], k and v [t, kv_heads x head_dim] to `attn.out` [t, heads x head_dim]; keeps `attn.lse`.
    /// `sinks` [1, heads] are logits that join each row's denominator. With a memory of earlier tokens, k and v join it.
    ///
    /// # Panics
    /// If the heads do not divide.
    #[track_caller]
    pub fn attention(&mut self, q: Val, k: Val, v: Val, how: AttentionUse, sinks: Option<ParamId>) -> Val {
        let params: Vec<ParamId> = sinks.into_iter().collect();
        self.apply(Attention { how }, &[q, k, v], &params)[0]
    }
}

impl Attention {
    fn call<'a>(
        &self,
        x: &'a Exec<'_>,
        qkv: [&'a Tensor; 3],
        results: [&'a Tensor; 2],
        sinks: Option<&'a Tensor>,
    ) -> Call<'a> {
        let AttentionUse { mask, head_dim, scale, softcap } = self.how;
        let ([q, k, v], [out, lse]) = (qkv, results);
        Call { q, k, v, out, lse, mask: &x.batch.masks[mask], head_dim, scale, softcap, sinks }
    }

    /// Columns of q, of k, and heads, for each group of heads: no group needs another's results.
    fn groups(
        &self,
        x: &Exec<'_>,
        q: &Tensor,
        k: &Tensor,
    ) -> impl Iterator<Item = [Range<usize>; 3]> + use<> {
        let kv_heads = k.cols() / self.how.head_dim;
        let divides = |groups: &usize| kv_heads.is_multiple_of(*groups);
        let groups = (1..=x.head_groups.min(kv_heads)).rev().find(divides).unwrap_or(1);
        let widths = [q.cols(), k.cols(), q.cols() / self.how.head_dim].map(|cols| cols / groups);
        (0..groups).map(move |group| widths.map(|width| group * width..(group + 1) * width))
    }

    fn attend(&self, x: &Exec<'_>, qkv: [&Tensor; 3], results: [&Tensor; 2], sinks: Option<&Tensor>) {
        let ([q, k, v], [out, lse]) = (qkv, results);
        for [wide, narrow, heads] in self.groups(x, q, k) {
            let part = |tensor: &Tensor, cols: &Range<usize>| tensor.view_cols(cols.clone());
            let qkv = [&part(q, &wide), &part(k, &narrow), &part(v, &narrow)];
            let own_lse = own(x, lse, &heads);
            let results = [&part(out, &wide), &own_lse];
            let sinks = sinks.map(|sinks| part(sinks, &heads));
            let call = self.call(x, qkv, results, sinks.as_ref());
            let ws = x.workspace(x.device.machine.profile().workspace(&call.desc(false)));
            x.device.machine.attention(&call, &ws);
            if heads.len() < lse.cols() {
                x.device.machine.copy(&own_lse, &part(lse, &heads));
            }
        }
    }

    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &Saved,
        dout: &Tensor,
        dqkv: [&Tensor; 3],
        dsinks: Option<&Tensor>,
    ) {
        let [q, k, v] = [0, 1, 2].map(|index| saved.input(index));
        for [wide, narrow, heads] in self.groups(x, q, k) {
            let part = |tensor: &Tensor, cols: &Range<usize>| tensor.view_cols(cols.clone());
            let qkv = [&part(q, &wide), &part(k, &narrow), &part(v, &narrow)];
            let (out, lse) = (saved.output(0), saved.output(1));
            let own_lse = own(x, lse, &heads);
            if heads.len() < lse.cols() {
                x.device.machine.copy(&part(lse, &heads), &own_lse);
            }
            let results = [&part(out, &wide), &own_lse];
            let sinks = saved.params.first().map(|sinks| part(sinks, &heads));
            let forward = self.call(x, qkv, results, sinks.as_ref());
            let ws = x.workspace(x.device.machine.profile().workspace(&forward.desc(true)));
            let dout = &part(dout, &wide);
            let [dq, dk, dv] = [&part(dqkv[0], &wide), &part(dqkv[1], &narrow), &part(dqkv[2], &narrow)];
            let dsinks = dsinks.map(|dsinks| part(dsinks, &heads));
            let call = AttentionBackward { forward, dout, dq, dk, dv, dsinks: dsinks.as_ref() };
            x.device.machine.attention_backward(&call, &ws);
        }
    }
}

/// Statistics of some heads: kernels want them without gaps between rows.
fn own(x: &Exec<'_>, lse: &Tensor, heads: &Range<usize>) -> Tensor {
    match heads.len() == lse.cols() {
        true => lse.clone(),
        false => x.device.empty(lse.rows(), heads.len(), lse.dtype(), Category::Workspace),
    }
}

/// Room for a gradient that nobody reads.
fn scratch(x: &Exec<'_>, like: &Tensor) -> Tensor {
    x.device.empty(like.rows(), like.cols(), like.dtype(), Category::Workspace)
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let head_dim = self.how.head_dim;
        let [q, k, v] = [ins[0].cols, ins[1].cols, ins[2].cols];
        let fits = k == v
            && k % head_dim == 0
            && q % k == 0
            && params.iter().all(|shape| *shape == [1, q / head_dim]);
        assert!(fits, "attention: q [t, {q}], k [t, {k}], v [t, {v}], heads of {head_dim}, sinks {params:?}");
        vec![Out::new("attn.out", q, ins[0].dtype), Out::statistic("attn.lse", q / head_dim)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1, 2], outs: vec![0, 1] }
    }

    fn passes(&self) -> &'static [usize] {
        &[]
    }

    fn accumulates(&self) -> bool {
        false
    }

    fn flops(&self, _: usize, ins: &[Desc], _: &[[usize; 2]], batch: &Batch) -> Flops {
        // Two products a pair forward, four backward; the kernels compute the scores once more.
        let product = 2 * batch.masks[self.how.mask].pairs * ins[0].cols as u64;
        Flops { forward: 2 * product, input: 4 * product, weight: 0, extra: product }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (device, layer) = (x.device, x.layer as usize);
        let (k, v) = match x.kv.as_deref_mut() {
            Some(kv) => kv.append(device, layer, &ins[1], &ins[2]),
            None => (ins[1].clone(), ins[2].clone()),
        };
        self.attend(x, [&ins[0], &k, &v], [&outs[0], &outs[1]], params.first());
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &Saved, dy: &[Option<Tensor>], dx: &[Option<Dx>]) {
        let Some(dout) = &dy[0] else { return };
        // All three come together; what nobody wants (v, where only a norm of q is trained) goes to scratch.
        let target = |index: usize| match &dx[index] {
            Some(dx) => dx.tensor.clone(),
            None => scratch(x, saved.input(index)),
        };
        let [dq, dk, dv] = [0, 1, 2].map(target);
        self.backward(x, saved, dout, [&dq, &dk, &dv], None);
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &Saved, dy: &[Option<Tensor>], dw: &[Option<Tensor>]) {
        // The sinks' gradient comes with that of the inputs; asked for alone, those go to scratch.
        if let (Some(dout), Some(Some(dsinks))) = (&dy[0], dw.first()) {
            let [dq, dk, dv] = [0, 1, 2].map(|index| scratch(x, saved.input(index)));
            self.backward(x, saved, dout, [&dq, &dk, &dv], Some(dsinks));
        }
    }
}
