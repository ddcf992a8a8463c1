//! A projection with a low-rank adapter (LoRA; Hu et al., 2021, section 4.1): `y = x W^T + scale (x A^T) B^T + b`.
//!
//! A projection that fuses several tensors of files (q, k and v; gate and up) has separate adapters for some of them:
//! their A are stacked, and each B computes its own columns of y. The low-rank terms are added to the product's result
//! in place, so an adapter needs no second value of y's size; `x A^T` is recomputed in the backward pass, which costs
//! rank / columns of a product.
//!
//! Over tensor parallel ranks W and B are sharded as [`Ctx::column_parallel`] shards W, with A whole, or W and A as
//! [`Ctx::row_parallel`] does, with B whole. A whole weight then has a term of its gradient on every rank.

use std::ops::Range;

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Dropout, MatMul, ProductTerm, Tensor};

use super::only;
use super::parallel::{collect, collected, summed};
use crate::graph::Spread;
use crate::narrow::{NarrowLinear, Pass};
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

mod rows;

pub use rows::{RowCut, RowTerm, RowTerms, Terms, length_factors};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Sharding of a projection over tensor parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearCut {
    /// Each rank computes all of it, for its rows.
    Whole,
    /// Each rank computes some columns.
    Columns,
    /// Each rank computes a term of the sum.
    Rows,
}

/// Most runs: tensors in files that make up one projection.
pub(crate) const MOST_RUNS: usize = 6;

/// Runs of the columns of a projection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    list: [(usize, usize); MOST_RUNS],
    len: usize,
}

impl Runs {
    /// The runs with these first columns and lengths.
    ///
    /// # Panics
    /// If there are more than six.
    #[track_caller]
    pub fn new(runs: &[(usize, usize)]) -> Runs {
        let mut list = [(0, 0); MOST_RUNS];
        list[..runs.len()].copy_from_slice(runs);
        Runs { list, len: runs.len() }
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The runs.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.list[..self.len].iter().copied()
    }

    /// Total number of columns.
    pub fn columns(&self) -> usize {
        self.iter().map(|(_, columns)| columns).sum()
    }

    /// The part on one of several ranks; each run is divided equally among them.
    pub fn part(&self, ranks: usize) -> Runs {
        let mut part = *self;
        part.list.iter_mut().for_each(|(at, columns)| (*at, *columns) = (*at / ranks, *columns / ranks));
        part
    }
}

/// The low-rank adapter of a projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraUse {
    /// [runs x rank, in].
    pub a: ParamId,
    /// [columns of all runs, rank].
    pub b: ParamId,
    /// Factor of A and B together, for each run.
    pub scales: [f32; MOST_RUNS],
    /// The columns of the whole projection to which each adapter is added.
    pub runs: Runs,
    /// [1, columns of all runs]: added too, times the scale of its run.
    pub bias: Option<ParamId>,
    /// Dropout of the adapters' inputs, in training steps.
    pub drops: Option<Drops>,
    /// True if its magnitudes, if it has any, are stored as column factors ([`length_factors`]).
    pub fixed: bool,
}

/// Dropout of an adapter's input (the `lora_dropout` of PEFT), by counters: see [`Dropout`] and [`Batch::keys`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drops {
    /// The dropout rate.
    pub rate: f32,
    /// Identifies the projection among those of its layer.
    pub salt: u32,
    /// The layer that the operations are recorded for.
    pub layer: usize,
}

impl Drops {
    /// The dropout of one of the projection's adapters, in a layer at distance `layers_on`.
    fn of_run(self, layers_on: i32, run: usize, first: usize) -> Dropout {
        let layer = (self.layer as u32).wrapping_add_signed(layers_on);
        let place = [layer, run as u32].iter().fold(self.salt, |hash, part| {
            let hash = (hash ^ part).wrapping_mul(0x9e37_79b1);
            hash ^ (hash >> 15)
        });
        Dropout::new(self.rate, place, first)
    }
}

impl LoraUse {
    /// An adapter with these weights and a scale for each run.
    ///
    /// # Panics
    /// If the numbers of scales and runs differ.
    #[track_caller]
    pub fn new(a: ParamId, b: ParamId, of_runs: &[f32], runs: Runs) -> LoraUse {
        assert_eq!(of_runs.len(), runs.len(), "lora: scales of runs");
        let mut scales = [1.0; MOST_RUNS];
        scales[..of_runs.len()].copy_from_slice(of_runs);
        LoraUse { a, b, scales, runs, bias: None, drops: None, fixed: false }
    }
}

/// A projection: weight [out, in] and bias [1, out].
pub type ProjectionWeights = (ParamId, Option<ParamId>);

impl Ctx<'_> {
    /// A projection with a low-rank adapter: x [t, in] to [t, out]. The weight may be packed; A and B are not.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn lora(
        &mut self,
        name: &'static str,
        x: Val,
        (weight, bias): ProjectionWeights,
        lora: LoraUse,
        cut: LinearCut,
    ) -> Val {
        let spread = self.spread;
        let cut = if spread.ranks == 1 { LinearCut::Whole } else { cut };
        let (runs, share) = match cut {
            LinearCut::Whole => (lora.runs, None),
            LinearCut::Columns => (lora.runs.part(spread.ranks), Some(1)),
            LinearCut::Rows => (lora.runs, Some(spread.share())),
        };
        let narrow = self.params.narrow(weight);
        let low_bias = lora.bias.map(|_| 3 + usize::from(bias.is_some()));
        let (has_bias, drops) = (bias.is_some(), lora.drops);
        let op = Lora { name, cut, spread, scales: lora.scales, runs, has_bias, low_bias, drops, narrow };
        let params: Vec<ParamId> =
            [lora.a, lora.b, weight].into_iter().chain(bias).chain(lora.bias).collect();
        let y = only(match share {
            Some(share) => self.apply_to(share, op, &[x], &params),
            None => self.apply(op, &[x], &params),
        });
        self.takes_packed();
        y
    }
}

struct Lora {
    name: &'static str,
    cut: LinearCut,
    spread: Spread,
    scales: [f32; MOST_RUNS],
    /// The columns on this rank.
    runs: Runs,
    /// True if the projection has a bias.
    has_bias: bool,
    /// Index of the adapters' own bias among the weights.
    low_bias: Option<usize>,
    drops: Option<Drops>,
    /// Format of the operands of the product with W, if they are quantized.
    narrow: Option<NarrowLinear>,
}

/// A product with a new result.
fn into<'a>(a: &'a Tensor, b: &'a Tensor, b_trans: bool, c: &'a Tensor) -> MatMul<'a> {
    MatMul { a, a_trans: false, b, b_trans, c, accumulate: false }
}

impl Lora {
    /// For each run: its columns, the rows of B that compute them, and the columns of `x A^T` that these use.
    fn parts(&self, rank: usize) -> impl Iterator<Item = [Range<usize>; 3]> + '_ {
        let mut first = 0;
        self.runs.iter().enumerate().map(move |(index, (at, columns))| {
            first += columns;
            [at..at + columns, first - columns..first, index * rank..(index + 1) * rank]
        })
    }

    /// Multiplies the columns of each run by its scale.
    fn scaled(&self, x: &Exec<'_>, u: Tensor, rank: usize) -> Tensor {
        let (scales, machine) = (&self.scales[..self.runs.len()], &x.device.machine);
        if scales.iter().all(|scale| *scale == scales[0]) {
            if scales[0] != 1.0 {
                machine.scale(&u, scales[0], &u);
            }
            return u;
        }
        for (index, scale) in scales.iter().enumerate() {
            let run = u.view_cols(index * rank..(index + 1) * rank);
            machine.scale(&run, *scale, &run);
        }
        u
    }

    /// Dropout of the adapters' inputs in this pass, if any, and the keys of its rows.
    #[track_caller]
    fn drops(&self, x: &Exec<'_>, rows: &Tensor) -> Option<(Drops, Tensor)> {
        let drops = self.drops.filter(|_| x.trains)?;
        let keys = x.batch.keys.as_ref()?.view_cols(x.rows.clone());
        assert_eq!(keys.cols(), rows.rows(), "lora {}: dropout of rows that ranks share", self.name);
        Some((drops, keys))
    }

    /// Applies dropout to an adapter's input, or to the gradient by it.
    fn drop(&self, x: &Exec<'_>, (drops, keys): &(Drops, Tensor), run: usize, rows: &Tensor) {
        let first = if self.cut == LinearCut::Rows { x.device.mesh.index(Axis::Tp) * rows.cols() } else { 0 };
        x.device.machine.dropout(rows, keys, drops.of_run(x.layers_on, run, first));
    }

    /// An adapter's input after dropout.
    fn kept(&self, x: &Exec<'_>, drops: &(Drops, Tensor), run: usize, rows: &Tensor) -> Tensor {
        let kept = x.device.empty(rows.rows(), rows.cols(), rows.dtype(), Category::Workspace);
        x.device.machine.copy(rows, &kept);
        self.drop(x, drops, run, &kept);
        kept
    }

    /// `scale x A^T`.
    fn low(&self, x: &Exec<'_>, rows: &Tensor, a: &Tensor) -> Tensor {
        let (runs, u) = (self.runs.len(), (rows.rows(), a.rows()));
        let (rank, u) = (a.rows() / runs, x.device.empty(u.0, u.1, rows.dtype(), Category::Workspace));
        match self.drops(x, rows) {
            None => x.matmul(into(rows, a, true, &u)),
            Some(drops) => (0..runs).for_each(|run| {
                let own = run * rank..(run + 1) * rank;
                let kept = self.kept(x, &drops, run, rows);
                x.matmul(into(&kept, &a.view_rows(own.clone()), true, &u.view_cols(own)));
            }),
        }
        self.scaled(x, u, rank)
    }

    /// Adds `du A` to `c`.
    fn low_input(&self, x: &Exec<'_>, du: &Tensor, a: &Tensor, c: &Tensor) {
        let Some(drops) = self.drops(x, du) else {
            return x.matmul(MatMul { accumulate: true, ..into(du, a, false, c) });
        };
        let rank = a.rows() / self.runs.len();
        for run in 0..self.runs.len() {
            let own = run * rank..(run + 1) * rank;
            let term = x.device.empty(c.rows(), c.cols(), c.dtype(), Category::Workspace);
            x.matmul(into(&du.view_cols(own.clone()), &a.view_rows(own), false, &term));
            self.drop(x, &drops, run, &term);
            x.device.machine.add(c, &term, c);
        }
    }

    /// `da += du^T x`, or `da = du^T x`.
    fn low_weight(&self, x: &Exec<'_>, du: &Tensor, rows: &Tensor, da: &Tensor) {
        let product = |du: &Tensor, rows: &Tensor, da: &Tensor| {
            x.matmul(MatMul { a: du, a_trans: true, b: rows, b_trans: false, c: da, accumulate: x.adds });
        };
        let Some(drops) = self.drops(x, rows) else { return product(du, rows, da) };
        let rank = da.rows() / self.runs.len();
        for run in 0..self.runs.len() {
            let own = run * rank..(run + 1) * rank;
            let kept = self.kept(x, &drops, run, rows);
            product(&du.view_cols(own.clone()), &kept, &da.view_rows(own));
        }
    }

    /// `scale dy B` for each run: the gradient of `x A^T`.
    fn low_gradient(&self, x: &Exec<'_>, dy: &Tensor, b: &Tensor) -> Tensor {
        let rank = b.cols();
        let du = x.device.empty(dy.rows(), self.runs.len() * rank, dy.dtype(), Category::Workspace);
        for [columns, rows, low] in self.parts(rank) {
            x.matmul(into(&dy.view_cols(columns), &b.view_rows(rows), false, &du.view_cols(low)));
        }
        self.scaled(x, du, rank)
    }

    /// `c = x W^T + scale (x A^T) B^T`.
    fn project(&self, x: &Exec<'_>, rows: &Tensor, [a, b, weight]: [&Tensor; 3], c: &Tensor) {
        if self.narrow.is_some() {
            x.product(self.narrow.as_ref(), Pass::Forward, into(rows, weight, true, c));
            return self.add_term(x, rows, [a, b], c);
        }
        let u = self.low(x, rows, a);
        let part =
            |[columns, rows, low]: [Range<usize>; 3]| (columns.start, u.view_cols(low), b.view_rows(rows));
        let parts: Vec<_> = self.parts(b.cols()).map(part).collect();
        let terms: Vec<_> =
            parts.iter().map(|(first, u, b)| ProductTerm { a: u, b, b_trans: true, first: *first }).collect();
        x.matmul_with(into(rows, weight, true, c), &terms);
    }

    /// `c += scale (x A^T) B^T`.
    fn add_term(&self, x: &Exec<'_>, rows: &Tensor, [a, b]: [&Tensor; 2], c: &Tensor) {
        let u = self.low(x, rows, a);
        for [columns, rows, low] in self.parts(b.cols()) {
            let (u, b, c) = (&u.view_cols(low), &b.view_rows(rows), &c.view_cols(columns));
            x.matmul(MatMul { accumulate: true, ..into(u, b, true, c) });
        }
    }

    /// Adds the adapters' own bias, scaled, to their columns.
    fn add_low_bias(&self, x: &Exec<'_>, bias: &Tensor, to: &Tensor) {
        let scaled = x.device.empty(1, bias.cols(), bias.dtype(), Category::Workspace);
        for (index, [columns, own, _]) in self.parts(0).enumerate() {
            let scaled = scaled.view_cols(own.clone());
            x.device.machine.scale(&bias.view_cols(own), self.scales[index], &scaled);
            x.device.machine.add_bias(&to.view_cols(columns), &scaled);
        }
    }

    /// `c = dy W + du A`, with the gradient of `x A^T` if it exists already.
    fn back(
        &self,
        x: &Exec<'_>,
        (dy, du): (&Tensor, Option<&Tensor>),
        [a, b, weight]: [&Tensor; 3],
        c: &Tensor,
    ) {
        let du = || du.cloned().unwrap_or_else(|| self.low_gradient(x, dy, b));
        let product = into(dy, weight, false, c);
        if self.narrow.is_none() && self.drops(x, dy).is_none() {
            let term = ProductTerm { a: &du(), b: a, b_trans: false, first: 0 };
            return x.matmul_with(product, &[term]);
        }
        x.product(self.narrow.as_ref(), Pass::Input, product);
        self.low_input(x, &du(), a, c);
    }
}

fn three(params: &[Tensor]) -> [&Tensor; 3] {
    [&params[0], &params[1], &params[2]]
}

impl Op for Lora {
    fn name(&self) -> &'static str {
        "lora"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (name, cols) = (self.name, ins[0].cols);
        let [low, low_inner] = params[0];
        let [high, rank] = params[1];
        let [out, inner] = params[2];
        assert_eq!([cols, cols], [inner, low_inner], "lora {name}: x [t, {cols}], weight [{out}, {inner}]");
        assert_eq!(
            [low, high],
            [self.runs.len() * rank, self.runs.columns()],
            "lora {name}: A [{low}, {low_inner}], B [{high}, {rank}] for {:?}",
            self.runs
        );
        let fits = self.runs.iter().all(|(at, columns)| at + columns <= out);
        assert!(fits, "lora {name}: {:?} of {out} columns", self.runs);
        if self.has_bias {
            assert_eq!(params[3], [1, out], "lora {name}: bias of weight [{out}, {inner}]");
        }
        if let Some(low) = self.low_bias {
            assert_eq!(params[low], [1, self.runs.columns()], "lora {name}: bias of {:?}", self.runs);
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
        let of = |[rows, cols]: [usize; 2]| rows as u64 * cols as u64;
        let per = 2 * rows as u64;
        let (low, all) = (per * (of(params[0]) + of(params[1])), per * of(params[2]));
        Flops { forward: all + low, input: all + low, weight: low, extra: 0 }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (from, to) = (&ins[0], &outs[0]);
        let project = |rows: &Tensor, c: &Tensor| self.project(x, rows, three(params), c);
        match self.cut {
            LinearCut::Whole => project(from, to),
            LinearCut::Columns => collected(x, from, to, self.spread, project),
            LinearCut::Rows => summed(x, from, to, self.spread, project),
        }
        if self.has_bias {
            x.device.machine.add_bias(to, &params[3]);
        }
        if let Some(low) = self.low_bias {
            self.add_low_bias(x, &params[low], to);
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let carry = x.carry.take();
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        let back = |dy: &Tensor, c: &Tensor| self.back(x, (dy, None), three(&saved.params), c);
        match self.cut {
            LinearCut::Whole => self.back(x, (dy, carry.as_ref()), three(&saved.params), &dx.tensor),
            LinearCut::Columns => summed(x, dy, &dx.tensor, self.spread, back),
            LinearCut::Rows => collected(x, dy, &dx.tensor, self.spread, back),
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(own) = &dy[0] else { return };
        let (a, b) = (&saved.params[0], &saved.params[1]);
        let whole = |rows: &Tensor, cut: LinearCut| {
            if self.cut == cut { collect(x, rows, self.spread) } else { rows.clone() }
        };
        let product = |a: &Tensor, b: &Tensor, c: &Tensor| {
            x.matmul(MatMul { a, a_trans: true, b, b_trans: false, c, accumulate: true });
        };
        let mut carry = None;
        if dw[..3].iter().any(Option::is_some) {
            let (dy, rows) = (&whole(own, LinearCut::Rows), &whole(saved.input(0), LinearCut::Columns));
            if let Some(db) = &dw[1] {
                let u = self.low(x, rows, a);
                for [columns, rows, low] in self.parts(b.cols()) {
                    product(&dy.view_cols(columns), &u.view_cols(low), &db.view_rows(rows));
                }
            }
            if let Some(da) = &dw[0] {
                let du = self.low_gradient(x, dy, b);
                self.low_weight(x, &du, rows, da);
                carry = Some(du).filter(|_| self.cut == LinearCut::Whole);
            }
            if let Some(dw) = &dw[2] {
                let op = MatMul { a: dy, a_trans: true, b: rows, b_trans: false, c: dw, accumulate: true };
                x.product(self.narrow.as_ref(), Pass::Weight, op);
            }
        }
        if let Some(Some(dbias)) = dw.get(3).filter(|_| self.has_bias) {
            x.device.machine.bias_backward(own, dbias);
        }
        if let Some(dbias) = self.low_bias.and_then(|low| dw[low].as_ref()) {
            for (index, [columns, part, _]) in self.parts(0).enumerate() {
                // Scaled first, so that the sum over tokens continues where the previous tile ended.
                let dy = x.device.empty(own.rows(), part.len(), DType::F32, Category::Workspace);
                x.device.machine.scale(&own.view_cols(columns), self.scales[index], &dy);
                x.device.machine.bias_backward(&dy, &dbias.view_cols(part));
            }
        }
        x.carry = carry;
    }
}
