//! An adapted projection with a trained magnitude per column (DoRA; Liu et al., 2024, equations 5 and 11): column o of
//! the result is multiplied by `m[o] / |W[o] + scale B[o] A|` and gets its bias. The norm in the divisor is a constant
//! for the gradient (section 4.3 there).
//!
//! Norms are computed from the weights each time, by runs of rows: a run has `W + scale B A` as f32.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, MatMul, Tensor};

use super::lora::{LinearCut, LoraUse, MOST_RUNS, Runs};
use super::{like, only};
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::packed::copy_rows;
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

/// Elements of `W + scale B A` in memory at once.
const ELEMENTS: usize = 1 << 18;

impl Ctx<'_> {
    /// Applies magnitudes m [1, columns of all runs] to the adapted columns of x [t, out], the output of [`Ctx::lora`]
    /// without a bias; `weight`, packed or not, and `bias` are the projection's. If the term is [`LoraUse::fixed`], m
    /// has the column factors.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn rescale(
        &mut self,
        name: &'static str,
        x: Val,
        magnitude: ParamId,
        (weight, bias): super::lora::ProjectionWeights,
        (lora, cut): (LoraUse, LinearCut),
    ) -> Val {
        let ranks = self.spread.ranks;
        let runs = if cut == LinearCut::Columns { lora.runs.part(ranks) } else { lora.runs };
        let (scales, sums, fixed) = (lora.scales, cut == LinearCut::Rows && ranks > 1, lora.fixed);
        let op = Rescale { name, scales, runs, sums, fixed };
        let of_lengths = [lora.a, lora.b, weight].into_iter().filter(|_| !fixed);
        let params: Vec<ParamId> = std::iter::once(magnitude).chain(of_lengths).chain(bias).collect();
        let y = only(self.apply(op, &[x], &params));
        self.takes_packed();
        y
    }
}

struct Rescale {
    name: &'static str,
    scales: [f32; MOST_RUNS],
    runs: Runs,
    /// True if ranks have some columns of the weight each.
    sums: bool,
    /// True if the first weight has the column factors, and nothing else is read but the bias.
    fixed: bool,
}

impl Rescale {
    /// f32 [1, columns of all runs]: the reciprocal of each norm.
    fn inverse_lengths(&self, x: &Exec<'_>, params: &[Tensor]) -> Tensor {
        let weights = [&params[1], &params[2], &params[3]];
        inverse_lengths(x.device, (self.runs, self.scales, self.sums), weights)
    }

    /// Index of the bias among the weights.
    fn bias(&self) -> usize {
        if self.fixed { 1 } else { 4 }
    }

    /// f32 [1, columns of all runs]: the column factors.
    fn factors(&self, x: &Exec<'_>, params: &[Tensor]) -> Tensor {
        if self.fixed {
            return params[0].clone();
        }
        let factors = self.inverse_lengths(x, params);
        x.device.machine.multiply(&factors, &params[0], &factors);
        factors
    }
}

/// f32 [1, columns of all runs]: the reciprocal norm of each row of `W + scale B A`, from weights A, B and W, which may
/// be packed; with `sums`, ranks have some columns of W and A each, and all of them call this.
pub(super) fn inverse_lengths(
    device: &Device,
    (runs, scales, sums): (Runs, [f32; MOST_RUNS], bool),
    [a, b, weight]: [&Tensor; 3],
) -> Tensor {
    let (rank, inner) = (b.cols(), a.cols());
    let squares = device.zeros(1, runs.columns(), DType::F32, Category::Workspace);
    let scaled = device.empty(b.rows(), rank, b.dtype(), Category::Workspace);
    let step = (ELEMENTS / inner.max(1)).max(1);
    let mut first = 0;
    for (index, (at, columns)) in runs.iter().enumerate() {
        let a = a.view_rows(index * rank..(index + 1) * rank);
        let own = first..first + columns;
        device.machine.scale(&b.view_rows(own.clone()), scales[index], &scaled.view_rows(own));
        for start in (0..columns).step_by(step) {
            let rows = start..columns.min(start + step);
            let sum = device.empty(rows.len(), inner, DType::F32, Category::Workspace);
            copy_rows(device, weight, at + rows.start..at + rows.end, &sum);
            let own = first + rows.start..first + rows.end;
            let (low, c) = (&scaled.view_rows(own.clone()), &sum);
            let op = MatMul { a: low, a_trans: false, b: &a, b_trans: false, c, accumulate: true };
            let bytes = device.machine.profile().workspace(&op.desc());
            let ws = device.empty(1, bytes as usize, DType::U8, Category::Workspace);
            device.machine.matmul(&op, &ws);
            let flat = sum.reshape(1, rows.len() * inner);
            device.machine.sum_squares_slots(&flat, inner, &squares.view_cols(own));
        }
        first += columns;
    }
    if sums {
        device.mesh.group(&[Axis::Tp]).all_reduce(device, &squares);
    }
    device.machine.rsqrt(&squares, &squares);
    squares
}

/// `to = from` with the columns of each run multiplied by its factors; the others are copied.
pub(super) fn multiply_runs(x: &Exec<'_>, runs: Runs, from: &Tensor, factors: &Tensor, to: &Tensor) {
    let machine = &x.device.machine;
    let (mut done, mut first) = (0, 0);
    for (at, columns) in runs.iter() {
        if done < at {
            machine.copy(&from.view_cols(done..at), &to.view_cols(done..at));
        }
        done = at + columns;
        let factors = factors.view_cols(first..first + columns);
        machine.multiply(&from.view_cols(at..done), &factors, &to.view_cols(at..done));
        first += columns;
    }
    if done < from.cols() {
        machine.copy(&from.view_cols(done..from.cols()), &to.view_cols(done..from.cols()));
    }
}

/// `sums += ` the sum over rows of `a b`, for the columns of each run, times factors if given; f32 [1, columns of all
/// runs]. Rows are processed in whole chunks.
pub(super) fn sum_runs(
    x: &Exec<'_>,
    runs: Runs,
    ([a, b], factors): ([&Tensor; 2], Option<&Tensor>),
    sums: &Tensor,
) {
    let device = x.device;
    let mut first = 0;
    for (at, columns) in runs.iter() {
        let step = (ELEMENTS / columns.max(1) / fathom_tensor::SUM_CHUNK).max(1) * fathom_tensor::SUM_CHUNK;
        for start in (0..a.rows()).step_by(step) {
            let rows = start..a.rows().min(start + step);
            let product = device.empty(rows.len(), columns, DType::F32, Category::Workspace);
            let [a, b] = [a, b].map(|part| part.view_rows(rows.clone()).view_cols(at..at + columns));
            device.machine.multiply(&a, &b, &product);
            let own = first..first + columns;
            if let Some(factors) = factors {
                device.machine.multiply(&product, &factors.view_cols(own.clone()), &product);
            }
            device.machine.bias_backward(&product, &sums.view_cols(own));
        }
        first += columns;
    }
}

impl Op for Rescale {
    fn name(&self) -> &'static str {
        "rescale"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (name, cols) = (self.name, ins[0].cols);
        if !self.fixed {
            let [out, inner] = params[3];
            assert_eq!(cols, out, "rescale {name}: x [t, {cols}], weight [{out}, {inner}]");
        }
        assert_eq!(params[0], [1, self.runs.columns()], "rescale {name}: lengths of {:?}", self.runs);
        like(name, ins[0])
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.weights { vec![0] } else { vec![] }, outs: vec![] }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let factors = self.factors(x, params);
        multiply_runs(x, self.runs, &ins[0], &factors, &outs[0]);
        if let Some(bias) = params.get(self.bias()) {
            x.device.machine.add_bias(&outs[0], bias);
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            multiply_runs(x, self.runs, dy, &self.factors(x, &saved.params), &dx.tensor);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        if let Some(dm) = &dw[0] {
            // The gradient by the normalised values, added to those of earlier tokens: their order is kept.
            let inverse = (!self.fixed).then(|| self.inverse_lengths(x, &saved.params));
            sum_runs(x, self.runs, ([dy, saved.input(0)], inverse.as_ref()), dm);
        }
        if let Some(Some(dbias)) = dw.get(self.bias()) {
            x.device.machine.bias_backward(dy, dbias);
        }
    }
}
