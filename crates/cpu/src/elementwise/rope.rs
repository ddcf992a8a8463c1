//! Rotary position embedding (Su et al., 2021): tables of cosines and sines, and the rotation.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use crate::mat::{Elem, Mat, MatMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Cosines and sines of positions: `out[t] = [cos | sin](positions[t] * inv_freq) * factor`.
#[derive(Clone, Copy, Debug)]
pub struct RopeTable<'a> {
    /// Position of each row of `out`.
    pub positions: &'a [i32],
    /// Radians per position.
    pub inv_freq: &'a [f32],
    /// Multiplies cosines and sines (YaRN's and LongRoPE's attention factor).
    pub factor: f32,
    /// f32 `[positions, 2 * inv_freq]`.
    pub out: MatMut,
}

/// Rotates the first `rot` columns of each head; the rest are copied.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// Rows.
    pub rows: usize,
    /// Heads per row.
    pub heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Rotated columns of one head, even.
    pub rot: usize,
    /// `[rows, heads * head_dim]`.
    pub x: Mat,
    /// Like x, in other memory.
    pub out: MatMut,
    /// f32 `[rows, rot]`: cosines, then sines.
    pub table: Mat,
    /// Pairs are adjacent columns (GPT-J) instead of halves.
    pub interleaved: bool,
    /// Rotates in the opposite direction: the gradient.
    pub inverse: bool,
    /// Adds to `out`.
    pub accumulate: bool,
}

/// Computes `op.out`. The angle is rounded to f32 before its cosine is taken, as PyTorch models do.
///
/// # Safety
/// See the module documentation.
pub unsafe fn rope_table(place: Place<'_>, op: &RopeTable<'_>) {
    assert!(op.out.elem == Elem::F32, "rope table: the table is f32");
    // A cosine costs about as much as moving 64 bytes.
    let bytes = op.inv_freq.len() * 128;
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, op, op.positions.len(), 1, bytes) }
}

impl Kernel for RopeTable<'_> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let half = self.inv_freq.len();
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (cos, sin) = unsafe { self.out.row::<f32>(row, 2 * half) }.split_at_mut(half);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(self.inv_freq) {
                let (s, c) = (self.positions[row] as f32 * frequency).sin_cos();
                (*cos, *sin) = (c * self.factor, s * self.factor);
            }
        }
    }
}

struct Rotate<'a, T>(&'a Rope, PhantomData<fn(T)>);

/// Computes `op.out`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn rope(place: Place<'_>, op: &Rope) {
    let fits = op.x.elem == op.out.elem && op.table.elem == Elem::F32;
    assert!(fits && op.rot.is_multiple_of(2) && op.rot <= op.head_dim, "rope: {op:?}");
    let bytes = op.heads * op.head_dim * op.x.elem.bytes() * 2;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.x.elem, T => unsafe { run(place, &Rotate::<T>(op, PhantomData), op.rows, 1, bytes) });
}

impl<T: Float> Kernel for Rotate<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        let (dim, rot) = (op.head_dim, op.rot);
        let sign = if op.inverse { -1.0 } else { 1.0 };
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (x, out, table) = unsafe {
                (
                    op.x.row::<T>(row, op.heads * dim),
                    op.out.row::<T>(row, op.heads * dim),
                    op.table.row::<f32>(row, rot),
                )
            };
            let (cos, sin) = table.split_at(rot / 2);
            for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
                if op.accumulate {
                    head::<L, T>(x, out, (cos, sin), op.interleaved, sign, |old, new| {
                        T::narrow(old.wide() + new)
                    });
                } else {
                    head::<L, T>(x, out, (cos, sin), op.interleaved, sign, |_, new| T::narrow(new));
                }
            }
        }
    }
}

/// Rotates one head: `(a, b) -> (a cos - b sin, b cos + a sin)` on each pair.
#[inline(always)]
fn head<L: Level, T: Float>(
    x: &[T],
    out: &mut [T],
    (cos, sin): (&[f32], &[f32]),
    interleaved: bool,
    sign: f32,
    put: impl Fn(T, f32) -> T,
) {
    let half = cos.len();
    let turn = |a: T, b: T, c: f32, s: f32| {
        let (a, b, s) = (a.wide(), b.wide(), sign * s);
        (madd::<L>(a, c, -(b * s)), madd::<L>(b, c, a * s))
    };
    if interleaved {
        let pairs = x.chunks_exact(2).zip(out.chunks_exact_mut(2)).zip(cos.iter().zip(sin));
        for ((x, out), (c, s)) in pairs {
            let (a, b) = turn(x[0], x[1], *c, *s);
            (out[0], out[1]) = (put(out[0], a), put(out[1], b));
        }
    } else {
        // Arrays, so that overlap of the slices is checked once per head rather than by generated code.
        const STEP: usize = 16;
        let (x_low, x_high) = (&x[..half], &x[half..2 * half]);
        let (low, high) = out[..2 * half].split_at_mut(half);
        let whole = half - half % STEP;
        for from in (0..whole).step_by(STEP) {
            let (a, b): (&[T; STEP], &[T; STEP]) = (array(x_low, from), array(x_high, from));
            let (c, s): (&[f32; STEP], &[f32; STEP]) = (array(cos, from), array(sin, from));
            let (mut first, mut second) = ([0.0f32; STEP], [0.0f32; STEP]);
            for i in 0..STEP {
                (first[i], second[i]) = turn(a[i], b[i], c[i], s[i]);
            }
            for i in 0..STEP {
                low[from + i] = put(low[from + i], first[i]);
            }
            for i in 0..STEP {
                high[from + i] = put(high[from + i], second[i]);
            }
        }
        for i in whole..half {
            let (a, b) = turn(x_low[i], x_high[i], cos[i], sin[i]);
            (low[i], high[i]) = (put(low[i], a), put(high[i], b));
        }
    }
    for (out, x) in out[2 * half..].iter_mut().zip(&x[2 * half..]) {
        *out = put(*out, x.wide());
    }
}

/// `N` elements from `from` on.
#[inline(always)]
fn array<T, const N: usize>(x: &[T], from: usize) -> &[T; N] {
    let Some(array) = x[from..].first_chunk() else { unreachable!("rope: a step beyond the pairs") };
    array
}
