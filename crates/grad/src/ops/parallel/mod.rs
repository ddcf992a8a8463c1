//! Linear layers whose weights are sharded over tensor parallel ranks (Shoeybi et al., 2019): at the beginning of a
//! sub-layer every rank computes some columns of the output, at its end a term of it, and the terms are summed.
//!
//! With shared rows (Megatron's sequence parallel, Korthikanti et al., 2022) a sub-layer gathers the rows at its
//! beginning and each rank keeps the sum of its share at its end. In a rows region this happens tile by tile, and
//! inside a tile share by share: the rows of one rank are in flight while those of another are multiplied. A single
//! rank records the plain operation.

use fathom_tensor::mesh::{Axis, Group};
use fathom_tensor::{Category, MatMul, Tensor};

use super::{like, only};
use crate::graph::Spread;
use crate::narrow::{NarrowLinear, Pass};
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

impl Ctx<'_> {
    /// `y = x W^T + b` with the rows of W, packed or not, and b sharded over the ranks: each computes some columns of
    /// y. The gradient of x is summed over the ranks.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn column_parallel(
        &mut self,
        name: &'static str,
        x: Val,
        weight: ParamId,
        bias: Option<ParamId>,
    ) -> Val {
        self.sharded(name, x, [Some(weight), bias], false)
    }

    /// `y = x W^T + b` with the columns of W, packed or not, and so of x, sharded over the ranks: y is the sum of their
    /// products, and b is added to the sum.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn row_parallel(
        &mut self,
        name: &'static str,
        x: Val,
        weight: ParamId,
        bias: Option<ParamId>,
    ) -> Val {
        self.sharded(name, x, [Some(weight), bias], true)
    }

    /// A linear map with the rows of W sharded over the ranks, or (`ends`) its columns.
    #[track_caller]
    fn sharded(&mut self, name: &'static str, x: Val, params: [Option<ParamId>; 2], ends: bool) -> Val {
        let params: Vec<ParamId> = params.into_iter().flatten().collect();
        if self.spread.ranks == 1 {
            return self.linear(name, x, params[0], params.get(1).copied());
        }
        let (narrow, share) = (self.params.narrow(params[0]), if ends { self.spread.share() } else { 1 });
        let y =
            only(self.apply_to(share, Parallel { name, spread: self.spread, ends, narrow }, &[x], &params));
        self.takes_packed();
        y
    }

    /// The sum of x over the ranks; with shared rows each rank keeps its share.
    pub(crate) fn sum(&mut self, name: &'static str, x: Val) -> Val {
        let share = self.spread.share();
        only(self.apply_to(share, Sum { name, spread: self.spread }, &[x], &[]))
    }
}

fn group(x: &Exec<'_>) -> Group {
    x.device.mesh.group(&[Axis::Tp])
}

/// Equal runs of rows, one for each rank.
fn parts(all: &Tensor, ranks: usize) -> Vec<Tensor> {
    let rows = all.rows() / ranks;
    assert_eq!(all.rows() % ranks, 0, "{all:?} has rows that {ranks} ranks cannot share");
    (0..ranks).map(|rank| all.view_rows(rank * rows..(rank + 1) * rows)).collect()
}

/// All rows, if each rank has a share of them.
pub(super) fn collect(x: &Exec<'_>, mine: &Tensor, spread: Spread) -> Tensor {
    if !spread.rows {
        return mine.clone();
    }
    let all = x.device.empty(mine.rows() * spread.ranks, mine.cols(), mine.dtype(), Category::Comm);
    group(x).all_gather(x.device, mine, &parts(&all, spread.ranks)).wait();
    all
}

/// The sum over the ranks of the results of `product(rows of from, result)`, into `out`: all of it, or this rank's
/// share. A share of the rows is in flight while the next product is computed.
pub(super) fn summed(
    x: &Exec<'_>,
    from: &Tensor,
    out: &Tensor,
    spread: Spread,
    product: impl Fn(&Tensor, &Tensor),
) {
    if !spread.rows {
        product(from, out);
        return group(x).all_reduce(x.device, out);
    }
    let term = |_| x.device.empty(out.rows(), out.cols(), out.dtype(), Category::Comm);
    let (rows, terms) = (parts(from, spread.ranks), (0..spread.ranks).map(term).collect::<Vec<Tensor>>());
    group(x).reduce_scatter_made(x.device, &terms, out, &mut |rank| product(&rows[rank], &terms[rank]));
}

/// `product(rows, their result)` for the rows of all ranks, into `out`: this rank's first, while those of the others
/// are in flight.
pub(super) fn collected(
    x: &Exec<'_>,
    mine: &Tensor,
    out: &Tensor,
    spread: Spread,
    product: impl Fn(&Tensor, &Tensor),
) {
    if !spread.rows {
        return product(mine, out);
    }
    let results = parts(out, spread.ranks);
    group(x).each_gathered(x.device, mine, &mut |rank, rows| product(rows, &results[rank]));
}

mod pieces;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Both kinds: at the beginning of a sub-layer rows are gathered before the product; if it `ends` one, the products are
/// summed afterwards. Their gradients do the reverse.
struct Parallel {
    name: &'static str,
    spread: Spread,
    ends: bool,
    /// Format of the products' operands, if they are quantized.
    narrow: Option<NarrowLinear>,
}

impl Parallel {
    /// `c = a W^T`.
    fn product(&self, x: &Exec<'_>, a: &Tensor, weight: &Tensor, c: &Tensor) {
        let op = MatMul { a, a_trans: false, b: weight, b_trans: true, c, accumulate: false };
        x.product(self.narrow.as_ref(), Pass::Forward, op);
    }

    /// `c = dy W`.
    fn back(&self, x: &Exec<'_>, dy: &Tensor, weight: &Tensor, c: &Tensor) {
        let op = MatMul { a: dy, a_trans: false, b: weight, b_trans: false, c, accumulate: false };
        x.product(self.narrow.as_ref(), Pass::Input, op);
    }

    /// `dw += dy^T a`, or `dw = dy^T a`.
    fn gradient(&self, x: &Exec<'_>, dy: &Tensor, a: &Tensor, dw: &Tensor) {
        let op = MatMul { a: dy, a_trans: true, b: a, b_trans: false, c: dw, accumulate: x.adds };
        x.product(self.narrow.as_ref(), Pass::Weight, op);
    }
}

impl Op for Parallel {
    fn name(&self) -> &'static str {
        "linear"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([out, inner], cols) = (params[0], ins[0].cols);
        let name = self.name;
        assert_eq!(cols, inner, "linear {name}: x [t, {cols}], weight [{out}, {inner}]");
        if let Some(bias) = params.get(1) {
            assert_eq!(*bias, [1, out], "linear {name}: bias of weight [{out}, {inner}]");
        }
        vec![Out::new(name, out, ins[0].dtype)]
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.weights { vec![0] } else { vec![] }, outs: vec![] }
    }

    fn backward(&self) -> Backward {
        Backward { writes_weight: true, ..Backward::PLAIN }
    }

    fn flops(&self, rows: usize, _: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let product = 2 * rows as u64 * params[0][0] as u64 * params[0][1] as u64;
        Flops { forward: product, input: product, weight: product, extra: 0 }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        assert!(x.batch.terms.is_empty() || !self.spread.rows, "linear {}: terms of shared rows", self.name);
        let from = x.begin_rows(&ins[0]);
        let product = |a: &Tensor, c: &Tensor| {
            self.product(x, a, &params[0], c);
            x.add_row_terms(a, c);
        };
        if self.ends {
            summed(x, &from, &outs[0], self.spread, product)
        } else {
            collected(x, &from, &outs[0], self.spread, product)
        }
        x.rescale_rows(&outs[0]);
        if let Some(bias) = params.get(1) {
            x.add_biases(&outs[0], bias);
        }
        x.finish_rows(&outs[0]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dy), Some(dx), weight) = (&dy[0], &dx[0], &saved.params[0]) else { return };
        if !self.ends {
            return summed(x, dy, &dx.tensor, self.spread, |dy, c| self.back(x, dy, weight, c));
        }
        match x.carry.take() {
            Some(all) => self.back(x, &all, weight, &dx.tensor),
            None => collected(x, dy, &dx.tensor, self.spread, |dy, c| self.back(x, dy, weight, c)),
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        match &dw[0] {
            Some(dw) if self.ends => {
                let all = collect(x, dy, self.spread);
                self.gradient(x, &all, saved.input(0), dw);
                x.carry = Some(all);
            }
            Some(dw) => self.gradient(x, dy, &collect(x, saved.input(0), self.spread), dw),
            None => {}
        }
        if let Some(Some(dbias)) = dw.get(1) {
            x.device.machine.bias_backward(dy, dbias);
        }
    }
}

struct Sum {
    name: &'static str,
    spread: Spread,
}

impl Op for Sum {
    fn name(&self) -> &'static str {
        "sum over ranks"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        like(self.name, ins[0])
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        if self.spread.rows {
            group(x).reduce_scatter(x.device, &parts(&ins[0], self.spread.ranks), &outs[0])
        } else {
            summed(x, &ins[0], &outs[0], self.spread, |from, to| x.device.machine.copy(from, to))
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        if self.spread.rows {
            let parts = parts(&dx.tensor, self.spread.ranks);
            group(x).all_gather(x.device, dy, &parts).wait();
        } else {
            x.device.machine.copy(dy, &dx.tensor)
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
