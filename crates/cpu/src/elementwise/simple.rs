//! Additions, multiples, copies between storage types, zeros.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run};
use super::math::tanh;
use crate::mat::{Mat, MatMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Columns per row when contiguous tensors are cut into new rows, so that even a single long row is shared by the
/// threads.
const PIECE: usize = 4096;

/// Rows that a kernel processes; the last may be shorter.
#[derive(Clone, Copy)]
struct Extent {
    rows: usize,
    cols: usize,
    total: usize,
    cut: bool,
}

impl Extent {
    /// `[rows, cols]`, or pieces of one long row if none of `strides` implies gaps.
    fn new(rows: usize, cols: usize, strides: &[usize]) -> Extent {
        let total = rows * cols;
        if rows <= 1 || strides.iter().all(|stride| *stride == cols) {
            Extent { rows: total.div_ceil(PIECE), cols: PIECE, total, cut: true }
        } else {
            Extent { rows, cols, total, cut: false }
        }
    }

    fn mat(&self, mat: Mat) -> Mat {
        Mat { stride: if self.cut { PIECE } else { mat.stride }, ..mat }
    }

    fn mat_mut(&self, mat: MatMut) -> MatMut {
        MatMut { stride: if self.cut { PIECE } else { mat.stride }, ..mat }
    }

    #[inline(always)]
    fn width(&self, row: usize) -> usize {
        self.cols.min(self.total - row * self.cols)
    }
}

/// `out = f(a, b)` element by element; either operand may be `out` itself.
struct Zip<F, T, U, V> {
    f: F,
    a: Mat,
    b: Mat,
    out: MatMut,
    extent: Extent,
    types: PhantomData<fn(T, U, V)>,
}

/// `out = f(x)` element by element; `x` may be `out` itself.
struct Each<F, T, U> {
    f: F,
    x: Mat,
    out: MatMut,
    extent: Extent,
    types: PhantomData<fn(T, U)>,
}

impl<F: Fn(f32, f32) -> f32 + Sync, T: Float, U: Float, V: Float> Kernel for Zip<F, T, U, V> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for row in part {
            // An operand that is also the output is read through the output's slice, as Rust requires.
            // SAFETY: rows and columns named by the caller.
            unsafe {
                let cols = self.extent.width(row);
                let out = self.out.row::<V>(row, cols);
                match (self.a.ptr == self.out.ptr, self.b.ptr == self.out.ptr) {
                    (true, true) => out.iter_mut().for_each(|x| *x = V::narrow((self.f)(x.wide(), x.wide()))),
                    (true, false) => {
                        for (out, b) in out.iter_mut().zip(self.b.row::<U>(row, cols)) {
                            *out = V::narrow((self.f)(out.wide(), b.wide()));
                        }
                    }
                    (false, true) => {
                        for (out, a) in out.iter_mut().zip(self.a.row::<T>(row, cols)) {
                            *out = V::narrow((self.f)(a.wide(), out.wide()));
                        }
                    }
                    (false, false) => {
                        let (a, b) = (self.a.row::<T>(row, cols), self.b.row::<U>(row, cols));
                        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                            *out = V::narrow((self.f)(a.wide(), b.wide()));
                        }
                    }
                }
            }
        }
    }
}

/// The function of [`Each`], for an instruction set.
trait Map: Sync {
    fn at<L: Level>(&self, x: f32) -> f32;
}

impl<F: Map, T: Float, U: Float> Kernel for Each<F, T, U> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        for row in part {
            // SAFETY: rows and columns named by the caller.
            unsafe {
                let cols = self.extent.width(row);
                let out = self.out.row::<U>(row, cols);
                if self.x.ptr == self.out.ptr {
                    for out in out {
                        *out = U::narrow(self.f.at::<L>(out.wide()));
                    }
                } else {
                    for (out, x) in out.iter_mut().zip(self.x.row::<T>(row, cols)) {
                        *out = U::narrow(self.f.at::<L>(x.wide()));
                    }
                }
            }
        }
    }
}

/// `out = a + b`, `[rows, cols]` each, any storage; `out` may be `a` or `b`.
///
/// # Safety
/// See the module documentation. An operand at the address of `out` has its storage and stride.
pub unsafe fn add(place: Place<'_>, rows: usize, cols: usize, a: Mat, b: Mat, out: MatMut) {
    // SAFETY: the caller's promise.
    unsafe { zip(place, [rows, cols], [a, b], |a, b| a + b, out) }
}

/// `out = a b`, any storage; `out` may be `a`. If `row`, `b` is `[1, cols]` and is used for every row.
///
/// # Safety
/// See [`add`].
pub unsafe fn multiply(
    place: Place<'_>,
    rows: usize,
    cols: usize,
    a: Mat,
    (b, row): (Mat, bool),
    out: MatMut,
) {
    let b = if row { Mat { stride: 0, ..b } } else { b };
    // SAFETY: the caller's promise.
    unsafe { zip(place, [rows, cols], [a, b], |a, b| a * b, out) }
}

unsafe fn zip(
    place: Place<'_>,
    [rows, cols]: [usize; 2],
    [a, b]: [Mat; 2],
    f: impl Fn(f32, f32) -> f32 + Sync,
    out: MatMut,
) {
    for operand in [a, b] {
        check_in_place("zip", operand, out);
    }
    let extent = Extent::new(rows, cols, &[a.stride, b.stride, out.stride]);
    let (a, b, out) = (extent.mat(a), extent.mat(b), extent.mat_mut(out));
    let bytes = extent.cols * (a.elem.bytes() + b.elem.bytes() + out.elem.bytes());
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(a.elem, T => by_elem!(b.elem, U => by_elem!(out.elem, V => unsafe {
        run(place, &Zip::<_, T, U, V> { f, a, b, out, extent, types: PhantomData }, extent.rows, 1, bytes)
    })));
}

/// `x += bias` on each row of `x`; `bias` is `[1, cols]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn add_bias(place: Place<'_>, rows: usize, cols: usize, x: MatMut, bias: Mat) {
    // A stride of zero makes the single row serve every row.
    let bias = Mat { stride: 0, ..bias };
    // SAFETY: the caller's promise.
    unsafe { add(place, rows, cols, x.as_mat(), bias, x) }
}

struct Times(f32);

impl Map for Times {
    #[inline(always)]
    fn at<L: Level>(&self, x: f32) -> f32 {
        self.0 * x
    }
}

struct Same;

impl Map for Same {
    #[inline(always)]
    fn at<L: Level>(&self, x: f32) -> f32 {
        x
    }
}

struct Rsqrt;

impl Map for Rsqrt {
    #[inline(always)]
    fn at<L: Level>(&self, x: f32) -> f32 {
        1.0 / x.sqrt()
    }
}

struct Softcap(f32);

impl Map for Softcap {
    #[inline(always)]
    fn at<L: Level>(&self, x: f32) -> f32 {
        self.0 * tanh::<L>(x / self.0)
    }
}

unsafe fn each(place: Place<'_>, rows: usize, cols: usize, x: Mat, f: impl Map, out: MatMut) {
    check_in_place("map", x, out);
    let extent = Extent::new(rows, cols, &[x.stride, out.stride]);
    let (x, out) = (extent.mat(x), extent.mat_mut(out));
    let bytes = extent.cols * (x.elem.bytes() + out.elem.bytes());
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(x.elem, T => by_elem!(out.elem, U => unsafe {
        run(place, &Each::<_, T, U> { f, x, out, extent, types: PhantomData }, extent.rows, 1, bytes)
    }));
}

/// `out = factor * x`, any storage; `out` may be `x`.
///
/// # Safety
/// See [`add`].
pub unsafe fn scale(place: Place<'_>, rows: usize, cols: usize, x: Mat, factor: f32, out: MatMut) {
    // SAFETY: the caller's promise.
    unsafe { each(place, rows, cols, x, Times(factor), out) }
}

/// `out = 1 / sqrt(x)`; `out` may be `x`.
///
/// # Safety
/// See [`add`].
pub unsafe fn rsqrt(place: Place<'_>, rows: usize, cols: usize, x: Mat, out: MatMut) {
    // SAFETY: the caller's promise.
    unsafe { each(place, rows, cols, x, Rsqrt, out) }
}

/// `out = x`, converting between storage types.
///
/// # Safety
/// See [`add`].
pub unsafe fn copy(place: Place<'_>, rows: usize, cols: usize, x: Mat, out: MatMut) {
    // SAFETY: the caller's promise.
    unsafe { each(place, rows, cols, x, Same, out) }
}

/// `out = cap tanh(x / cap)`; `out` may be `x`.
///
/// # Safety
/// See [`add`].
pub unsafe fn softcap(place: Place<'_>, rows: usize, cols: usize, x: Mat, cap: f32, out: MatMut) {
    // SAFETY: the caller's promise.
    unsafe { each(place, rows, cols, x, Softcap(cap), out) }
}

fn check_in_place(name: &str, operand: Mat, out: MatMut) {
    let apart = !std::ptr::eq(operand.ptr, out.ptr);
    assert!(
        apart || (operand.elem == out.elem && operand.stride == out.stride),
        "{name}: {operand:?} in place of {out:?}"
    );
}

struct Zero {
    out: MatMut,
    extent: Extent,
}

impl Kernel for Zero {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let size = self.out.elem.bytes();
        for row in part {
            let bytes = self.extent.width(row) * size;
            // SAFETY: rows and columns named by the caller.
            unsafe { self.out.ptr.add(row * self.out.stride * size).write_bytes(0, bytes) }
        }
    }
}

/// Sets all bits to zero.
///
/// # Safety
/// See the module documentation.
pub unsafe fn zero(place: Place<'_>, rows: usize, cols: usize, out: MatMut) {
    let extent = Extent::new(rows, cols, &[out.stride]);
    let kernel = Zero { out: extent.mat_mut(out), extent };
    // SAFETY: the caller's promise; rows are disjoint.
    unsafe { run(place, &kernel, extent.rows, 1, extent.cols * out.elem.bytes()) }
}
