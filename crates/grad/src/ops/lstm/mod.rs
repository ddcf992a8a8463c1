//! The recurrence of an LSTM (Hochreiter and Schmidhuber, 1997) with PyTorch's gates, over the rows of a table: a few
//! virtual tokens, not the tokens of a batch. Products with the state run on the machine, one per row; gates are
//! computed on the host, in f64.

use fathom_tensor::{Category, DType, MatMul, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

struct Lstm {
    name: &'static str,
    reversed: bool,
}

impl Ctx<'_> {
    /// Hidden states [n, h] from rows `z` [n, 4h], the input's contributions to the gates i, f, g and o; those of the
    /// previous state come through `weight` [4h, h] and `bias` [1, 4h]. The state before the first row is zero;
    /// `reversed` starts with the last row. All rows are one sequence, so this must be outside rows regions.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn lstm(
        &mut self,
        name: &'static str,
        z: Val,
        (weight, bias): (ParamId, ParamId),
        reversed: bool,
    ) -> Val {
        only(self.apply(Lstm { name, reversed }, &[z], &[weight, bias]))
    }
}

/// A row's gates, h of each, and its cell.
#[derive(Default)]
struct Cell {
    i: Vec<f64>,
    f: Vec<f64>,
    g: Vec<f64>,
    o: Vec<f64>,
    c: Vec<f64>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Cell {
    /// From the sums before the gates [4h] and the previous cell.
    fn of(sums: &[f64], before: &[f64]) -> Cell {
        let h = before.len();
        let gate = |at: usize, act: fn(f64) -> f64| -> Vec<f64> {
            sums[at * h..(at + 1) * h].iter().map(|x| act(*x)).collect()
        };
        let [i, f, g, o] = [gate(0, sigmoid), gate(1, sigmoid), gate(2, f64::tanh), gate(3, sigmoid)];
        let c = (0..h).map(|at| f[at] * before[at] + i[at] * g[at]).collect();
        Cell { i, f, g, o, c }
    }

    fn hidden(&self) -> Vec<f64> {
        self.o.iter().zip(&self.c).map(|(o, c)| o * c.tanh()).collect()
    }

    /// Gradients of the sums, from that of the hidden state; `dc` is the cell's gradient from later rows, and becomes
    /// that of the previous cell.
    fn backward(&self, dh: &[f64], before: &[f64], dc: &mut [f64]) -> Vec<f64> {
        let h = dh.len();
        let mut sums = vec![0.0; 4 * h];
        for at in 0..h {
            let [i, f, g, o] = [self.i[at], self.f[at], self.g[at], self.o[at]];
            let t = self.c[at].tanh();
            let d = dc[at] + dh[at] * o * (1.0 - t * t);
            sums[at] = d * g * i * (1.0 - i);
            sums[h + at] = d * before[at] * f * (1.0 - f);
            sums[2 * h + at] = d * i * (1.0 - g * g);
            sums[3 * h + at] = dh[at] * t * o * (1.0 - o);
            dc[at] = d * f;
        }
        sums
    }
}

/// Replaces denormal numbers by zeros, like kernels.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// Elements of a tensor on the host.
fn host(x: &Exec<'_>, tensor: &Tensor) -> Vec<f64> {
    x.device.to_f32(tensor).into_iter().map(|x| f64::from(flushed(x))).collect()
}

/// Writes a row; `wide` is an f32 buffer for the conversion.
fn write(x: &Exec<'_>, to: &Tensor, row: usize, (values, wide): (&[f64], &Tensor)) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| flushed(*x as f32).to_le_bytes()).collect();
    x.device.machine.write(wide, &bytes);
    x.device.machine.copy(wide, &to.view_rows(row..row + 1));
}

fn product<'a>(a: &'a Tensor, b: &'a Tensor, b_trans: bool, c: &'a Tensor) -> MatMul<'a> {
    MatMul { a, a_trans: false, b, b_trans, c, accumulate: false }
}

impl Lstm {
    /// The rows in sequence order.
    fn order(&self, rows: usize) -> Vec<usize> {
        if self.reversed { (0..rows).rev().collect() } else { (0..rows).collect() }
    }

    /// The sums before a row's gates: input, previous state and bias.
    fn sums(z: &[f64], state: &[f64], bias: &[f64]) -> Vec<f64> {
        z.iter().zip(state).zip(bias).map(|((z, state), bias)| z + state + bias).collect()
    }

    /// The gradient of the input [n, 4h], in its storage type.
    fn gradient(&self, x: &Exec<'_>, saved: &SavedValues, dy: &Tensor) -> Tensor {
        let (z, y, [weight, bias]) = (saved.input(0), saved.output(0), [0, 1].map(|at| &saved.params[at]));
        let ([n, h], data) = (y.shape(), x.device.machine.has_data());
        let dz = x.device.empty(n, 4 * h, z.dtype(), Category::Workspace);
        let f32s = |rows, cols| x.device.empty(rows, cols, DType::F32, Category::Workspace);
        let (states, below, wide) = (f32s(n, 4 * h), f32s(1, h), f32s(1, 4 * h));
        // Contribution of each row's hidden state to the next row.
        x.matmul(product(y, weight, true, &states));
        let (z, states, bias, dy) = (host(x, z), host(x, &states), host(x, bias), host(x, dy));
        let (order, nothing) = (self.order(n), vec![0.0; 4 * h]);
        let mut cells: Vec<Cell> = Vec::new();
        for (at, row) in order.iter().enumerate().filter(|_| data) {
            let of = |values: &[f64], row: usize| values[row * 4 * h..(row + 1) * 4 * h].to_vec();
            let state = if at == 0 { nothing.clone() } else { of(&states, order[at - 1]) };
            let cell = Cell::of(&Lstm::sums(&of(&z, *row), &state, &bias), &self.before(&cells, at, h));
            cells.push(cell);
        }
        let mut dc = vec![0.0; h];
        for at in (0..n).rev() {
            let later = (at + 1 < n).then(|| order[at + 1]);
            if let Some(later) = later {
                x.matmul(product(&dz.view_rows(later..later + 1), weight, false, &below));
            }
            if data {
                let row = order[at];
                let from_later = if later.is_some() { host(x, &below) } else { vec![0.0; h] };
                let dh: Vec<f64> =
                    dy[row * h..(row + 1) * h].iter().zip(from_later).map(|(a, b)| a + b).collect();
                let before = self.before(&cells, at, h).to_vec();
                let sums = cells[at].backward(&dh, &before, &mut dc);
                write(x, &dz, row, (&sums, &wide));
            }
        }
        dz
    }

    /// The cell before that at a position of the sequence; zeros before the first.
    fn before<'c>(&self, cells: &'c [Cell], at: usize, h: usize) -> std::borrow::Cow<'c, [f64]> {
        match at.checked_sub(1) {
            Some(before) => std::borrow::Cow::Borrowed(&cells[before].c),
            None => std::borrow::Cow::Owned(vec![0.0; h]),
        }
    }
}

impl Op for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (name, cols, h) = (self.name, ins[0].cols, params[0][1]);
        assert!(
            cols == 4 * h && *params == [[4 * h, h], [1, 4 * h]],
            "lstm {name}: weights {params:?} of x [n, {cols}]"
        );
        vec![Out::new(name, h, ins[0].dtype)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0], outs: vec![0] }
    }

    fn flops(&self, rows: usize, _: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let product = 2 * (rows * params[0][0] * params[0][1]) as u64;
        Flops { forward: product, input: product, weight: product, extra: product }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (out, data) = (&outs[0], x.device.machine.has_data());
        let [n, h] = out.shape();
        let f32s = |cols| x.device.empty(1, cols, DType::F32, Category::Workspace);
        let (state, wide) = (f32s(4 * h), f32s(h));
        let (z, bias) = (host(x, &ins[0]), host(x, &params[1]));
        let (mut c, mut before) = (vec![0.0; h], None);
        for row in self.order(n) {
            if let Some(before) = before {
                x.matmul(product(&out.view_rows(before..before + 1), &params[0], true, &state));
            }
            if data {
                let state = if before.is_some() { host(x, &state) } else { vec![0.0; 4 * h] };
                let cell = Cell::of(&Lstm::sums(&z[row * 4 * h..(row + 1) * 4 * h], &state, &bias), &c);
                write(x, out, row, (&cell.hidden(), &wide));
                c = cell.c;
            }
            before = Some(row);
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let carry = x.carry.take();
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        let dz = carry.unwrap_or_else(|| self.gradient(x, saved, dy));
        x.device.machine.copy(&dz, &dx.tensor);
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        let (dz, y) = (self.gradient(x, saved, dy), saved.output(0));
        let n = y.rows();
        if let Some(c) = dw[0].as_ref().filter(|_| n > 1) {
            // The term of each row but the first of the sequence, with the previous state.
            let [rows, before] = if self.reversed { [0..n - 1, 1..n] } else { [1..n, 0..n - 1] };
            let (a, b) = (&dz.view_rows(rows), &y.view_rows(before));
            x.matmul(MatMul { a, a_trans: true, b, b_trans: false, c, accumulate: true });
        }
        if let Some(dbias) = &dw[1] {
            x.device.machine.bias_backward(&dz, dbias);
        }
        x.carry = Some(dz);
    }
}
