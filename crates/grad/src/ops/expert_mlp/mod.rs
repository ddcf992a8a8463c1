//! The MLPs of experts distributed over ranks: a rank sends each of its tokens to the owners of the token's experts and
//! receives their outputs.
//!
//! Owners are the ranks along `ep`; the ranks along `etp` have some inner columns of each expert, and their outputs are
//! summed on the token's rank. All values kept for the backward pass stay on the token's rank: its input and the
//! experts that it chose. The backward pass sends the input again, with the gradient, and owners recompute the rest.
//!
//! Messages have fixed sizes, so memory does not depend on the routing: a rank has [`Exchange::cap`] places at each
//! owner, an eighth more than an even share of its slots, and the excess goes into another round. An expert sees its
//! tokens rank by rank, ascending. A single rank records the plain operations.

use fathom_tensor::{
    Activate, ActivateBackward, Activation, Category, Combine, DType, Embed, GroupedMatMul, GroupedWeight,
    Tensor,
};

use super::experts::{ExpertWeights, Terms, by_slot};
use super::only;
use crate::graph::Spread;
use crate::op::{Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::ops::experts::ExpertsUse;
use crate::{Batch, Ctx, ParamId, Val};

mod exchange;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use exchange::{Exchange, Round};

/// Description of the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMlp {
    /// Their number, and the layout of their weights.
    pub layout: ExpertsUse,
    /// The function of `act(gate) up`.
    pub activation: Activation,
    /// Whether it is that, or `act(up)` alone (Nemotron 3).
    pub gated: bool,
}

struct Spreads {
    name: &'static str,
    how: ExpertMlp,
    spread: Spread,
    /// True if both have biases.
    bias: bool,
    /// Low-rank terms of the up and of the down projection.
    terms: [Terms; 2],
}

/// Weights of the rank's experts: up and its bias, down and its bias; and their low-rank terms.
struct Weights<'a> {
    up: &'a Tensor,
    down: &'a Tensor,
    up_bias: Option<&'a Tensor>,
    down_bias: Option<&'a Tensor>,
    all: &'a [Tensor],
}

impl Ctx<'_> {
    /// `W_down (act(gate) up) + b_down` with `[gate, up] = W_up x + b_up`, or `W_down act(W_up x)`, for each of a token's slots: x [t, d] and
    /// index i32 [t, k] to [t, k x d]. Weights as in [`Ctx::experts`], both with biases or both without; of distributed
    /// weights, this rank's. `names` are those of the inner values, on one rank, and of the result.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn expert_mlp(
        &mut self,
        names: [&'static str; 3],
        [x, index]: [Val; 2],
        how: ExpertMlp,
        up: impl Into<ExpertWeights>,
        down: impl Into<ExpertWeights>,
    ) -> Val {
        let (up, down): (ExpertWeights, ExpertWeights) = (up.into(), down.into());
        let ([up_name, act, name], spread) = (names, self.spread);
        if spread.ep * spread.etp == 1 {
            let slots = self.desc(index).cols;
            let u = self.adapted_experts(up_name, [x, index], how.layout, up);
            let a = if how.gated {
                self.gate_each(act, how.activation, u, slots)
            } else {
                self.activate(act, how.activation, u)
            };
            return self.adapted_experts(name, [a, index], how.layout, down);
        }
        let biases = up.bias.into_iter().chain(down.bias);
        let low = up.low().chain(down.low());
        let params: Vec<ParamId> =
            [up.weight, down.weight].into_iter().chain(biases.clone()).chain(low).collect();
        let (own, first) = (how.layout.experts / spread.ep, 2 + biases.count());
        let way_in = Terms::new(&up, first, (own, spread.etp));
        let way_out = Terms::new(&down, first + way_in.weights(), (own, 1));
        let (bias, terms) = (up.bias.is_some(), [way_in, way_out]);
        let y = only(self.apply(Spreads { name, how, spread, bias, terms }, &[x, index], &params));
        self.takes_packed();
        y
    }
}

/// Rows and columns of a weight of `experts` experts, packed or not.
fn extent(weight: &Tensor, experts: usize) -> [usize; 2] {
    match weight.packing() {
        Some(packing) if packing.turned => [experts * packing.cols, packing.rows() / experts.max(1)],
        Some(packing) => [packing.rows(), packing.cols],
        None => weight.shape(),
    }
}

/// A tensor for one round.
fn scratch(x: &Exec<'_>, rows: usize, cols: usize, like: &Tensor) -> Tensor {
    x.device.empty(rows, cols, like.dtype(), Category::Workspace)
}

/// Adds its expert's bias to each row.
fn add_bias(x: &Exec<'_>, index: &Tensor, table: Option<&Tensor>, out: &Tensor) {
    let Some(table) = table else { return };
    let (ids, first) = (&index.reshape(1, index.len()), Some(0));
    x.device.machine.embed(&Embed { ids, table, scale: 1.0, out, accumulate: true, first });
}

/// Rows times the weights of their experts.
fn multiply(x: &Exec<'_>, op: &GroupedMatMul<'_>) {
    let ws = x.workspace(x.device.machine.profile().workspace(&op.desc()));
    x.device.machine.grouped_matmul(op, &ws);
}

impl Spreads {
    fn weights<'a>(&self, params: &'a [Tensor]) -> Weights<'a> {
        let biases = if self.bias { &params[2..4] } else { &[] };
        Weights {
            up: &params[0],
            down: &params[1],
            up_bias: biases.first(),
            down_bias: biases.last(),
            all: params,
        }
    }

    /// Number of experts per owner.
    fn own(&self) -> usize {
        self.how.layout.experts / self.spread.ep
    }

    /// (d, columns of gate and up on this rank, columns of the activation on this rank).
    fn widths(&self, params: &[[usize; 2]]) -> (usize, usize, usize) {
        let ([up, down], own) = ([params[0], params[1]], self.own().max(1));
        if self.how.layout.trans {
            (up[1], up[0] / own, down[1])
        } else {
            (up[0] / own, up[1], down[0] / own)
        }
    }

    /// `c = a W^T`, or `a W` for gradients.
    fn product(&self, x: &Exec<'_>, [a, weights, index, c]: [&Tensor; 4], forward: bool) {
        let ExpertsUse { trans, .. } = self.how.layout;
        multiply(x, &GroupedMatMul { a, weights, experts: self.own(), trans: trans == forward, index, c });
    }

    /// The weights' gradient of `y = a W^T`.
    fn gradient(&self, x: &Exec<'_>, [a, dy, index, c]: [&Tensor; 4]) {
        let [a, b] = if self.how.layout.trans { [dy, a] } else { [a, dy] };
        let op = GroupedWeight { a, b, index, experts: self.own(), c };
        let ws = x.workspace(x.device.machine.profile().workspace(&op.desc()));
        x.device.machine.grouped_weight(&op, &ws);
    }

    /// Gate and up of the received rows, and the activation.
    fn inside(&self, x: &Exec<'_>, w: &Weights<'_>, rows: &Tensor, index: &Tensor) -> [Tensor; 2] {
        let (_, wide, narrow) = self.widths(&[w.up, w.down].map(|weight| extent(weight, self.own())));
        let u = scratch(x, rows.rows(), wide, rows);
        self.product(x, [rows, w.up, index, &u], true);
        self.terms[0].add(x, w.all, [rows, index, &u]);
        add_bias(x, index, w.up_bias, &u);
        let a = scratch(x, rows.rows(), narrow, rows);
        let ExpertMlp { activation: kind, gated, .. } = self.how;
        x.device.machine.activate(&Activate { kind, gated, x: &u, out: &a });
        [u, a]
    }

    /// The backward pass: adds to the existing gradients of weights, and returns the gradient of x for each slot.
    fn backward(&self, x: &Exec<'_>, saved: &SavedValues, dy: &Tensor, dw: &[Option<Tensor>]) -> Tensor {
        let (input, index) = (saved.input(0), saved.input(1));
        let w = self.weights(&saved.params);
        let grad = |at: usize| dw.get(at).and_then(Option::as_ref);
        let of_bias = |at: usize| grad(at).filter(|_| self.bias);
        let slots = index.cols();
        let dx = x.device.empty(index.rows(), slots * input.cols(), input.dtype(), Category::Comm);
        let (dy, each) = (by_slot(x, dy, slots), dx.reshape(index.len(), input.cols()));
        let exchange = Exchange::new(x, index, self.spread, self.own());
        for round in 0..exchange.rounds {
            let at = Round::new(&exchange, x, index, round);
            let rows = at.send(x, input, true);
            let [u, a] = self.inside(x, &w, &rows, &at.index);
            let dy = at.send(x, &dy, false);
            if let Some(dw) = grad(1) {
                self.gradient(x, [&a, &dy, &at.index, dw]);
            }
            self.terms[1].gradients(x, w.all, [&a, &at.index, &dy], dw);
            if let (Some(dbias), true) = (of_bias(3), exchange.adds_bias) {
                let ids = at.index.reshape(1, at.index.len());
                x.device.machine.embed_backward(&ids, &dy, 1.0, dbias, Some(0));
            }
            // Overwrites the activation.
            self.product(x, [&dy, w.down, &at.index, &a], false);
            self.terms[1].input(x, w.all, [&dy, &at.index, &a]);
            drop(dy);
            let du = scratch(x, u.rows(), u.cols(), &u);
            let ExpertMlp { activation: kind, gated, .. } = self.how;
            x.device.machine.activate_backward(&ActivateBackward { kind, gated, x: &u, dy: &a, dx: &du });
            drop((u, a));
            if let Some(dw) = grad(0) {
                self.gradient(x, [&rows, &du, &at.index, dw]);
            }
            self.terms[0].gradients(x, w.all, [&rows, &at.index, &du], dw);
            if let Some(dbias) = of_bias(2) {
                let ids = at.index.reshape(1, at.index.len());
                x.device.machine.embed_backward(&ids, &du, 1.0, dbias, Some(0));
            }
            // Overwrites the rows.
            self.product(x, [&du, w.up, &at.index, &rows], false);
            self.terms[0].input(x, w.all, [&du, &at.index, &rows]);
            drop(du);
            at.give_back(x, rows, &each);
        }
        dx
    }
}

impl Op for Spreads {
    fn name(&self) -> &'static str {
        "experts"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (ExpertsUse { experts, trans }, own) = (self.how.layout, self.own());
        let whole = experts.is_multiple_of(self.spread.ep) && own > 0;
        assert!(whole, "experts {}: {experts} on {} ranks, {params:?}", self.name, self.spread.ep);
        let (d, wide, narrow) = self.widths(params);
        let down = if trans { [own * d, narrow] } else { [own * narrow, d] };
        let fits = ins[0].cols == d
            && ins[1].dtype == DType::I32
            && wide == if self.how.gated { 2 * narrow } else { narrow }
            && params[1] == down
            && (!self.bias || params[2..4] == [[own, wide], [own, d]])
            && self.terms[0].fit(params, [d, wide])
            && self.terms[1].fit(params, [narrow, d]);
        assert!(
            fits,
            "experts {}: x [t, {}], {own} of weights and biases {params:?}",
            self.name, ins[0].cols
        );
        vec![Out::new(self.name, ins[1].cols * d, ins[0].dtype)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1], outs: vec![] }
    }

    /// For tokens distributed evenly over owners: a rank receives as many rows as it sends.
    fn flops(&self, rows: usize, ins: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let (d, wide, narrow) = self.widths(params);
        let row = 2 * (rows * ins[1].cols * self.spread.etp) as u64 * d as u64;
        let (up, down) = (row * wide as u64, row * narrow as u64);
        let flops = Flops { forward: up + down, input: up + down, weight: up + down, extra: up };
        let slots = (rows * ins[1].cols * self.spread.etp) as u64;
        if self.terms.iter().all(Terms::is_empty) {
            return flops;
        }
        let low = |terms: &Terms| terms.flops(slots, params, Flops::default());
        let [first, second] = [low(&self.terms[0]), low(&self.terms[1])];
        let weight = first.weight + second.weight;
        Flops { forward: up + down + weight, input: up + down + weight, weight, extra: up + first.forward }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (input, index, w) = (&ins[0], &ins[1], self.weights(params));
        let out = outs[0].reshape(index.len(), input.cols());
        let exchange = Exchange::new(x, index, self.spread, self.own());
        for round in 0..exchange.rounds {
            let at = Round::new(&exchange, x, index, round);
            let rows = at.send(x, input, true);
            let [u, a] = self.inside(x, &w, &rows, &at.index);
            drop(u);
            // Overwrites the rows.
            self.product(x, [&a, w.down, &at.index, &rows], true);
            self.terms[1].add(x, w.all, [&a, &at.index, &rows]);
            drop(a);
            if exchange.adds_bias {
                add_bias(x, &at.index, w.down_bias, &rows);
            }
            at.give_back(x, rows, &out);
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        let each = x.carry.take().unwrap_or_else(|| self.backward(x, saved, dy, &[]));
        x.device.machine.combine(&Combine { y: &each, weights: None, out: &dx.tensor });
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        x.carry = Some(self.backward(x, saved, dy, dw));
    }
}
