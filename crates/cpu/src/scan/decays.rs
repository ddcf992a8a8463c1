//! Step sizes and decays of a head's rows in a chunk.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::family::Family;
use super::{CHUNK, STRIP, STRIPS};
use crate::attention::simd::Simd;
use crate::elementwise::math::{exp, ln, sigmoid};
use crate::mat::{Elem, Mat};

/// Raw step sizes of decays, with their weights.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// `[rows, heads]`.
    pub raw: Mat,
    /// `[heads]`: logarithms of the decays' rates.
    pub a_log: &'a [f32],
    /// `[heads]`: added to the raw step sizes.
    pub bias: &'a [f32],
    /// Limits of the step sizes.
    pub limit: [f32; 2],
}

/// Factors of the rows of a chunk; zero for rows past its end. With L the sums of log decays, every exponent is a
/// difference of f64 sums, not above zero, and rounded once: no precision is lost far from the chunk's beginning.
pub struct Decays {
    /// The head's rate, below zero: a row's log decay is `delta rate`.
    pub rate: f32,
    /// Step sizes.
    pub delta: [f32; CHUNK],
    /// Their derivative by the raw value; 0 where a limit acts.
    pub slope: [f32; CHUNK],
    /// `e^L_i`.
    pub enter: [f32; CHUNK],
    /// `e^(L_q - L_j)`.
    pub leave: [f32; CHUNK],
    /// Exponent to base 2 from the beginning of the row's strip.
    pub local: [f32; CHUNK],
    /// e to the same.
    pub from: [f32; CHUNK],
    /// e to the exponent from the row to the end of its strip.
    pub to: [f32; CHUNK],
    /// e to the exponent from the end of a strip (column) to the beginning of a later one (row).
    pub between: [[f32; STRIPS]; STRIPS],
    /// `e^L_q`.
    pub whole: f32,
}

/// An element as f32.
#[inline(always)]
pub unsafe fn element(x: &Mat, row: usize, col: usize) -> f32 {
    match x.elem {
        Elem::F32 => x.row::<f32>(row, col + 1)[col],
        Elem::Bf16 => f32::from_bits(u32::from(x.row::<u16>(row, col + 1)[col]) << 16),
    }
}

/// `ln(1 + e^x)` and its derivative; x itself above 20, as PyTorch.
#[inline(always)]
fn softplus<F: Family>(x: f32) -> (f32, f32) {
    let e = exp::<F::L>(if x > 20.0 { 20.0 } else { x });
    let one = 1.0 + e;
    let rounded = one - 1.0;
    // The quotient makes up for the rounding of 1 + e.
    let soft = if rounded == 0.0 { e } else { ln::<F::L>(one) * (e / rounded) };
    if x > 20.0 { (x, 1.0) } else { (soft, sigmoid::<F::L>(x)) }
}

/// e to each exponent, and zero past the end.
#[inline(always)]
fn powers<F: Family>(exponents: &[f32; CHUNK], rows: usize, to: &mut [f32; CHUNK]) {
    for (to, x) in to.iter_mut().zip(exponents) {
        *to = exp::<F::L>(*x);
    }
    to[rows..].fill(0.0);
}

impl Decays {
    /// Room for them.
    pub const ZERO: Decays = Decays {
        rate: 0.0,
        delta: [0.0; CHUNK],
        slope: [0.0; CHUNK],
        enter: [0.0; CHUNK],
        leave: [0.0; CHUNK],
        local: [0.0; CHUNK],
        from: [0.0; CHUNK],
        to: [0.0; CHUNK],
        between: [[0.0; STRIPS]; STRIPS],
        whole: 0.0,
    };

    /// Computes those of a head's rows.
    ///
    /// # Safety
    /// The rows and the head exist.
    #[inline(always)]
    pub unsafe fn read<F: Family>(&mut self, of: &Steps<'_>, rows: Range<usize>, head: usize) {
        let count = rows.len();
        let (bias, [least, most]) = (of.bias[head], of.limit);
        self.rate = -exp::<F::L>(of.a_log[head]);
        let mut raw = [0.0f32; CHUNK];
        for (to, row) in raw.iter_mut().zip(rows) {
            *to = element(&of.raw, row, head) + bias;
        }
        for ((x, delta), slope) in raw.iter().zip(&mut self.delta).zip(&mut self.slope) {
            let (soft, by_raw) = softplus::<F>(*x);
            let limited = if soft < least { least } else { soft };
            let limited = if limited > most { most } else { limited };
            *delta = limited;
            *slope = if limited == soft { by_raw } else { 0.0 };
        }
        self.delta[count..].fill(0.0);
        self.slope[count..].fill(0.0);
        let mut sums = [0.0f64; CHUNK];
        let mut sum = 0.0;
        for (to, delta) in sums.iter_mut().zip(&self.delta) {
            sum += f64::from(*delta) * f64::from(self.rate);
            *to = sum;
        }
        self.exponents::<F>(&sums, count);
    }

    #[inline(always)]
    unsafe fn exponents<F: Family>(&mut self, sums: &[f64; CHUNK], count: usize) {
        let mut exponents = [0.0f32; CHUNK];
        for (to, sum) in exponents.iter_mut().zip(sums) {
            *to = *sum as f32;
        }
        self.whole = exp::<F::L>(exponents[CHUNK - 1]);
        powers::<F>(&exponents, count, &mut self.enter);
        for (to, sum) in exponents.iter_mut().zip(sums) {
            *to = (sums[CHUNK - 1] - sum) as f32;
        }
        powers::<F>(&exponents, count, &mut self.leave);
        let before = |strip: usize| if strip == 0 { 0.0 } else { sums[strip * STRIP - 1] };
        for at in 0..CHUNK {
            exponents[at] = (sums[at] - before(at / STRIP)) as f32;
            self.local[at] = exponents[at] * LOG2_E;
        }
        powers::<F>(&exponents, count, &mut self.from);
        for at in 0..CHUNK {
            exponents[at] = (sums[at / STRIP * STRIP + STRIP - 1] - sums[at]) as f32;
        }
        powers::<F>(&exponents, count, &mut self.to);
        for later in 1..STRIPS {
            for earlier in 0..later {
                let exponent = before(later) - sums[earlier * STRIP + STRIP - 1];
                self.between[later][earlier] = exp::<F::L>(exponent as f32);
            }
        }
    }

    /// Row `row`'s decays from the sixteen rows of `strip`: `e^(L_row - L_j)` where j is not later, zero elsewhere.
    #[inline(always)]
    pub unsafe fn since<F: Family>(&self, row: usize, strip: usize) -> <F::S as Simd>::V {
        let first = strip * STRIP;
        if row / STRIP > strip {
            let factor = self.from[row] * self.between[row / STRIP][strip];
            return F::S::mul(F::S::splat(factor), F::S::load(self.to.as_ptr().add(first)));
        }
        let exponents = F::S::sub(F::S::splat(self.local[row]), F::S::load(self.local.as_ptr().add(first)));
        let earlier = ((2u32 << (row - first)) - 1) as u16;
        F::S::exp2(F::S::select(earlier, exponents, F::S::splat(-1000.0)))
    }

    /// The decays of the sixteen rows of `strip` from row `row`: `e^(L_i - L_row)` where i is not earlier, zero
    /// elsewhere.
    #[inline(always)]
    pub unsafe fn until<F: Family>(&self, row: usize, strip: usize) -> <F::S as Simd>::V {
        let first = strip * STRIP;
        if row / STRIP < strip {
            let factor = self.to[row] * self.between[strip][row / STRIP];
            return F::S::mul(F::S::splat(factor), F::S::load(self.from.as_ptr().add(first)));
        }
        let exponents = F::S::sub(F::S::load(self.local.as_ptr().add(first)), F::S::splat(self.local[row]));
        let later = (0xffff_u32 << (row - first)) as u16;
        F::S::exp2(F::S::select(later, exponents, F::S::splat(-1000.0)))
    }
}
