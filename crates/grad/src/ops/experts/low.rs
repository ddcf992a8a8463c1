//! Low-rank terms of a linear layer of experts (LoRA; Hu et al., 2021, per expert): `scale (x A_e^T) B_e^T` is added to
//! some columns of each slot's result. The intermediate values are recomputed in the backward pass.

use std::ops::Range;

use fathom_tensor::{Category, GroupedMatMul, GroupedWeight, Tensor};

use super::by_slot;
use crate::ParamId;
use crate::op::{Exec, Flops};

/// Low-rank terms of all experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertTerm {
    /// [experts x rank, in].
    pub a: ParamId,
    /// [experts x columns, rank].
    pub b: ParamId,
    /// Multiplies both together.
    pub scale: f32,
    /// The first column of an expert's result to which it is added, and their number, over all ranks that share an
    /// expert.
    pub columns: (usize, usize),
}

/// A linear layer of experts: its weight, its bias, and its low-rank terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertWeights {
    /// [experts x out, in], or [experts x in, out].
    pub weight: ParamId,
    /// [experts, out].
    pub bias: Option<ParamId>,
    /// The low-rank terms.
    pub terms: [Option<ExpertTerm>; 2],
}

impl From<(ParamId, Option<ParamId>)> for ExpertWeights {
    fn from((weight, bias): (ParamId, Option<ParamId>)) -> ExpertWeights {
        ExpertWeights { weight, bias, terms: [None; 2] }
    }
}

impl ExpertWeights {
    pub(crate) fn terms(&self) -> impl Iterator<Item = ExpertTerm> + '_ {
        self.terms.iter().copied().flatten()
    }

    /// A and B of each term, alternating.
    pub(crate) fn low(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.terms().flat_map(|term| [term.a, term.b])
    }
}

/// The terms of an operation, whose weights are among the operation's own.
pub(crate) struct Terms {
    list: Vec<(f32, Range<usize>)>,
    /// Index of their first weight among the operation's: A and B alternate.
    first: usize,
    experts: usize,
}

impl Terms {
    /// The terms of a layer with `experts` experts on this rank, whose columns `ranks` ranks share.
    pub fn new(weights: &ExpertWeights, first: usize, (experts, ranks): (usize, usize)) -> Terms {
        let list = weights.terms().map(|ExpertTerm { scale, columns: (at, columns), .. }| {
            (scale, at / ranks..(at + columns) / ranks)
        });
        Terms { list: list.collect(), first, experts }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of their weights.
    pub fn weights(&self) -> usize {
        2 * self.list.len()
    }

    /// True if their weights fit a layer of these widths.
    pub fn fit(&self, params: &[[usize; 2]], [inner, out]: [usize; 2]) -> bool {
        self.list.iter().zip(params[self.first..].chunks(2)).all(|((_, columns), pair)| {
            let rank = pair[0][0] / self.experts.max(1);
            columns.end <= out
                && pair[0] == [self.experts * rank, inner]
                && pair[1] == [self.experts * columns.len(), rank]
        })
    }

    /// FLOPs for these slots, one forward pass.
    fn products(&self, slots: u64, params: &[[usize; 2]]) -> u64 {
        let of = |[rows, cols]: [usize; 2]| (rows / self.experts.max(1) * cols) as u64;
        let sizes = params[self.first..self.first + self.weights()].iter();
        2 * slots * sizes.map(|shape| of(*shape)).sum::<u64>()
    }

    /// `flops` of a layer plus those of the terms for these slots; a layer with terms is itself frozen.
    pub fn flops(&self, slots: u64, params: &[[usize; 2]], flops: Flops) -> Flops {
        if self.is_empty() {
            return flops;
        }
        let more = self.products(slots, params);
        Flops { forward: flops.forward + more, input: flops.input + more, weight: more, ..flops }
    }

    fn each<'a>(&'a self, params: &'a [Tensor]) -> impl Iterator<Item = Term<'a>> {
        let pairs = params.get(self.first..).unwrap_or_default().chunks(2);
        self.list.iter().zip(pairs).map(|((scale, columns), pair)| Term {
            a: &pair[0],
            b: &pair[1],
            scale: *scale,
            columns: columns.clone(),
            experts: self.experts,
        })
    }

    /// Adds the terms' outputs for `rows` [t, in] or [t, k x in] to `out` [t, k x out], whose rows must be contiguous.
    pub fn add(&self, x: &Exec<'_>, params: &[Tensor], [rows, index, out]: [&Tensor; 3]) {
        for term in self.each(params) {
            let u = term.low(x, rows, index);
            let made = scratch(x, [index.len(), term.columns.len()], out);
            term.multiply(x, [&u, term.b, &column(index), &made], true);
            let to = out.reshape(index.len(), out.cols() / index.cols()).view_cols(term.columns);
            x.device.machine.add(&to, &made, &to);
        }
    }

    /// Adds the gradients of the terms' weights to the existing entries of `dw`; `dy` [t, k x out].
    pub fn gradients(
        &self,
        x: &Exec<'_>,
        params: &[Tensor],
        [rows, index, dy]: [&Tensor; 3],
        dw: &[Option<Tensor>],
    ) {
        for (at, term) in self.each(params).enumerate() {
            let grad = |which: usize| dw.get(self.first + 2 * at + which).and_then(Option::as_ref);
            if let Some(da) = grad(0) {
                let du = term.low_gradient(x, dy, index);
                let du = du.reshape(index.rows(), index.cols() * du.cols());
                term.weight(x, [&du, rows, index, da]);
            }
            if let Some(db) = grad(1) {
                let u = term.low(x, rows, index);
                term.weight(x, [&term.part(x, dy, index.cols()), &u, &column(index), db]);
            }
        }
    }

    /// Adds the gradient of each slot's input to `dx` [t, k x in], whose rows must be contiguous.
    pub fn input(&self, x: &Exec<'_>, params: &[Tensor], [dy, index, dx]: [&Tensor; 3]) {
        for term in self.each(params) {
            let du = term.low_gradient(x, dy, index);
            let made = scratch(x, [index.len(), term.a.cols()], dx);
            term.multiply(x, [&du, term.a, &column(index), &made], false);
            let to = dx.reshape(index.len(), term.a.cols());
            x.device.machine.add(&to, &made, &to);
        }
    }
}

/// A term with its weights.
struct Term<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    scale: f32,
    columns: Range<usize>,
    experts: usize,
}

/// Slots as a column.
fn column(index: &Tensor) -> Tensor {
    index.reshape(index.len(), 1)
}

fn scratch(x: &Exec<'_>, [rows, cols]: [usize; 2], like: &Tensor) -> Tensor {
    x.device.empty(rows, cols, like.dtype(), Category::Workspace)
}

impl Term<'_> {
    /// `c = a W_e^T`, or `a W_e`.
    fn multiply(&self, x: &Exec<'_>, [a, weights, index, c]: [&Tensor; 4], trans: bool) {
        let op = GroupedMatMul { a, weights, experts: self.experts, trans, index, c };
        let ws = x.workspace(x.device.machine.profile().workspace(&op.desc()));
        x.device.machine.grouped_matmul(&op, &ws);
    }

    /// `c += a^T b` for each expert.
    fn weight(&self, x: &Exec<'_>, [a, b, index, c]: [&Tensor; 4]) {
        let op = GroupedWeight { a, b, index, experts: self.experts, c };
        let ws = x.workspace(x.device.machine.profile().workspace(&op.desc()));
        x.device.machine.grouped_weight(&op, &ws);
    }

    fn rank(&self) -> usize {
        self.a.rows() / self.experts.max(1)
    }

    /// `scale x A^T`, one row per slot.
    fn low(&self, x: &Exec<'_>, rows: &Tensor, index: &Tensor) -> Tensor {
        let u = scratch(x, [index.rows(), index.cols() * self.rank()], rows);
        self.multiply(x, [rows, self.a, index, &u], true);
        self.scaled(x, u.reshape(index.len(), self.rank()))
    }

    /// `scale dy B`, one row per slot.
    fn low_gradient(&self, x: &Exec<'_>, dy: &Tensor, index: &Tensor) -> Tensor {
        let du = scratch(x, [index.len(), self.rank()], dy);
        self.multiply(x, [&self.part(x, dy, index.cols()), self.b, &column(index), &du], false);
        self.scaled(x, du)
    }

    fn scaled(&self, x: &Exec<'_>, u: Tensor) -> Tensor {
        if self.scale != 1.0 {
            x.device.machine.scale(&u, self.scale, &u);
        }
        u
    }

    /// The term's columns of the gradient of each slot's result.
    fn part(&self, x: &Exec<'_>, dy: &Tensor, slots: usize) -> Tensor {
        by_slot(x, dy, slots).view_cols(self.columns.clone())
    }
}
