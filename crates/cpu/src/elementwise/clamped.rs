//! gpt-oss's gated activation: `(up + 1) gate sigmoid(1.702 gate)`, gate at most 7, up within -7 and 7; x holds gate
//! and up interleaved.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use super::math::sigmoid;
use crate::mat::{Mat, MatMut};
use std::marker::PhantomData;
use std::ops::Range;

const ALPHA: f32 = 1.702;
const LIMIT: f32 = 7.0;

/// Gate and up after clamping, and the gate's sigmoid.
#[inline(always)]
fn parts<L: Level>(gate: f32, up: f32) -> (f32, f32, f32) {
    let gate = if gate > LIMIT { LIMIT } else { gate };
    let up = if up > LIMIT { LIMIT } else { up };
    let up = if up < -LIMIT { -LIMIT } else { up };
    (gate, up, sigmoid::<L>(ALPHA * gate))
}

struct Forward<T> {
    cols: usize,
    x: Mat,
    out: MatMut,
    types: PhantomData<fn(T)>,
}

/// `[rows, 2 cols]` to `[rows, cols]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn clamped(place: Place<'_>, rows: usize, cols: usize, x: Mat, out: MatMut) {
    assert!(x.elem == out.elem, "clamped activation: storage of {x:?} and {out:?}");
    let bytes = cols * x.elem.bytes() * 3;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(x.elem, T => unsafe {
        run(place, &Forward::<T> { cols, x, out, types: PhantomData }, rows, 1, bytes)
    });
}

impl<T: Float> Kernel for Forward<T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for row in part {
            // SAFETY: rows and columns named by the caller.
            let (x, out) =
                unsafe { (self.x.row::<T>(row, 2 * self.cols), self.out.row::<T>(row, self.cols)) };
            for (out, x) in out.iter_mut().zip(x.as_chunks::<2>().0) {
                let (gate, up, s) = parts::<L>(x[0].wide(), x[1].wide());
                *out = T::narrow((up + 1.0) * (gate * s));
            }
        }
    }
}

struct Backward<T> {
    cols: usize,
    x: Mat,
    dy: Mat,
    dx: MatMut,
    types: PhantomData<fn(T)>,
}

/// The gradient: x and dx `[rows, 2 cols]`, dy `[rows, cols]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn clamped_backward(place: Place<'_>, rows: usize, cols: usize, [x, dy]: [Mat; 2], dx: MatMut) {
    assert!(x.elem == dy.elem && x.elem == dx.elem, "clamped activation backward: storage of {x:?}");
    let bytes = cols * x.elem.bytes() * 5;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(x.elem, T => unsafe {
        run(place, &Backward::<T> { cols, x, dy, dx, types: PhantomData }, rows, 1, bytes)
    });
}

impl<T: Float> Kernel for Backward<T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for row in part {
            // SAFETY: rows and columns named by the caller.
            let (x, dy, dx) = unsafe {
                (
                    self.x.row::<T>(row, 2 * self.cols),
                    self.dy.row::<T>(row, self.cols),
                    self.dx.row::<T>(row, 2 * self.cols),
                )
            };
            for ((x, dy), dx) in x.as_chunks::<2>().0.iter().zip(dy).zip(dx.as_chunks_mut::<2>().0) {
                let ([raw_gate, raw_up], dy) = ([x[0].wide(), x[1].wide()], dy.wide());
                let (gate, up, s) = parts::<L>(raw_gate, raw_up);
                let slope = s * madd::<L>(ALPHA * gate, 1.0 - s, 1.0);
                dx[0] = T::narrow(if raw_gate > LIMIT { 0.0 } else { dy * (up + 1.0) * slope });
                dx[1] = T::narrow(if raw_up.abs() > LIMIT { 0.0 } else { dy * gate * s });
            }
        }
    }
}
