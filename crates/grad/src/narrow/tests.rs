//! A linear layer's three products compared with products of operands rounded by a slow definition.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Element, Machine, Meta, Narrow, PoolUsage, ScaleRule};

use super::{GemmFormat, NarrowWeights, Pass};
use crate::testing::{Matrix, Stream, assert_close, download, levels, upload, weights};
use crate::{Counters, Grads, Places, Scope, Segments, Tape};

/// The nearest number of a format, ties to even; values out of range saturate.
fn nearest(element: Element, x: f64) -> f64 {
    let exponent = (x.abs().log2().floor() as i32).max(element.low());
    let quantum = 2f64.powi(exponent - element.mantissa());
    let most = f64::from(element.most());
    ((x / quantum).round_ties_even() * quantum).clamp(-most, most)
}

/// Rounds an operand whose reduction runs along its columns or not. `largest` is another tensor's magnitude, if the
/// scale is computed from that.
fn round(x: &Matrix, how: Narrow, along_columns: bool, largest: Option<f64>) -> Matrix {
    let [high, wide] = how.block(along_columns).unwrap_or([x.rows, x.cols]);
    let mut out = x.clone();
    for (row, col) in (0..x.rows).step_by(high).flat_map(|r| (0..x.cols).step_by(wide).map(move |c| (r, c))) {
        let rows = row..(row + high).min(x.rows);
        let cells = || rows.clone().flat_map(|r| (col..(col + wide).min(x.cols)).map(move |c| (r, c)));
        let own = cells().fold(0.0, |most: f64, at| most.max(x[at].abs()));
        let most = largest.unwrap_or(own);
        let mut exponent = if most > 0.0 { most.log2().floor() as i32 - how.element.high() } else { 0 };
        if how.rule == ScaleRule::Covers && most > f64::from(how.element.most()) * 2f64.powi(exponent) {
            exponent += 1;
        }
        let scale = 2f64.powi(exponent);
        cells().for_each(|at| out[at] = nearest(how.element, x[at] / scale) * scale);
    }
    out
}

/// A [m, k] by B [n, k].
fn product(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::new(a.rows, b.rows, |r, c| (0..a.cols).map(|i| a[(r, i)] * b[(c, i)]).sum())
}

fn transposed(x: &Matrix) -> Matrix {
    Matrix::new(x.cols, x.rows, |r, c| x[(c, r)])
}

struct Numbers {
    x: Matrix,
    w: Matrix,
    dy: Matrix,
}

impl Numbers {
    fn new(tokens: usize, inner: usize, out: usize, dtype: DType) -> Numbers {
        let uneven = |matrix: Matrix| {
            let Matrix { rows, cols, .. } = matrix;
            Matrix::new(rows, cols, |r, c| matrix[(r, c)] * 2f64.powi((r * 5 % 9 + c * 7 % 11) as i32 - 9))
        };
        let w = Matrix::random(out, inner, 3).times(1.0 / (inner as f64).sqrt());
        let [x, w, dy] = [Matrix::random(tokens, inner, 1), w, Matrix::random(tokens, out, 2)]
            .map(|m| uneven(m).rounded(dtype));
        Numbers { x, w, dy }
    }

    /// y, dx and dw; `largest` for x, w and dy if scales are computed from other tensors.
    fn expected(&self, format: GemmFormat, largest: [Option<f64>; 3]) -> [Matrix; 3] {
        let Numbers { x, w, dy } = self;
        let [x_most, w_most, dy_most] = largest;
        let [xf, wf] = format.operands(Pass::Forward);
        let y = product(&round(x, xf, true, x_most), &round(w, wf, true, w_most));
        let [dyi, wi] = format.operands(Pass::Input);
        let w_by_out = transposed(&round(w, wi, false, w_most));
        let dx = product(&round(dy, dyi, true, dy_most), &w_by_out);
        let [dyw, xw] = format.operands(Pass::Weight);
        let dw =
            product(&transposed(&round(dy, dyw, false, dy_most)), &transposed(&round(x, xw, false, x_most)));
        [y, dx, dw]
    }

    fn largest(&self) -> [Option<f64>; 3] {
        [&self.x, &self.w, &self.dy].map(|m| Some(m.data.iter().fold(0.0, |most: f64, x| most.max(x.abs()))))
    }
}

/// y, dx and dw of each step, and the memory of all.
fn run(
    numbers: &[&Numbers],
    format: GemmFormat,
    dtype: DType,
    machine: Arc<dyn Machine>,
) -> (Vec<[Matrix; 3]>, PoolUsage) {
    let device = &Device::new(machine, 1 << 30);
    let (mut params, ids) = weights(device, std::slice::from_ref(&numbers[0].w), dtype);
    let narrowing = NarrowWeights::new(device, format, &ids, params.len(), 2);
    params.set_narrowing(Some(narrowing));
    let steps = numbers.iter().map(|numbers| {
        let batch = Stream::documents(&[numbers.x.rows], None, 1).upload(device);
        let mut grads = Grads::zeros(device, &params);
        let (counters, places) = (Counters::default(), Places::none());
        let x = upload(device, &numbers.x, dtype, Category::Data, true);
        let dy = upload(device, &numbers.dy, dtype, Category::Data, true);
        let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
        let mut tape = Tape::new(scope, &places).with_input_gradient();
        let y = tape.segment(0, Some(x), &|cx, x| cx.linear("y", x, ids[0], None));
        let found = download(device, &y);
        drop(y);
        let dx = tape.backward(dy, &mut grads).map(|dx| download(device, &dx)).unwrap();
        let dw = grads.get(ids[0]).map(|grad| download(device, grad)).unwrap();
        params.narrowing().unwrap().end_step(device);
        [found, dx, dw]
    });
    let steps = steps.collect();
    (steps, device.pool.usage())
}

#[test]
fn products_are_those_of_rounded_operands() {
    for (tokens, inner, out) in [(1, 32, 5), (70, 96, 33), (200, 130, 160)] {
        for dtype in [DType::F32, DType::Bf16] {
            let numbers = Numbers::new(tokens, inner, out, dtype);
            for format in GemmFormat::ALL {
                let delayed = format == GemmFormat::Fp8Delayed;
                let first = numbers.expected(format, if delayed { [Some(0.0); 3] } else { [None; 3] });
                let second = numbers.expected(format, if delayed { numbers.largest() } else { [None; 3] });
                for isa in levels() {
                    let machine = Arc::new(Cpu::new(2, Some(isa)));
                    let plan = Arc::new(Meta::new(machine.profile().clone()));
                    let (found, usage) = run(&[&numbers, &numbers], format, dtype, machine);
                    let at = format!("{format:?} {dtype:?} {tokens} x {inner} x {out} on {}", isa.name());
                    for (found, expected) in found.iter().zip([&first, &second]) {
                        // Sums of weight gradients are f32; the others are stored in the type of x.
                        let stored = if dtype == DType::Bf16 { 8e-3 } else { 1e-5 };
                        for ((found, expected), (what, tolerance)) in
                            found.iter().zip(expected).zip([("y", stored), ("dx", stored), ("dw", 1e-5)])
                        {
                            assert_close(&at, what, &found.data, &expected.data, tolerance, 0.0);
                        }
                    }
                    assert_eq!(
                        usage,
                        run(&[&numbers, &numbers], format, dtype, plan).1,
                        "{at}: memory of the plan"
                    );
                }
            }
        }
    }
}

#[test]
fn a_history_forgets() {
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let (params, ids) = weights(device, &[Matrix::random(4, 4, 1)], DType::F32);
    let narrowing = NarrowWeights::new(device, GemmFormat::Fp8Delayed, &ids, params.len(), 2);
    let seen = narrowing.seen.as_ref().unwrap();
    let mut befores = Vec::new();
    for most in [3.0f32, 1.0, 2.0, 0.5, f32::INFINITY] {
        let x = device.from_f32(1, 3, &[most, -most, 0.0], Category::Data);
        device.machine.largest(&x, &seen.now);
        narrowing.end_step(device);
        befores.push(device.to_f32(&seen.before));
    }
    assert_eq!(befores, [3.0, 3.0, 2.0, 2.0, 0.5].map(|most| vec![most, most, 0.0]));
    // A saved history resumes where it was.
    let (history, row) = narrowing.history().unwrap();
    let saved = device.to_f32(history);
    let other = NarrowWeights::new(device, GemmFormat::Fp8Delayed, &ids, params.len(), 2);
    device.machine.copy(&device.from_f32(2, 3, &saved, Category::Data), other.history().unwrap().0);
    other.resume(device, row);
    assert_eq!(device.to_f32(&other.seen.as_ref().unwrap().before), befores[4]);
    assert_eq!(other.history().unwrap().1, row);
}
