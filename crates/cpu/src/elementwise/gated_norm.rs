//! RMSNorms with a gate, `silu(z)`, before or after them, and the gate alone; with their gradients.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, LANES, Level, by_elem, madd, run, sum_one};
use super::math::sigmoid;
use super::norm_backward::add_to;
use crate::mat::{Elem, Mat, MatMut};
use fathom_tensor::SUM_CHUNK;
use std::marker::PhantomData;
use std::ops::Range;

/// Most columns that are normalised together.
pub const MOST_WIDTH: usize = 16384;
/// Chunks of rows whose sums are in scratch memory at a time.
const CHUNKS: usize = 64;

/// Operands of a gated norm; see [`fathom_tensor::GatedNormOperands`].
#[derive(Clone, Copy, Debug)]
pub struct GatedNormOperands {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Columns that are normalised together.
    pub width: usize,
    /// `[rows, cols]`.
    pub y: Mat,
    /// `[rows, cols]`, stored like y.
    pub z: Mat,
    /// The weight and its columns: all, or `width` for all groups. `None` for the gate alone.
    pub weight: Option<(Mat, usize)>,
    /// Whether y is gated before it is normalised.
    pub gate_first: bool,
    /// Added to the mean square.
    pub eps: f32,
}

impl GatedNormOperands {
    /// The weight's elements of a group.
    ///
    /// # Safety
    /// The weight is readable and stored as `W`.
    #[inline(always)]
    unsafe fn weight<W>(&self, group: usize) -> Option<&[W]> {
        let (weight, cols) = self.weight.as_ref()?;
        let first = group * self.width % cols;
        // SAFETY: the caller's promise.
        Some(unsafe { &weight.row::<W>(0, *cols)[first..first + self.width] })
    }

    fn check(&self) {
        let fits = self.weight.is_none_or(|(_, cols)| cols == self.cols || cols == self.width);
        let whole = self.width > 0 && self.cols.is_multiple_of(self.width);
        assert!(fits && whole && self.y.elem == self.z.elem, "gated norm: {self:?}");
        assert!(
            self.width <= MOST_WIDTH,
            "gated norm: {} columns are normalised together, at most {MOST_WIDTH} can be",
            self.width
        );
    }

    fn weight_elem(&self) -> Elem {
        self.weight.map_or(Elem::F32, |(weight, _)| weight.elem)
    }
}

/// The gradients that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct GatedNormBackward {
    /// Operands of the forward pass.
    pub of: GatedNormOperands,
    /// Like y.
    pub dout: Mat,
    /// Like y, overwritten.
    pub dy: Option<MatMut>,
    /// Like y, overwritten.
    pub dz: Option<MatMut>,
    /// f32, like the weight, added to.
    pub dweight: Option<MatMut>,
}

struct Forward<'a, T, W> {
    of: &'a GatedNormOperands,
    out: MatMut,
    types: PhantomData<fn(T, W)>,
}

/// Computes `out`, stored like y.
///
/// # Safety
/// See the module documentation.
pub unsafe fn gated_norm(place: Place<'_>, of: &GatedNormOperands, out: MatMut) {
    of.check();
    assert!(out.elem == of.y.elem, "gated norm: storage of {of:?}");
    let bytes = of.cols * of.y.elem.bytes() * 3;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(of.y.elem, T => by_elem!(of.weight_elem(), W => unsafe {
        run(place, &Forward::<T, W> { of, out, types: PhantomData }, of.rows, 1, bytes)
    }));
}

/// The factor of a norm: one over the root mean square of the values that it normalises.
#[inline(always)]
fn inverse(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_one(x, |x| x * x) / x.len() as f32 + eps).sqrt()
}

impl<T: Float, W: Float> Kernel for Forward<'_, T, W> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let of = self.of;
        let (mut gated, mut gates) = ([0.0f32; MOST_WIDTH], [0.0f32; MOST_WIDTH]);
        let (gated, gates) = (&mut gated[..of.width], &mut gates[..of.width]);
        for row in part {
            for group in 0..of.cols / of.width {
                let cols = group * of.width..(group + 1) * of.width;
                // SAFETY: rows and columns named by the descriptor.
                let (y, z, out, weight) = unsafe {
                    (
                        &of.y.row::<T>(row, cols.end)[cols.clone()],
                        &of.z.row::<T>(row, cols.end)[cols.clone()],
                        &mut self.out.row::<T>(row, cols.end)[cols.clone()],
                        of.weight::<W>(group),
                    )
                };
                for ((to, gate), (y, z)) in gated.iter_mut().zip(&mut *gates).zip(y.iter().zip(z)) {
                    let (y, z) = (y.wide(), z.wide());
                    *gate = z * sigmoid::<L>(z);
                    *to = if of.gate_first { y * *gate } else { y };
                }
                let Some(weight) = weight else {
                    for ((out, y), gate) in out.iter_mut().zip(y).zip(&*gates) {
                        *out = T::narrow(y.wide() * gate);
                    }
                    continue;
                };
                let r = inverse(gated, of.eps);
                for (((out, x), weight), gate) in out.iter_mut().zip(&*gated).zip(weight).zip(&*gates) {
                    let n = *x * r * weight.wide();
                    *out = T::narrow(if of.gate_first { n } else { n * gate });
                }
            }
        }
    }
}

/// Bytes of scratch memory that the backward pass needs.
pub fn gated_norm_workspace(rows: usize, cols: usize) -> usize {
    rows.div_ceil(SUM_CHUNK).min(CHUNKS) * cols * 4
}

struct Backward<'a, T, W> {
    op: &'a GatedNormBackward,
    /// The first chunk whose sums are in scratch memory.
    first: usize,
    sums: MatMut,
    types: PhantomData<fn(T, W)>,
}

/// Computes the gradients.
///
/// # Safety
/// See the module documentation; `ws` has the bytes of [`gated_norm_workspace`], aligned to f32.
pub unsafe fn gated_norm_backward(place: Place<'_>, op: &GatedNormBackward, ws: *mut u8) {
    let of = &op.of;
    of.check();
    let written = [op.dy, op.dz].into_iter().flatten().all(|to| to.elem == of.y.elem);
    let wide = op.dweight.is_none_or(|sums| sums.elem == Elem::F32 && of.weight.is_some());
    assert!(op.dout.elem == of.y.elem && written && wide, "gated norm backward: storage of {op:?}");
    let chunks = of.rows.div_ceil(SUM_CHUNK);
    let sums = MatMut { ptr: ws, elem: Elem::F32, stride: of.cols };
    let bytes = SUM_CHUNK * of.cols * of.y.elem.bytes() * 5;
    for first in (0..chunks).step_by(CHUNKS) {
        let count = CHUNKS.min(chunks - first);
        // SAFETY: the caller's promise; chunks have rows and sums of their own.
        by_elem!(of.y.elem, T => by_elem!(of.weight_elem(), W => unsafe {
            run(place, &Backward::<T, W> { op, first, sums, types: PhantomData }, count, 1, bytes)
        }));
        let (Some(dweight), Some((_, cols))) = (&op.dweight, &of.weight) else { continue };
        for chunk in 0..count {
            for from in (0..of.cols).step_by(*cols) {
                // SAFETY: sums written above.
                unsafe { add_to(dweight, 0, &sums.row::<f32>(chunk, of.cols)[from..from + cols]) }
            }
        }
    }
}

/// A group's values between the passes over it.
struct Buffers {
    /// The values that are normalised.
    x: [f32; MOST_WIDTH],
    /// `silu(z)`.
    gate: [f32; MOST_WIDTH],
    /// Its derivative.
    slope: [f32; MOST_WIDTH],
    /// The gradient of the normalised values times the weight.
    h: [f32; MOST_WIDTH],
}

impl<T: Float, W: Float> Kernel for Backward<'_, T, W> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let of = &self.op.of;
        let zeros = [0.0f32; MOST_WIDTH];
        let mut buffers = Buffers { x: zeros, gate: zeros, slope: zeros, h: zeros };
        for chunk in part {
            // SAFETY: this chunk's own row.
            let sums = unsafe { self.sums.row::<f32>(chunk, of.cols) };
            if self.op.dweight.is_some() {
                sums.fill(0.0);
            }
            let start = (self.first + chunk) * SUM_CHUNK;
            for row in start..of.rows.min(start + SUM_CHUNK) {
                for group in 0..of.cols / of.width {
                    // SAFETY: passed on.
                    unsafe { self.group::<L>(row, group, sums, &mut buffers) }
                }
            }
        }
    }
}

/// The sum of `weight h n` over a group, in [`LANES`] lanes.
#[inline(always)]
fn weighted<W: Float>(weight: &[W], h: &[f32], x: &[f32], r: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for ((weight, h), x) in weight.chunks(LANES).zip(h.chunks(LANES)).zip(x.chunks(LANES)) {
        for (((lane, weight), h), x) in lanes.iter_mut().zip(weight).zip(h).zip(x) {
            *lane += weight.wide() * h * (x * r);
        }
    }
    sum_one(&lanes, |x| x)
}

impl<T: Float, W: Float> Backward<'_, T, W> {
    /// One group of a row. With x = y gate or y, h = dout or dout gate, n = x r and w the weight:
    /// `dx = r (w h - n mean(w h n))` and `dw += h n`.
    #[inline(always)]
    unsafe fn group<L: Level>(&self, row: usize, group: usize, sums: &mut [f32], buffers: &mut Buffers) {
        let (op, of) = (self.op, &self.op.of);
        let cols = group * of.width..(group + 1) * of.width;
        let sums = &mut sums[cols.clone()];
        // SAFETY: rows and columns named by the descriptor.
        let (y, z, dout, weight, dy, dz) = unsafe {
            (
                &of.y.row::<T>(row, cols.end)[cols.clone()],
                &of.z.row::<T>(row, cols.end)[cols.clone()],
                &op.dout.row::<T>(row, cols.end)[cols.clone()],
                of.weight::<W>(group),
                op.dy.as_ref().map(|dy| &mut dy.row::<T>(row, cols.end)[cols.clone()]),
                op.dz.as_ref().map(|dz| &mut dz.row::<T>(row, cols.end)[cols.clone()]),
            )
        };
        let n = of.width;
        let (x, gate, slope) = (&mut buffers.x[..n], &mut buffers.gate[..n], &mut buffers.slope[..n]);
        for (((x, gate), slope), (y, z)) in x.iter_mut().zip(&mut *gate).zip(&mut *slope).zip(y.iter().zip(z))
        {
            let (y, z) = (y.wide(), z.wide());
            let s = sigmoid::<L>(z);
            *gate = z * s;
            *slope = s * madd::<L>(z, 1.0 - s, 1.0);
            *x = if of.gate_first { y * *gate } else { y };
        }
        let Some(weight) = weight else {
            return self.gate_alone((y, dout), (gate, slope), (dy, dz));
        };
        let r = inverse(x, of.eps);
        let h = &mut buffers.h[..n];
        for ((h, dout), gate) in h.iter_mut().zip(dout).zip(&*gate) {
            *h = if of.gate_first { dout.wide() } else { dout.wide() * gate };
        }
        let mean = weighted(weight, h, x, r) / n as f32;
        if op.dweight.is_some() {
            for ((sum, h), x) in sums.iter_mut().zip(&*h).zip(&*x) {
                *sum += h * (x * r);
            }
        }
        if let Some(dz) = dz {
            for i in 0..n {
                let (n, w) = (x[i] * r, weight[i].wide());
                let dx = r * (w * h[i] - n * mean);
                let by_gate = if of.gate_first { dx * y[i].wide() } else { dout[i].wide() * n * w };
                dz[i] = T::narrow(by_gate * slope[i]);
            }
        }
        if let Some(dy) = dy {
            for i in 0..n {
                let dx = r * (weight[i].wide() * h[i] - x[i] * r * mean);
                dy[i] = T::narrow(if of.gate_first { dx * gate[i] } else { dx });
            }
        }
    }

    /// Gradients of `y gate`.
    #[inline(always)]
    fn gate_alone(
        &self,
        (y, dout): (&[T], &[T]),
        (gate, slope): (&[f32], &[f32]),
        (dy, dz): (Option<&mut [T]>, Option<&mut [T]>),
    ) {
        if let Some(dy) = dy {
            for ((dy, dout), gate) in dy.iter_mut().zip(dout).zip(gate) {
                *dy = T::narrow(dout.wide() * gate);
            }
        }
        if let Some(dz) = dz {
            for (((dz, dout), slope), y) in dz.iter_mut().zip(dout).zip(slope).zip(y) {
                *dz = T::narrow(dout.wide() * y.wide() * slope);
            }
        }
    }
}
