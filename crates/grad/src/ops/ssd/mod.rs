//! Mamba-2's scan (Dao and Gu, "Transformers are SSMs", 2024): a state per head that decays and takes in a product of
//! each row, from nothing in each document.

use fathom_tensor::{
    Category, DType, DocumentRuns, Machine, RunStates, Ssd as Call, SsdBackward, SsdBegins, SsdEnds,
    SsdOperands, Tensor, ssd_flops, state_cols,
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
    names: [&'static str; 3],
    how: SsdUse,
    cp: usize,
    /// Whether ranks pass states.
    passes: bool,
}

impl Ctx<'_> {
    /// Scans u [t, heads x width + 2 x groups x state], which is x, B and C side by side, with raw step sizes
    /// dt [t, heads], to [t, heads x width]: `S_t = e^(delta a) S_(t-1) + delta x_t B_t^T`, `y_t = S_t C_t + d x_t` with
    /// `delta = clamp(softplus(dt + dt_bias))` and `a = -exp(a_log)`. The weights a_log, dt_bias and d are f32
    /// [1, heads]. `names` are those of the result, of the states that are kept for the backward pass, and of those with which
    /// pieces of a document begin on this rank, where ranks that share documents pass states. Rows are read in order, so
    /// this must be outside rows regions.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn ssd(
        &mut self,
        names: [&'static str; 3],
        u: Val,
        dt: Val,
        weights: [ParamId; 3],
        how: SsdUse,
    ) -> Val {
        let (cp, passes) = (self.sharers(), self.spread.states);
        self.apply(Ssd { names, how, cp, passes }, &[u, dt], &weights)[0]
    }
}

/// The maps of its runs.
struct Maps<'a> {
    of: SsdOperands<'a>,
    machine: &'a dyn Machine,
    ws: &'a Tensor,
}

impl RunMaps for Maps<'_> {
    fn sizes(&self) -> [usize; 2] {
        [self.of.heads(); 2]
    }

    fn ends(&self, ends: RunStates<'_>, decays: &Tensor) {
        self.machine.ssd_ends(&SsdEnds { of: self.of, ends, decays }, self.ws);
    }

    fn begins(&self, dy: &Tensor, begins: RunStates<'_>) {
        self.machine.ssd_begins(&SsdBegins { of: self.of, dy, begins }, self.ws);
    }

    fn advance(&self, _: usize, state: &Tensor, decays: &Tensor, added: &Tensor) {
        self.machine.ssd_advance(state, &decays.reshape(1, decays.rows()), added);
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

    fn scratch(&self, x: &Exec<'_>, of: &SsdOperands<'_>, backward: bool) -> Tensor {
        let places = if self.passes { PIECES } else { 0 };
        let bytes = x.device.machine.profile().workspace(&of.desc_between(places, backward));
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
        let ws = self.scratch(x, &of, true);
        let (du, ddt, dweights) = (du.as_ref(), ddt.as_ref(), dweights.each_ref().map(Option::as_ref));
        let maps = Maps { of, machine: &*x.device.machine, ws: &ws };
        let passed = borders::pieces(x)
            .map(|pieces| (pieces, borders::returned(x, pieces, &maps, (&dy, saved.output(2)))));
        let [before, after] = [0, 1].map(|side| {
            let (pieces, states) = passed.as_ref()?;
            Some(borders::states(pieces, side, &states[side]))
        });
        let call = SsdBackward { of, before, after, kept: &kept, dy: &dy, du, ddt, dweights };
        x.device.machine.ssd_backward(&call, &ws);
    }
}

impl Op for Ssd {
    fn name(&self) -> &'static str {
        "ssd"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([name, kept, began], SsdUse { groups, state, .. }) = (self.names, self.how);
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
        let began = Out { rows: Some(PIECES), ..Out::statistic(began, inner * state + heads) };
        let outs = [Out::new(name, inner, ins[0].dtype), kept, began];
        outs.into_iter().take(if self.passes { 3 } else { 2 }).collect()
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1], outs: if self.passes { vec![1, 2] } else { vec![1] } }
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
        let began = outs.get(2);
        let (ins, outs) =
            ([0, 1].map(|index| in_order(x, &ins[index])), [0, 1].map(|index| in_order(x, &outs[index])));
        let params: Vec<Tensor> = params.iter().map(|weight| own_heads(x, weight)).collect();
        let of = self.operands(&ins, &params, documents(x, "ssd"));
        let ws = self.scratch(x, &of, false);
        let maps = Maps { of, machine: &*x.device.machine, ws: &ws };
        let passed = borders::pieces(x).zip(began);
        let passed = passed.map(|(pieces, began)| (pieces, borders::passed(x, pieces, &maps, began)));
        let before = passed.as_ref().map(|(pieces, began)| borders::states(pieces, 0, began));
        x.device.machine.ssd(&Call { of, before, states: &states, y: &outs[0], kept: &outs[1] }, &ws);
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
