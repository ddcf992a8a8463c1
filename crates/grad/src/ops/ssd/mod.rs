//! Mamba-2's scan (Dao and Gu, "Transformers are SSMs", 2024): a state per head that decays and takes in a product of
//! each row, from nothing in each document.

use fathom_tensor::{
    Category, DType, DocumentRuns, Ssd as Call, SsdBackward, SsdOperands, Tensor, ssd_flops, state_cols,
};

use super::deal::{in_order, own_heads};
use super::{documents, states};
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Sizes of a scan on one rank; of all ranks, where they share documents ([`Ctx::to_heads`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsdUse {
    /// Groups of heads that share B and C.
    pub groups: usize,
    /// Columns of B and of C, per group.
    pub state: usize,
    /// Limits of step sizes.
    pub limit: [f32; 2],
    /// Name of the state in generation, [heads, state x width]: of each head `state` rows of its columns.
    pub memory: &'static str,
}

struct Ssd {
    names: [&'static str; 2],
    how: SsdUse,
    cp: usize,
}

impl Ctx<'_> {
    /// Scans u [t, heads x width + 2 x groups x state], which is x, B and C side by side, with raw step sizes
    /// dt [t, heads], to [t, heads x width]: `S_t = e^(delta a) S_(t-1) + delta x_t B_t^T`, `y_t = S_t C_t + d x_t` with
    /// `delta = clamp(softplus(dt + dt_bias))` and `a = -exp(a_log)`. The weights a_log, dt_bias and d are f32
    /// [1, heads]. `names` are those of the result and of the states that are kept for the backward pass. Rows are read
    /// in order, so this must be outside rows regions.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn ssd(
        &mut self,
        names: [&'static str; 2],
        u: Val,
        dt: Val,
        weights: [ParamId; 3],
        how: SsdUse,
    ) -> Val {
        let cp = self.sharers();
        self.apply(Ssd { names, how, cp }, &[u, dt], &weights)[0]
    }
}

impl Ssd {
    fn operands<'a>(
        &self,
        [u, dt]: &'a [Tensor; 2],
        params: &'a [Tensor],
        documents: &'a DocumentRuns,
    ) -> SsdOperands<'a> {
        let SsdUse { groups, state, limit, .. } = self.how;
        let [a_log, dt_bias, d] = [0, 1, 2].map(|index| &params[index]);
        let groups = groups / self.cp;
        SsdOperands { u, dt, a_log, dt_bias, d, groups, state, limit, documents }
    }

    fn scratch(x: &Exec<'_>, of: &SsdOperands<'_>, backward: bool) -> Tensor {
        let bytes = x.device.machine.profile().workspace(&of.desc(backward));
        x.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    /// The gradients that are wanted.
    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &SavedValues,
        (dy, [du, ddt]): (&Tensor, [Option<&Tensor>; 2]),
        dw: OptGrads<'_>,
    ) {
        let ins = [0, 1].map(|index| in_order(x, saved.input(index)));
        let [dy, kept] = [dy, saved.output(1)].map(|value| in_order(x, value));
        let [du, ddt] = [du, ddt].map(|dx| dx.map(|dx| in_order(x, dx)));
        let params: Vec<Tensor> = saved.params.iter().map(|weight| own_heads(x, weight)).collect();
        let dweights = [0, 1, 2].map(|index| Some(own_heads(x, dw.get(index)?.as_ref()?)));
        let of = self.operands(&ins, &params, documents(x, "ssd"));
        let ws = Ssd::scratch(x, &of, true);
        let (du, ddt, dweights) = (du.as_ref(), ddt.as_ref(), dweights.each_ref().map(Option::as_ref));
        x.device.machine.ssd_backward(&SsdBackward { of, kept: &kept, dy: &dy, du, ddt, dweights }, &ws);
    }
}

impl Op for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([name, kept], SsdUse { groups, state, .. }) = (self.names, self.how);
        let (cols, heads) = (ins[0].cols, ins[1].cols);
        let inner = cols.saturating_sub(2 * groups * state);
        let fits = heads > 0 && inner > 0 && inner.is_multiple_of(heads) && ins[0].dtype == ins[1].dtype;
        assert!(
            fits && params.iter().all(|weight| *weight == [1, heads]),
            "ssd {name}: u [t, {cols}], {groups} groups of {state}, dt [t, {heads}], weights {params:?}"
        );
        assert!(
            groups > 0 && heads.is_multiple_of(groups) && groups.is_multiple_of(self.cp),
            "ssd {name}: {groups} groups do not divide {heads} heads on {} ranks",
            self.cp
        );
        let kept = Out::statistic(kept, self.cp * state_cols(inner / self.cp * state));
        vec![Out::new(name, inner, ins[0].dtype), kept]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1], outs: vec![1] }
    }

    fn backward(&self) -> Backward {
        Backward { together: true, ..Backward::PLAIN }
    }

    fn flops(&self, rows: usize, ins: &[Desc], _: &[[usize; 2]], _: &Batch) -> Flops {
        let SsdUse { groups, state, .. } = self.how;
        let heads = ins[1].cols;
        let width = (ins[0].cols - 2 * groups * state) / heads;
        let [forward, input] =
            [false, true].map(|backward| ssd_flops(rows, [heads, width, groups, state], backward));
        Flops { forward, input, weight: 0, extra: forward / 2 }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let states = states(x, "ssd", self.how.memory);
        let (ins, outs) =
            ([0, 1].map(|index| in_order(x, &ins[index])), [0, 1].map(|index| in_order(x, &outs[index])));
        let params: Vec<Tensor> = params.iter().map(|weight| own_heads(x, weight)).collect();
        let of = self.operands(&ins, &params, documents(x, "ssd"));
        let ws = Ssd::scratch(x, &of, false);
        x.device.machine.ssd(&Call { of, states: &states, y: &outs[0], kept: &outs[1] }, &ws);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let Some(dy) = &dy[0] {
            let dw = std::mem::take(&mut x.dw);
            let dx = [0, 1].map(|index| dx[index].as_ref().map(|dx| &dx.tensor));
            self.backward(x, saved, (dy, dx), &dw);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let Some(dy) = &dy[0] {
            self.backward(x, saved, (dy, [None, None]), dw);
        }
    }
}
