//! Softmax attention under the batch's masks (flash attention: Dao et al., 2022; never a score matrix).
//!
//! If other ranks have tokens of the stream, keys and values are exchanged according to the batch's [`crate::Context`]:
//! around a ring (`ring.rs`) or gathered on all ranks (`gathered.rs`).

mod call;
mod gathered;
mod kernel;
mod ring;

use std::ops::Range;

use fathom_tensor::{Buckets, Category, DType, DistanceBias, DistanceTerms, Mask, SinksBackward, Tensor};

pub use call::{AttentionUse, Keys};
use kernel::{Gradients, Heads};

use crate::context::{Route, dealable};
use crate::op::{Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// The rows of each separately attending document, with its mask: every `step`-th, starting with mask `first`.
pub(crate) fn documents(
    batch: &Batch,
    first: usize,
    step: usize,
) -> impl Iterator<Item = (Range<usize>, &Mask)> {
    let mut end = 0;
    batch.masks[first..].iter().step_by(step).map(move |mask| {
        end += mask.pos_q.cols();
        (end - mask.pos_q.cols()..end, mask)
    })
}

struct Attention {
    how: AttentionUse,
    /// Rows of the fourth input, a table of biases.
    buckets: Option<Buckets>,
}

impl Ctx<'_> {
    /// q [t, heads x head_dim], k and v [t, kv_heads x head_dim] to `attn.out` [t, heads x head_dim]; keeps `attn.lse`.
    /// `sinks` [1, heads] are logits that are added to each row's denominator. With a memory of earlier tokens, the
    /// batch's own k and v are appended to it; k and v of another stream have its rows.
    ///
    /// # Panics
    /// If the heads do not divide.
    #[track_caller]
    pub fn attention(&mut self, q: Val, k: Val, v: Val, how: AttentionUse, sinks: Option<ParamId>) -> Val {
        let params: Vec<ParamId> = sinks.into_iter().collect();
        self.apply(Attention { how, buckets: None }, &[q, k, v], &params)[0]
    }

    /// [`Ctx::attention`] with terms of the scores by the distance of a key from its query, from a table f32
    /// [buckets, heads].
    ///
    /// # Panics
    /// If the heads do not divide, or the table has other sizes.
    #[track_caller]
    pub fn biased_attention(
        &mut self,
        [q, k, v]: [Val; 3],
        (table, buckets): (Val, Buckets),
        how: AttentionUse,
    ) -> Val {
        self.apply(Attention { how, buckets: Some(buckets) }, &[q, k, v, table], &[])[0]
    }
}

impl Attention {
    /// The exchange of this layer's keys with other ranks, if there are any.
    fn route<'a>(&self, x: &Exec<'a>) -> Option<Route<'a>> {
        let context = x.batch.context.as_ref()?;
        match self.how.keys {
            Keys::Own => Some(context.route(x.layer)),
            Keys::Memory => context.memory(),
        }
    }

    /// Columns of q, columns of k, and heads, for each group of heads; groups are independent.
    ///
    /// # Panics
    /// If the heads cannot be distributed to the ranks that share them.
    #[track_caller]
    fn groups(
        &self,
        x: &Exec<'_>,
        q: &Tensor,
        k: &Tensor,
    ) -> impl Iterator<Item = [Range<usize>; 3]> + use<> {
        let [heads, kv_heads] = [q, k].map(|tensor| tensor.cols() / self.how.head_dim);
        let ranks = match self.route(x) {
            Some(Route::Ring(ring)) => ring.inner.group.size(),
            _ => 1,
        };
        let fits = |groups: &usize| {
            kv_heads.is_multiple_of(*groups) && dealable(heads / groups, kv_heads / groups, ranks)
        };
        let groups = (1..=x.head_groups.min(kv_heads)).rev().find(fits).unwrap_or_else(|| {
            assert!(fits(&1), "attention: {heads} heads on {kv_heads} cannot be dealt to {ranks} ranks");
            1
        });
        let widths = [q.cols(), k.cols(), heads].map(|cols| cols / groups);
        (0..groups).map(move |group| widths.map(|width| group * width..(group + 1) * width))
    }

    fn attend(
        &self,
        x: &Exec<'_>,
        qkv: [&Tensor; 3],
        results: [&Tensor; 2],
        [sinks, table]: [Option<&Tensor>; 2],
    ) {
        let ([q, k, v], [out, lse], table) = (qkv, results, table.or(self.slopes(x)));
        if x.batch.masks.get(self.how.mask).is_some_and(|mask| mask.pages.is_some()) {
            // Keys in pages may have another width than their heads.
            let bias = self.bias([table, None]);
            let group = Heads { how: self.how, qkv, results, sinks, bias, least_keys: 0 };
            return group.attend(x, &x.batch.masks[self.how.mask], false);
        }
        for [wide, narrow, heads] in self.groups(x, q, k) {
            let part = |tensor: &Tensor, cols: &Range<usize>| tensor.view_cols(cols.clone());
            let qkv = [&part(q, &wide), &part(k, &narrow), &part(v, &narrow)];
            let own_lse = own(x, lse, &heads);
            let results = [&part(out, &wide), &own_lse];
            let sinks = sinks.map(|sinks| part(sinks, &heads));
            let table = table.map(|table| table.view_cols(heads.clone()));
            let (sinks, bias) = (sinks.as_ref(), self.bias([table.as_ref(), None]));
            let group = Heads { how: self.how, qkv, results, sinks, bias, least_keys: 0 };
            match self.route(x) {
                None if let Some(step) = self.how.apart => {
                    for (rows, mask) in documents(x.batch, self.how.mask, step) {
                        group.rows(&rows, &mut |part| part.attend(x, mask, false));
                    }
                }
                None => group.attend(x, &x.batch.masks[self.how.mask], false),
                Some(Route::Ring(ring)) => ring::forward(x, ring, &group),
                Some(Route::Gathered(all)) => gathered::forward(x, all, &group),
            }
            if heads.len() < lse.cols() {
                x.device.machine.copy(&own_lse, &part(lse, &heads));
            }
        }
    }

    /// Some heads' columns of the table of biases or slopes, and of its gradient if that is wanted.
    fn bias<'a>(&self, [table, gradient]: [Option<&'a Tensor>; 2]) -> Option<DistanceBias<'a>> {
        let terms = self.buckets.map_or(DistanceTerms::Slopes, DistanceTerms::Buckets);
        Some(DistanceBias { table: table?, terms, gradient })
    }

    /// The slopes of this rank's heads, if scores have them.
    #[track_caller]
    fn slopes<'a>(&self, x: &Exec<'a>) -> Option<&'a Tensor> {
        let slopes = x.batch.slopes.as_ref().filter(|_| self.how.slopes);
        assert_eq!(slopes.is_some(), self.how.slopes, "attention: a batch without slopes");
        slopes
    }

    /// The gradients of the inputs, from all keys. Sinks are included in the statistics.
    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &SavedValues,
        dout: &Tensor,
        (dqkv, dtable): ([&Tensor; 3], Option<&Tensor>),
    ) {
        let table = self.buckets.map(|_| saved.input(3)).or(self.slopes(x));
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
            let rows = [table, dtable].map(|table| table.map(|table| table.view_cols(heads.clone())));
            let bias = self.bias(rows.each_ref().map(Option::as_ref));
            let group = Heads { how: self.how, qkv, results, sinks: None, bias, least_keys: 0 };
            let dout = &part(dout, &wide);
            let dqkv = [&part(dqkv[0], &wide), &part(dqkv[1], &narrow), &part(dqkv[2], &narrow)];
            let gradients = Gradients { dout, dqkv };
            match self.route(x) {
                None if let Some(step) = self.how.apart => {
                    for (rows, mask) in documents(x.batch, self.how.mask, step) {
                        let [dout, dq, dk, dv] =
                            [gradients.dout, gradients.dqkv[0], gradients.dqkv[1], gradients.dqkv[2]]
                                .map(|tensor| tensor.view_rows(rows.clone()));
                        let own = Gradients { dout: &dout, dqkv: [&dq, &dk, &dv] };
                        group.rows(&rows, &mut |part| part.backward(x, mask, &own, false));
                    }
                }
                None => group.backward(x, &x.batch.masks[self.how.mask], &gradients, false),
                Some(Route::Ring(ring)) => ring::backward(x, ring, &group, &gradients),
                Some(Route::Gathered(all)) => gathered::backward(x, all, &group, &gradients),
            }
        }
    }
}

/// Statistics of some heads, without gaps between rows, as kernels require.
fn own(x: &Exec<'_>, lse: &Tensor, heads: &Range<usize>) -> Tensor {
    if heads.len() == lse.cols() {
        lse.clone()
    } else {
        x.device.empty(lse.rows(), heads.len(), lse.dtype(), Category::Workspace)
    }
}

/// A buffer for an unused gradient.
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
        let table = ins.get(3).map(|desc| (desc.cols, desc.dtype));
        let wanted = self.buckets.map(|_| (q / head_dim, DType::F32));
        assert_eq!(table, wanted, "attention: heads and type of biases");
        assert!(fits, "attention: q [t, {q}], k [t, {k}], v [t, {v}], heads of {head_dim}, sinks {params:?}");
        vec![Out::new("attn.out", q, ins[0].dtype), Out::statistic("attn.lse", q / head_dim)]
    }

    fn saves(&self, want: Want) -> Saves {
        let ins = 3 + usize::from(self.buckets.is_some());
        Saves { ins: if want.inputs { (0..ins).collect() } else { Vec::new() }, outs: vec![0, 1] }
    }

    fn flops(&self, _: usize, ins: &[Desc], _: &[[usize; 2]], batch: &Batch) -> Flops {
        // Two products per pair forward, four backward; the kernels recompute the scores.
        let (first, all) = (self.how.mask, batch.masks.len());
        let masks =
            self.how.apart.map_or(first..first + 1, |_| first..all).step_by(self.how.apart.unwrap_or(1));
        let pairs_of = |mask| match self.how.keys {
            Keys::Own => batch.pairs(mask),
            Keys::Memory => batch.masks[mask].pairs,
        };
        let pairs: u64 = masks.map(pairs_of).sum();
        let product = 2 * pairs * ins[0].cols as u64;
        Flops { forward: 2 * product, input: 4 * product, weight: 0, extra: product }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (device, layer) = (x.device, x.layer as usize);
        assert!(
            x.kv.is_none() || x.batch.context.is_none(),
            "attention: generation is for one rank of a context"
        );
        let (k, v) = match (x.kv.as_deref_mut(), self.how.keys) {
            (Some(kv), Keys::Own) => kv.append(device, layer, &ins[1], &ins[2]),
            (Some(kv), Keys::Memory) => kv.source(device, layer, &ins[1], &ins[2]),
            (None, _) => (ins[1].clone(), ins[2].clone()),
        };
        self.attend(x, [&ins[0], &k, &v], [&outs[0], &outs[1]], [params.first(), ins.get(3)]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dout) = &dy[0] else { return };
        // All three are computed together; an unused one (v, if only a norm of q is trained) goes to scratch.
        let target = |index: usize| match &dx[index] {
            Some(dx) => dx.tensor.clone(),
            None => scratch(x, saved.input(index)),
        };
        let [dq, dk, dv] = [0, 1, 2].map(target);
        let own = dx.get(3).and_then(Option::as_ref).map(|dx| &dx.tensor);
        own.inspect(|table| x.device.machine.zero(table));
        self.backward(x, saved, dout, ([&dq, &dk, &dv], own));
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let (Some(dout), Some(Some(dsinks))) = (&dy[0], dw.first()) {
            let (out, lse, sinks) = (saved.output(0), saved.output(1), &saved.params[0]);
            x.device.machine.sinks_backward(&SinksBackward { out, dout, lse, sinks, dsinks });
        }
    }
}
