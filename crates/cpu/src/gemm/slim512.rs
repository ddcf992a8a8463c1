//! Products of many rows into a few columns (the inner side of a low-rank adapter): A is read in place, as packing it
//! would take as long as the arithmetic. B is packed for all of k. The chain of additions is that of the blocked
//! kernel, step for step.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::few512::write;
use super::kernel::{ALIGN, PackRange, Source};
use super::operands::source_b;
use super::pack512::{PAIR, first, transpose_panel};
use super::{Gemm, Layout};
use crate::threads::Threads;

/// Largest number of columns.
pub(super) const COLUMNS: usize = 48;
/// Columns per panel.
const WIDTH: usize = 16;
/// Distance in bytes at which a row of A is prefetched.
const AHEAD: usize = 512;

/// Computes a product of bf16 operands: A `[m,k]`, B in rows or columns, k even, at most [`COLUMNS`] columns, without
/// accumulation.
///
/// # Safety
/// See [`super::gemm`]; `workspace` has [`super::kind::slim_bytes`].
pub(super) unsafe fn slim(threads: &Threads, g: &Gemm, workspace: *mut u8) {
    let packed = workspace.wrapping_add(workspace.align_offset(ALIGN));
    let panels = g.n.div_ceil(WIDTH);
    // SAFETY: the panels fit in the workspace; the operands are the caller's.
    unsafe { pack(&source_b(&g.b, g.b_layout, g.k, g.n), g.b_layout, panels, packed.cast()) };
    let high = if panels == 3 { 8 } else { 12 };
    let part = g.m.div_ceil(8 * threads.count()).next_multiple_of(high);
    let shared = super::operands::SyncOperands((*g, packed.cast_const()));
    let m = g.m;
    threads.run(m.div_ceil(part), &|task, _| {
        let (g, packed) = shared.get();
        let rows = task * part..((task + 1) * part).min(m);
        // SAFETY: each task has its own rows.
        unsafe {
            match panels {
                1 => strip::<12, 1>(&g, rows, packed.cast()),
                2 => strip::<12, 2>(&g, rows, packed.cast()),
                _ => strip::<8, 3>(&g, rows, packed.cast()),
            }
        }
    });
}

/// Packs consecutive panels `[k / 2][16]` of pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack(b: &Source, layout: Layout, panels: usize, to: *mut i32) {
    let steps = b.k / 2;
    for panel in 0..panels {
        let (o0, to) = (panel * WIDTH, to.wrapping_add(panel * steps * WIDTH));
        // SAFETY: a panel holds `steps` rows of sixteen; loads are masked to the columns that exist.
        unsafe {
            if layout == Layout::Columns {
                transpose_panel::<PAIR, WIDTH>(b, o0, PackRange { o0, panels: 1, k0: 0, k1: b.k }, to);
                continue;
            }
            let lanes = first((b.outer - o0).min(WIDTH)) as u16;
            for step in 0..steps {
                let row = b.ptr.cast::<i16>().add(2 * step * b.stride + o0);
                let low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, row));
                let high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, row.add(b.stride)));
                let pair = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                _mm512_storeu_si512(to.add(step * WIDTH).cast(), pair);
            }
        }
    }
}

/// Computes rows of C, `R` at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn strip<const R: usize, const C: usize>(g: &Gemm, rows: Range<usize>, b: *const f32) {
    let mut row = rows.start;
    // SAFETY: passed on; the rows exist.
    unsafe {
        while row + R <= rows.end {
            tile::<R, C>(g, row, b);
            row += R;
        }
        while row + 4 <= rows.end {
            tile::<4, C>(g, row, b);
            row += 4;
        }
        while row < rows.end {
            tile::<1, C>(g, row, b);
            row += 1;
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
unsafe fn tile<const R: usize, const C: usize>(g: &Gemm, row: usize, b: *const f32) {
    let (stride, bytes) = (g.a.stride * 2, g.k * 2);
    let a: [*const u8; R] = std::array::from_fn(|i| g.a.ptr.wrapping_add((row + i) * stride));
    let mut sum = [[_mm512_setzero_ps(); C]; R];
    let mut at = 0;
    // SAFETY: the rows hold `k` elements, a panel `k / 2` rows of sixteen; prefetches may go anywhere.
    unsafe {
        while at < bytes {
            // At the end of these rows, prefetches the next ones.
            let ahead = at.wrapping_add(AHEAD);
            let ahead =
                if ahead < bytes { ahead } else { (R * stride).wrapping_add(ahead).wrapping_sub(bytes) };
            for a in a {
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(ahead).cast());
            }
            let end = at.wrapping_add(64).min(bytes);
            while at < end {
                let mut words = [_mm512_setzero_ps(); C];
                for c in 0..C {
                    words[c] = _mm512_loadu_ps(
                        b.wrapping_add(at.wrapping_mul(4))
                            .wrapping_add(c.wrapping_mul(bytes.wrapping_mul(4))),
                    );
                }
                for r in 0..R {
                    let x = _mm512_set1_epi32(a[r].wrapping_add(at).cast::<i32>().read_unaligned());
                    for c in 0..C {
                        sum[r][c] = _mm512_dpbf16_ps(
                            sum[r][c],
                            std::mem::transmute::<__m512i, __m512bh>(x),
                            std::mem::transmute::<__m512, __m512bh>(words[c]),
                        );
                    }
                }
                at = at.wrapping_add(4);
            }
        }
        for r in 0..R {
            for c in 0..C {
                write(g, row + r, c * WIDTH, g.n, sum[r][c]);
            }
        }
    }
}
