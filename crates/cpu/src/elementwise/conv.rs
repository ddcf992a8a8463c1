//! Causal depthwise convolutions over the rows of each document, with their gradients.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use super::math::sigmoid;
use super::norm_backward::add_to;
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::{DocumentRun, SUM_CHUNK};
use std::marker::PhantomData;
use std::ops::Range;

/// Most rows that an output depends on.
pub const MOST_TAPS: usize = 8;
/// Taps of nearly all models.
const FOUR: usize = 4;
/// Columns processed at a time.
const BLOCK: usize = 256;

/// Operands of a convolution; see [`fathom_tensor::ConvOperands`].
#[derive(Clone, Copy, Debug)]
pub struct ConvOperands<'a> {
    /// The documents of the rows.
    pub runs: &'a [DocumentRun],
    /// Columns.
    pub cols: usize,
    /// Rows that an output depends on.
    pub taps: usize,
    /// `[rows, cols]`.
    pub u: Mat,
    /// `[cols, taps]`.
    pub weight: Mat,
    /// `[1, cols]`, stored like the weight.
    pub bias: Option<Mat>,
    /// Whether the result is `x sigmoid(x)` of the sum.
    pub silu: bool,
}

/// A convolution.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Operands.
    pub of: ConvOperands<'a>,
    /// f32 `[taps - 1, cols]` for each run, the rows before it, replaced by its last; or empty.
    pub states: &'a [MatMut],
    /// Like u.
    pub out: MatMut,
}

/// The gradients of a convolution that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct ConvBackward<'a> {
    /// Operands of the forward pass.
    pub of: ConvOperands<'a>,
    /// Like u.
    pub dy: Mat,
    /// Like u, overwritten.
    pub du: Option<MatMut>,
    /// f32 `[cols, taps]`, added to.
    pub dweight: Option<MatMut>,
    /// f32 `[1, cols]`, added to.
    pub dbias: Option<MatMut>,
}

/// Columns of a task, so that all threads have some.
fn grain(place: Place<'_>, cols: usize) -> usize {
    cols.div_ceil(place.threads.count()).next_multiple_of(64).min(BLOCK)
}

fn check(of: &ConvOperands<'_>) {
    let bias_fits = of.bias.is_none_or(|bias| bias.elem == of.weight.elem);
    assert!((1..=MOST_TAPS).contains(&of.taps) && bias_fits, "conv: weights of {of:?}");
}

fn rows(of: &ConvOperands<'_>) -> usize {
    of.runs.last().map_or(0, |run| run.rows.end)
}

struct Forward<'a, T, W>(&'a Conv<'a>, PhantomData<fn(T, W)>);

/// Computes `op.out` and the states.
///
/// # Safety
/// See the module documentation.
pub unsafe fn conv(place: Place<'_>, op: &Conv<'_>) {
    check(&op.of);
    let states_fit = op.states.is_empty() || op.states.len() == op.of.runs.len();
    assert!(op.of.u.elem == op.out.elem && states_fit, "conv: storage of {op:?}");
    let bytes = rows(&op.of) * op.of.u.elem.bytes() * 4;
    // SAFETY: the caller's promise; columns are disjoint.
    by_elem!(op.of.u.elem, T => by_elem!(op.of.weight.elem, W => unsafe {
        run(place, &Forward::<T, W>(op, PhantomData), op.of.cols, grain(place, op.of.cols), bytes)
    }));
}

struct Backward<'a, T, W>(&'a ConvBackward<'a>, PhantomData<fn(T, W)>);

/// Computes the gradients. Sums over rows run in ascending chunks of [`SUM_CHUNK`].
///
/// # Safety
/// See the module documentation.
pub unsafe fn conv_backward(place: Place<'_>, op: &ConvBackward<'_>) {
    check(&op.of);
    let fits = op.dy.elem == op.of.u.elem && op.du.is_none_or(|du| du.elem == op.of.u.elem);
    let wide = [op.dweight, op.dbias].into_iter().flatten().all(|sums| sums.elem == Elem::F32);
    assert!(fits && wide, "conv_backward: storage of {op:?}");
    let bytes = rows(&op.of) * op.of.u.elem.bytes() * 8;
    // SAFETY: the caller's promise; columns are disjoint.
    by_elem!(op.of.u.elem, T => by_elem!(op.of.weight.elem, W => unsafe {
        run(place, &Backward::<T, W>(op, PhantomData), op.of.cols, grain(place, op.of.cols), bytes)
    }));
}

/// Weights of some columns by tap, and their biases.
struct Taps {
    weights: [[f32; BLOCK]; MOST_TAPS],
    bias: [f32; BLOCK],
}

impl Taps {
    #[inline(always)]
    unsafe fn read<W: Float>(of: &ConvOperands<'_>, cols: Range<usize>) -> Taps {
        let mut taps = Taps { weights: [[0.0; BLOCK]; MOST_TAPS], bias: [0.0; BLOCK] };
        for (at, col) in cols.clone().enumerate() {
            // SAFETY: rows of the weight named by the descriptor.
            let weight = unsafe { of.weight.row::<W>(col, of.taps) };
            for (tap, weight) in weight.iter().enumerate() {
                taps.weights[tap][at] = weight.wide();
            }
        }
        if let Some(bias) = &of.bias {
            // SAFETY: as above.
            let bias = unsafe { &bias.row::<W>(0, cols.end)[cols] };
            for (to, bias) in taps.bias.iter_mut().zip(bias) {
                *to = bias.wide();
            }
        }
        taps
    }
}

/// `sums += weight row`, column by column.
#[inline(always)]
fn tap<L: Level, T: Float>(sums: &mut [f32], weight: &[f32], row: &[T]) {
    for ((sum, weight), x) in sums.iter_mut().zip(weight).zip(row) {
        *sum = madd::<L>(*weight, x.wide(), *sum);
    }
}

/// `start` and four terms `weight row`, column by column, in the order of [`tap`]: nearly all rows of nearly all models.
#[inline(always)]
fn four<L: Level, T: Float>(sums: &mut [f32], start: &[f32], weights: [&[f32]; FOUR], rows: [&[T]; FOUR]) {
    let n = sums.len();
    let (start, [a, b, c, d]) = (&start[..n], weights.map(|weight| &weight[..n]));
    let [p, q, r, s] = rows.map(|row| &row[..n]);
    for i in 0..n {
        let sum = madd::<L>(b[i], q[i].wide(), madd::<L>(a[i], p[i].wide(), start[i]));
        sums[i] = madd::<L>(d[i], s[i].wide(), madd::<L>(c[i], r[i].wide(), sum));
    }
}

/// The four rows up to one, some columns of each.
///
/// # Safety
/// They are rows of u.
#[inline(always)]
unsafe fn four_rows<'a, T: Float>(u: &'a Mat, row: usize, cols: &Range<usize>) -> [&'a [T]; FOUR] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            &u.row::<T>(row - 3, cols.end)[cols.start..],
            &u.row::<T>(row - 2, cols.end)[cols.start..],
            &u.row::<T>(row - 1, cols.end)[cols.start..],
            &u.row::<T>(row, cols.end)[cols.start..],
        ]
    }
}

/// The sums before the activation function of a row, from rows of u, of the state before the run, or zeros.
///
/// # Safety
/// The row is one of the run; the columns are those of `taps`.
#[inline(always)]
unsafe fn sums<L: Level, T: Float>(
    of: &ConvOperands<'_>,
    taps: &Taps,
    (run, row): (&DocumentRun, usize),
    cols: Range<usize>,
    state: Option<&MatMut>,
    sums: &mut [f32; BLOCK],
) {
    let n = cols.len();
    let sums = &mut sums[..n];
    if of.taps == FOUR && row >= run.rows.start + FOUR - 1 {
        let [a, b, c, d, ..] = &taps.weights;
        // SAFETY: rows of u.
        return four::<L, T>(sums, &taps.bias, [a, b, c, d], unsafe { four_rows(&of.u, row, &cols) });
    }
    sums.copy_from_slice(&taps.bias[..n]);
    for (at, weight) in taps.weights[..of.taps].iter().enumerate() {
        let back = of.taps - 1 - at;
        let weight = &weight[..n];
        if row >= run.rows.start + back {
            // SAFETY: a row of u.
            tap::<L, T>(sums, weight, unsafe { &of.u.row::<T>(row - back, cols.end)[cols.clone()] });
        } else if let Some(state) = state {
            // The state's last row is that before the run.
            let from = of.taps - 1 + row - run.rows.start - back;
            // SAFETY: a row of the state, whose columns belong to this task.
            tap::<L, f32>(sums, weight, unsafe { &state.row::<f32>(from, cols.end)[cols.clone()] });
        }
    }
}

impl<T: Float, W: Float> Kernel for Forward<'_, T, W> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let (op, of) = (self.0, &self.0.of);
        for from in part.clone().step_by(BLOCK) {
            let cols = from..part.end.min(from + BLOCK);
            // SAFETY: rows and columns named by the descriptor.
            unsafe {
                let taps = Taps::read::<W>(of, cols.clone());
                let mut before = [0.0f32; BLOCK];
                for (index, run) in of.runs.iter().enumerate() {
                    let state = op.states.get(index);
                    for row in run.rows.clone() {
                        sums::<L, T>(of, &taps, (run, row), cols.clone(), state, &mut before);
                        let out = &mut op.out.row::<T>(row, cols.end)[cols.clone()];
                        for (out, x) in out.iter_mut().zip(&before) {
                            *out = T::narrow(if of.silu { *x * sigmoid::<L>(*x) } else { *x });
                        }
                    }
                    if let Some(state) = state {
                        keep::<T>(of, run, cols.clone(), state);
                    }
                }
            }
        }
    }
}

/// Replaces a state by the last rows of those before a run and its own.
#[inline(always)]
unsafe fn keep<T: Float>(of: &ConvOperands<'_>, run: &DocumentRun, cols: Range<usize>, state: &MatMut) {
    let (kept, count) = (of.taps - 1, run.rows.len());
    for to in 0..kept {
        // Ascending: a row moves up, so that it is read before it is overwritten.
        // SAFETY: rows of the state and of u, in columns of this task.
        unsafe {
            if to + count < kept {
                let from: &[f32] = &state.row::<f32>(to + count, cols.end)[cols.clone()];
                state.row::<f32>(to, cols.end)[cols.clone()].copy_from_slice(from);
            } else {
                let from = &of.u.row::<T>(run.rows.end + to - kept, cols.end)[cols.clone()];
                let row = &mut state.row::<f32>(to, cols.end)[cols.clone()];
                row.iter_mut().zip(from).for_each(|(to, from)| *to = from.wide());
            }
        }
    }
}

/// Sums over the rows of a chunk: by tap, and of the bias.
struct Sums {
    weights: [[f32; BLOCK]; MOST_TAPS],
    bias: [f32; BLOCK],
}

impl Sums {
    const ZERO: Sums = Sums { weights: [[0.0; BLOCK]; MOST_TAPS], bias: [0.0; BLOCK] };

    /// Adds to the gradients, and starts over.
    #[inline(always)]
    unsafe fn flush(&mut self, op: &ConvBackward<'_>, cols: Range<usize>) {
        // SAFETY: rows and columns of this task.
        unsafe {
            if let Some(dweight) = &op.dweight {
                for (at, col) in cols.clone().enumerate() {
                    let row = dweight.row::<f32>(col, op.of.taps);
                    for (to, sums) in row.iter_mut().zip(&self.weights) {
                        *to += sums[at];
                    }
                }
            }
            if let Some(dbias) = &op.dbias {
                add_to(dbias, cols.start, &self.bias[..cols.len()]);
            }
        }
        *self = Sums::ZERO;
    }
}

impl<T: Float, W: Float> Backward<'_, T, W> {
    /// The gradient of u in a row, from those of the sums of it and the next rows, which are in a ring.
    #[inline(always)]
    unsafe fn input<L: Level>(
        &self,
        taps: &Taps,
        ring: &[[f32; BLOCK]; MOST_TAPS],
        (run, row): (&DocumentRun, usize),
        cols: Range<usize>,
    ) {
        let (of, Some(du)) = (&self.0.of, &self.0.du) else { return };
        let mut sums = [0.0f32; BLOCK];
        let sums = &mut sums[..cols.len()];
        if of.taps == FOUR && row + FOUR <= run.rows.end {
            let [d, c, b, a, ..] = &taps.weights;
            let later = |rows: usize| &ring[(row + rows) % MOST_TAPS][..];
            let rows = [later(0), later(1), later(2), later(3)];
            four::<L, f32>(sums, &[0.0; BLOCK], [a, b, c, d], rows);
        } else {
            for (at, weight) in taps.weights[..of.taps].iter().enumerate().rev() {
                let later = row + of.taps - 1 - at;
                if later < run.rows.end {
                    tap::<L, f32>(sums, weight, &ring[later % MOST_TAPS]);
                }
            }
        }
        // SAFETY: a row of du, in columns of this task.
        let to = unsafe { &mut du.row::<T>(row, cols.end)[cols] };
        for (to, x) in to.iter_mut().zip(sums) {
            *to = T::narrow(*x);
        }
    }

    /// The gradient of a row's sums; adds to those of weights.
    #[inline(always)]
    unsafe fn row<L: Level>(
        &self,
        taps: &Taps,
        (run, row): (&DocumentRun, usize),
        cols: Range<usize>,
        to: &mut [f32; BLOCK],
        totals: &mut Sums,
    ) {
        let (of, n) = (&self.0.of, cols.len());
        // SAFETY: rows and columns named by the descriptor.
        unsafe {
            let mut before = [0.0f32; BLOCK];
            let dy = &self.0.dy.row::<T>(row, cols.end)[cols.clone()];
            if of.silu {
                sums::<L, T>(of, taps, (run, row), cols.clone(), None, &mut before);
                for ((to, x), dy) in to[..n].iter_mut().zip(&before).zip(dy) {
                    let s = sigmoid::<L>(*x);
                    *to = dy.wide() * (s * madd::<L>(*x, 1.0 - s, 1.0));
                }
            } else {
                to[..n].iter_mut().zip(dy).for_each(|(to, dy)| *to = dy.wide());
            }
            if self.0.dweight.is_none() && self.0.dbias.is_none() {
                return;
            }
            totals.bias[..n].iter_mut().zip(&to[..n]).for_each(|(sum, g)| *sum += *g);
            if of.taps == FOUR && row >= run.rows.start + FOUR - 1 {
                let [p, q, r, s] = four_rows::<T>(&of.u, row, &cols).map(|row| &row[..n]);
                let [a, b, c, d, ..] = &mut totals.weights;
                for i in 0..n {
                    a[i] = madd::<L>(to[i], p[i].wide(), a[i]);
                    b[i] = madd::<L>(to[i], q[i].wide(), b[i]);
                    c[i] = madd::<L>(to[i], r[i].wide(), c[i]);
                    d[i] = madd::<L>(to[i], s[i].wide(), d[i]);
                }
                return;
            }
            for at in 0..of.taps {
                let back = of.taps - 1 - at;
                if row >= run.rows.start + back {
                    let u = &of.u.row::<T>(row - back, cols.end)[cols.clone()];
                    tap::<L, T>(&mut totals.weights[at][..n], &to[..n], u);
                }
            }
        }
    }
}

impl<T: Float, W: Float> Kernel for Backward<'_, T, W> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let (op, of) = (self.0, &self.0.of);
        for from in part.clone().step_by(BLOCK) {
            let cols = from..part.end.min(from + BLOCK);
            // SAFETY: rows and columns named by the descriptor.
            unsafe {
                let taps = Taps::read::<W>(of, cols.clone());
                let (mut totals, mut ring) = (Sums::ZERO, [[0.0f32; BLOCK]; MOST_TAPS]);
                for run in of.runs {
                    for row in run.rows.clone() {
                        if row % SUM_CHUNK == 0 {
                            totals.flush(op, cols.clone());
                        }
                        let to = &mut ring[row % MOST_TAPS];
                        self.row::<L>(&taps, (run, row), cols.clone(), to, &mut totals);
                        if row + 1 >= run.rows.start + of.taps {
                            self.input::<L>(&taps, &ring, (run, row + 1 - of.taps), cols.clone());
                        }
                    }
                    let last = run.rows.start.max((run.rows.end + 1).saturating_sub(of.taps));
                    for row in last..run.rows.end {
                        self.input::<L>(&taps, &ring, (run, row), cols.clone());
                    }
                }
                totals.flush(op, cols.clone());
            }
        }
    }
}
