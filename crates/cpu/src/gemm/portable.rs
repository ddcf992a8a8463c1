//! The kernel in plain Rust, and its packing: f32 panels `[k][width]`. The AVX2 kernel has the same panels.
#![allow(unsafe_code)]

use half::bf16;

use super::Elem;
use super::kernel::{PackRange, Panels, Source};

pub(super) const MR: usize = 4;
pub(super) const NR: usize = 8;

/// `c + a * b`: rounded once if the processor has that instruction, otherwise twice.
#[inline(always)]
fn madd(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { c + a * b }
}

/// See [`super::kind::Micro`].
///
/// # Safety
/// `panels` have `steps` sums, `c` is an MR x NR tile.
pub(super) unsafe fn micro(steps: usize, panels: Panels, c: *mut f32, _rows: usize, fresh: bool) {
    // SAFETY: the extents are the caller's promise.
    let (a, b, c) = unsafe {
        (
            std::slice::from_raw_parts(panels.a.cast::<[f32; MR]>(), steps),
            std::slice::from_raw_parts(panels.b.cast::<[f32; NR]>(), steps),
            &mut *c.cast::<[[f32; NR]; MR]>(),
        )
    };
    let mut sum = if fresh { [[0.0f32; NR]; MR] } else { *c };
    for (a, b) in a.iter().zip(b) {
        for i in 0..MR {
            for j in 0..NR {
                sum[i][j] = madd(a[i], b[j], sum[i][j]);
            }
        }
    }
    *c = sum;
}

/// Packs A for [`micro`].
///
/// # Safety
/// See [`super::kind::Pack`].
pub(super) unsafe fn pack_a(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on.
    unsafe { pack::<MR>(source, cut, dst) }
}

/// Packs B for [`micro`].
///
/// # Safety
/// See [`super::kind::Pack`].
pub(super) unsafe fn pack_b(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on.
    unsafe { pack::<NR>(source, cut, dst) }
}

/// Packs panels of `W` outer indices: f32 `[k][W]`, zeros beyond the operand.
///
/// # Safety
/// See [`super::kind::Pack`].
#[inline(always)]
pub(super) unsafe fn pack<const W: usize>(source: &Source, cut: PackRange, dst: *mut u8) {
    let steps = cut.k1 - cut.k0;
    for panel in 0..cut.panels {
        let o0 = cut.o0 + panel * W;
        let width = source.outer.saturating_sub(o0).min(W);
        // SAFETY: this panel's part of the destination, W * steps f32.
        let dst = unsafe { std::slice::from_raw_parts_mut(dst.cast::<[f32; W]>().add(panel * steps), steps) };
        for (step, dst) in dst.iter_mut().enumerate() {
            let k = cut.k0 + step;
            *dst = [0.0; W];
            for o in 0..if k < source.k { width } else { 0 } {
                // SAFETY: o0 + o < outer and k < source.k: an element of the operand.
                dst[o] = unsafe { read(source, source.at(o0 + o, k)) };
            }
        }
    }
}

/// Element `at` of the operand, widened.
#[inline(always)]
unsafe fn read(source: &Source, at: usize) -> f32 {
    // SAFETY: the caller passes the offset of an element.
    unsafe {
        match source.elem {
            Elem::F32 => *source.ptr.cast::<f32>().add(at),
            Elem::Bf16 => (*source.ptr.cast::<bf16>().add(at)).to_f32(),
        }
    }
}
