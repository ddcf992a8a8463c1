//! Gated DeltaNet (Yang et al., "Gated Delta Networks", 2024): a state per head that decays, and in which each row
//! replaces what the state has for its key, from nothing in each document.

use fathom_tensor::{
    Category, DType, Delta as Call, DeltaAdvance, DeltaBackward, DeltaBegins, DeltaEnds, DeltaOperands,
    Device, DocumentRuns, RunStates, Tensor, delta_flops, state_cols,
};

use super::borders::{self, RunMaps};
use super::deal::{in_order, own_heads};
use super::{documents, states};
use crate::context::PIECES;
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Sizes of gated DeltaNet on one rank; of all ranks, where they share documents ([`Ctx::to_heads`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaUse {
    /// Heads of q and of k.
    pub key_heads: usize,
    /// Columns of a head of q or of k.
    pub key: usize,
    /// Added to the squares of the lengths by which q and k are divided.
    pub l2_eps: f32,
    /// Factor of step sizes.
    pub beta: f32,
    /// Name of the state in generation, [heads, key x value]: of each head `key` rows of its columns.
    pub memory: &'static str,
}

struct Delta {
    names: [&'static str; 3],
    how: DeltaUse,
    cp: usize,
    /// Whether ranks pass states.
    passes: bool,
}

impl Ctx<'_> {
    /// Maps u [t, 2 x key_heads x key + heads x value], which is q, k and v side by side, with raw decays a and raw step
    /// sizes b [t, heads], to [t, heads x value]. Per value head, `S <- e^g S`, `S <- S + step k (v - S^T k)^T` and
    /// `S^T q`, with `g = -exp(a_log) softplus(a + dt_bias)` and `step = beta sigmoid(b)`; q and k are divided by their
    /// lengths, and q by the root of their columns. The weights a_log and dt_bias are f32 [1, heads]. `names` are those
    /// of the result, of the states that are kept for the backward pass, and of those with which pieces of a document
    /// begin on this rank, where ranks that share documents pass states. Rows are read in order, so this must be outside
    /// rows regions.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn delta(
        &mut self,
        names: [&'static str; 3],
        [u, a, b]: [Val; 3],
        weights: [ParamId; 2],
        how: DeltaUse,
    ) -> Val {
        let (cp, passes) = (self.sharers(), self.spread.states);
        self.apply(Delta { names, how, cp, passes }, &[u, a, b], &weights)[0]
    }
}

/// The maps of its runs.
struct Maps<'a> {
    of: DeltaOperands<'a>,
    device: &'a Device,
    ws: &'a Tensor,
}

impl RunMaps for Maps<'_> {
    fn sizes(&self) -> [usize; 2] {
        let heads = self.of.heads();
        [heads, heads * self.of.key * self.of.key]
    }

    fn ends(&self, ends: RunStates<'_>, matrices: &Tensor) {
        self.device.machine.delta_ends(&DeltaEnds { of: self.of, ends, matrices }, self.ws);
    }

    fn begins(&self, dout: &Tensor, begins: RunStates<'_>) {
        self.device.machine.delta_begins(&DeltaBegins { of: self.of, dout, begins }, self.ws);
    }

    fn advance(&self, way: usize, state: &Tensor, matrices: &Tensor, added: &Tensor) {
        let after = self.device.empty(state.rows(), state.cols(), DType::F32, Category::Comm);
        let op = DeltaAdvance { matrices, transposed: way == 1, before: state, added, after: &after };
        self.device.machine.delta_advance(&op);
        self.device.machine.copy(&after, state);
    }
}

impl Delta {
    fn operands<'a>(
        &self,
        [u, a, b]: &'a [Tensor; 3],
        params: &'a [Tensor],
        documents: &'a DocumentRuns,
    ) -> DeltaOperands<'a> {
        let DeltaUse { key_heads, key, l2_eps: eps, beta, .. } = self.how;
        let [a_log, dt_bias] = [0, 1].map(|index| &params[index]);
        let key_heads = key_heads / self.cp;
        DeltaOperands { u, a, b, a_log, dt_bias, key_heads, key, eps, beta, documents }
    }

    fn scratch(&self, x: &Exec<'_>, of: &DeltaOperands<'_>, backward: bool) -> Tensor {
        let bytes = x.device.machine.profile().workspace(&of.desc(self.passes, backward));
        x.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    /// The gradients that are wanted.
    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &SavedValues,
        (dout, [du, da, db]): (&Tensor, [Option<&Tensor>; 3]),
        dw: OptGrads<'_>,
    ) {
        let ins = [0, 1, 2].map(|index| in_order(x, saved.input(index)));
        let [dout, kept] = [dout, saved.output(1)].map(|value| in_order(x, value));
        let dx = [du, da, db].map(|dx| dx.map(|dx| in_order(x, dx)));
        let params: Vec<Tensor> = saved.params.iter().map(|weight| own_heads(x, weight)).collect();
        let dweights = [0, 1].map(|index| Some(own_heads(x, dw.get(index)?.as_ref()?)));
        let of = self.operands(&ins, &params, documents(x, "delta"));
        let ws = self.scratch(x, &of, true);
        let ([du, da, db], dweights) =
            (dx.each_ref().map(Option::as_ref), dweights.each_ref().map(Option::as_ref));
        let maps = Maps { of, device: x.device, ws: &ws };
        let passed = borders::pieces(x)
            .map(|pieces| (pieces, borders::returned(x, pieces, &maps, (&dout, saved.output(2)))));
        let [before, after] = [0, 1].map(|side| {
            let (pieces, states) = passed.as_ref()?;
            Some(borders::states(pieces, side, &states[side]))
        });
        let op = DeltaBackward { of, before, after, kept: &kept, dout: &dout, du, da, db, dweights };
        x.device.machine.delta_backward(&op, &ws);
    }
}

impl Op for Delta {
    fn name(&self) -> &'static str {
        "delta"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([name, kept, began], DeltaUse { key_heads, key, .. }) = (self.names, self.how);
        let (cols, heads) = (ins[0].cols, ins[1].cols);
        let values = cols.saturating_sub(2 * key_heads * key);
        let fits = heads > 0 && values > 0 && values.is_multiple_of(heads) && ins[2] == ins[1];
        assert!(
            fits && params.iter().all(|weight| *weight == [1, heads]),
            "delta {name}: u [t, {cols}], {key_heads} key heads of {key}, a [t, {heads}], weights {params:?}"
        );
        assert!(
            key_heads > 0 && heads.is_multiple_of(key_heads) && key_heads.is_multiple_of(self.cp),
            "delta {name}: {key_heads} key heads do not divide {heads} value heads on {} ranks",
            self.cp
        );
        let kept = Out::statistic(kept, self.cp * state_cols(values / self.cp * key));
        let began = Out { rows: Some(PIECES), ..Out::statistic(began, (values + heads * key) * key) };
        let outs = [Out::new(name, values, ins[0].dtype), kept, began];
        outs.into_iter().take(if self.passes { 3 } else { 2 }).collect()
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1, 2], outs: if self.passes { vec![1, 2] } else { vec![1] } }
    }

    fn backward(&self) -> Backward {
        Backward { together: true, ..Backward::PLAIN }
    }

    fn flops(&self, rows: usize, ins: &[Desc], _: &[[usize; 2]], _: &Batch) -> Flops {
        let DeltaUse { key_heads, key, .. } = self.how;
        let heads = ins[1].cols;
        let value = (ins[0].cols - 2 * key_heads * key) / heads;
        let [forward, input] =
            [false, true].map(|backward| delta_flops(rows, [key_heads, heads, key, value], backward));
        Flops { forward, input, weight: 0, extra: forward }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let states = states(x, "delta", self.how.memory);
        let began = outs.get(2);
        let (ins, outs) =
            ([0, 1, 2].map(|index| in_order(x, &ins[index])), [0, 1].map(|index| in_order(x, &outs[index])));
        let params: Vec<Tensor> = params.iter().map(|weight| own_heads(x, weight)).collect();
        let of = self.operands(&ins, &params, documents(x, "delta"));
        let ws = self.scratch(x, &of, false);
        let maps = Maps { of, device: x.device, ws: &ws };
        let passed = borders::pieces(x).zip(began);
        let passed = passed.map(|(pieces, began)| (pieces, borders::passed(x, pieces, &maps, began)));
        let before = passed.as_ref().map(|(pieces, began)| borders::states(pieces, 0, began));
        x.device.machine.delta(&Call { of, before, states: &states, out: &outs[0], kept: &outs[1] }, &ws);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let Some(dout) = &dy[0] {
            let dw = std::mem::take(&mut x.dw);
            let dx = [0, 1, 2].map(|index| dx[index].as_ref().map(|dx| &dx.tensor));
            self.backward(x, saved, (dout, dx), &dw);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let Some(dout) = &dy[0] {
            self.backward(x, saved, (dout, [None; 3]), dw);
        }
    }
}
