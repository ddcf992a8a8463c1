//! Rounding of elements to few bits (`fathom_tensor::Narrow`), and largest magnitudes.
//!
//! An element is rounded by one addition: the sum of a number of exponent e and `1.5 x 2^(23 - mantissa + e)` has the
//! format's last bit at that exponent as its own last bit, and rounds to it, ties to even, like every f32 addition.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use fathom_tensor::Narrow;

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run};
use crate::mat::{Elem, Mat, MatMut};

/// Columns processed together: whole blocks.
const STRIP: usize = 128;
const INFINITE: u32 = 0x7f80_0000;

/// Rounding of elements to a format.
pub struct Round {
    /// The format.
    pub how: Narrow,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Block shape for scales, or the exponent of a single scale.
    pub scale: Scale,
    /// Elements to round.
    pub x: Mat,
    /// Result: `nearest(x / scale) x scale`, of any storage.
    pub out: MatMut,
}

/// Source of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The largest element of each block of this many rows and columns; the columns divide 128.
    Blocks([usize; 2]),
    /// Two to this power, for all elements.
    Power(i32),
}

/// Two to a power between -127 and 127.
#[inline(always)]
fn power(exponent: i32) -> f32 {
    let normal = ((exponent + 127) as u32) << 23;
    f32::from_bits(if exponent < -126 { 1 << 22 } else { normal })
}

/// The bits of a magnitude; 0 if it is not finite.
#[inline(always)]
fn finite(x: f32) -> u32 {
    let bits = x.to_bits() & 0x7fff_ffff;
    if bits < INFINITE { bits } else { 0 }
}

/// Constants of a format.
#[derive(Clone, Copy)]
struct Grid {
    most: f32,
    /// The least normal number.
    least: f32,
    /// Multiplier from a number's power of two to the addend.
    addend: f32,
}

impl Grid {
    fn of(how: Narrow) -> Grid {
        let element = how.element;
        Grid {
            most: element.most(),
            least: power(element.low()),
            addend: 1.5 * power(23 - element.mantissa()),
        }
    }

    /// Rounds `x`; `down` is the reciprocal of the scale, `up` the scale.
    #[inline(always)]
    fn round(self, x: f32, down: f32, up: f32) -> f32 {
        let y = (x * down).max(-self.most).min(self.most);
        let exponent = f32::from_bits(y.to_bits() & INFINITE).max(self.least);
        let addend = exponent * self.addend;
        let near = ((y + addend) - addend).copysign(x) * up;
        if x.to_bits() & INFINITE == INFINITE { x } else { near }
    }
}

struct Rounding<'a, T, U> {
    call: &'a Round,
    grid: Grid,
    /// Rows per band, columns per block.
    block: [usize; 2],
    types: PhantomData<fn(T, U)>,
}

/// Rounds elements.
///
/// # Safety
/// See the module documentation; x and out are distinct.
///
/// # Panics
/// If the columns of blocks do not divide 128.
pub unsafe fn narrow(place: Place<'_>, call: &Round) {
    let block = match call.scale {
        Scale::Blocks(block) => block,
        Scale::Power(_) => [1, STRIP],
    };
    assert!(block[0] > 0 && block[1] > 0 && STRIP.is_multiple_of(block[1]), "narrow: blocks of {block:?}");
    let bytes = block[0] * call.cols * (2 * call.x.elem.bytes() + call.out.elem.bytes());
    let (bands, grid) = (call.rows.div_ceil(block[0]), Grid::of(call.how));
    // SAFETY: the caller's promise; bands are disjoint.
    by_elem!(call.x.elem, T => by_elem!(call.out.elem, U => unsafe {
        run(place, &Rounding::<T, U> { call, grid, block, types: PhantomData }, bands, 1, bytes)
    }));
}

impl<T: Float, U: Float> Rounding<'_, T, U> {
    /// The reciprocal of the scale, and the scale, for each column of a strip.
    ///
    /// # Safety
    /// The rows and columns exist.
    #[inline(always)]
    unsafe fn scales(&self, rows: Range<usize>, cols: Range<usize>) -> [[f32; STRIP]; 2] {
        let (call, width) = (self.call, cols.len());
        let wide = self.block[1];
        if let Scale::Power(exponent) = call.scale {
            return [[power(-exponent); STRIP], [power(exponent); STRIP]];
        }
        let mut tops = [0u32; STRIP];
        for row in rows {
            // SAFETY: the caller's promise.
            let x = unsafe { &call.x.row::<T>(row, cols.end)[cols.start..] };
            for (top, x) in tops[..width].iter_mut().zip(x) {
                *top = (*top).max(finite(x.wide()));
            }
        }
        let mut scales = [[1.0; STRIP]; 2];
        let [down, up] = &mut scales;
        for (block, tops) in tops.chunks(wide).enumerate() {
            let top = tops.iter().fold(0, |most: u32, top| most.max(*top));
            let exponent = call.how.exponent(f32::from_bits(top));
            let columns = block * wide..(block + 1) * wide;
            down[columns.clone()].fill(power(-exponent));
            up[columns].fill(power(exponent));
        }
        scales
    }
}

impl<T: Float, U: Float> Kernel for Rounding<'_, T, U> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let (call, high) = (self.call, self.block[0]);
        for band in part {
            let rows = band * high..((band + 1) * high).min(call.rows);
            for from in (0..call.cols).step_by(STRIP) {
                let cols = from..(from + STRIP).min(call.cols);
                // SAFETY: rows and columns named by the caller; bands are disjoint.
                unsafe {
                    let [down, up] = self.scales(rows.clone(), cols.clone());
                    for row in rows.clone() {
                        let x = &call.x.row::<T>(row, cols.end)[cols.start..];
                        let out = &mut call.out.row::<U>(row, cols.end)[cols.start..];
                        for (((out, x), down), up) in out.iter_mut().zip(x).zip(&down).zip(&up) {
                            *out = U::narrow(self.grid.round(x.wide(), *down, *up));
                        }
                    }
                }
            }
        }
    }
}

struct Largest<'a, T> {
    cols: usize,
    x: Mat,
    most: &'a AtomicU32,
    types: PhantomData<fn(T)>,
}

/// The largest finite magnitude of `[rows, cols]`; 0 if there is none.
///
/// # Safety
/// See the module documentation.
pub unsafe fn largest(place: Place<'_>, rows: usize, cols: usize, x: Mat) -> f32 {
    let most = AtomicU32::new(0);
    // SAFETY: the caller's promise.
    by_elem!(x.elem, T => unsafe {
        let kernel = Largest::<T> { cols, x, most: &most, types: PhantomData };
        run(place, &kernel, rows, 1, cols * x.elem.bytes())
    });
    f32::from_bits(most.into_inner())
}

impl<T: Float> Kernel for Largest<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let mut tops = [0u32; STRIP];
        for row in part {
            // SAFETY: rows and columns named by the caller.
            let x = unsafe { self.x.row::<T>(row, self.cols) };
            for x in x.chunks(STRIP) {
                for (top, x) in tops.iter_mut().zip(x) {
                    *top = (*top).max(finite(x.wide()));
                }
            }
        }
        // The bits of positive numbers have the order of the numbers, and a maximum does not depend on order.
        self.most.fetch_max(tops.iter().fold(0, |most, top| most.max(*top)), Ordering::Relaxed);
    }
}

struct ByColumn<T> {
    rows: usize,
    x: Mat,
    out: MatMut,
    types: PhantomData<fn(T)>,
}

/// `out = max(out, |x|)` by column, over finite elements; out is f32 `[1, cols]`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn largest_by_column(place: Place<'_>, rows: usize, cols: usize, x: Mat, out: MatMut) {
    assert!(out.elem == Elem::F32, "largest: by column into {out:?}");
    // SAFETY: the caller's promise; columns are disjoint.
    by_elem!(x.elem, T => unsafe {
        run(place, &ByColumn::<T> { rows, x, out, types: PhantomData }, cols, 64, rows * x.elem.bytes())
    });
}

impl<T: Float> Kernel for ByColumn<T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        // SAFETY: rows and columns named by the caller; only this call uses these columns of the output.
        unsafe {
            let out = std::slice::from_raw_parts_mut(self.out.ptr.cast::<f32>().add(part.start), part.len());
            for row in 0..self.rows {
                for (out, x) in out.iter_mut().zip(&self.x.row::<T>(row, part.end)[part.start..]) {
                    *out = out.max(f32::from_bits(finite(x.wide())));
                }
            }
        }
    }
}
