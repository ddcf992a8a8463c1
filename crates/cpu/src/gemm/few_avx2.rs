//! Products of a few rows with a weight stored `[n,k]`, as decoding needs them, with AVX2: B is read once, transposed
//! in registers, widened and used, never packed. The chain of additions is that of the blocked kernel, step for step.
//! Rows of B interleaved by eight need no transposition and are read in order, at full memory rate; transposed rows
//! reached half of it on a Zen 3.
#![allow(unsafe_code)]

use super::{Elem, Gemm, Layout};
use std::arch::x86_64::*;
use std::ops::Range;

/// Largest number of rows.
pub(super) const ROWS: usize = 4;
/// Columns processed together: as many streams as the caches follow.
const COLS: usize = 16;
/// Products of a row of A that are widened at a time.
const CHUNK: usize = 256;
/// Distance in bytes at which a row of B is prefetched.
const AHEAD: usize = 512;

/// Columns `cols` of a product of at most [`ROWS`] rows.
///
/// # Safety
/// See [`super::gemm`]; A is stored `[m,k]` and B `[n,k]`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn few(g: &Gemm, cols: Range<usize>) {
    // SAFETY: passed on.
    unsafe {
        if g.b_layout == Layout::Octets {
            return match g.m {
                1 => octets::<1, 4>(g, cols),
                2 => octets::<2, 4>(g, cols),
                3 => octets::<3, 2>(g, cols),
                _ => octets::<4, 2>(g, cols),
            };
        }
        match (g.m, g.b.elem) {
            (1, Elem::F32) => columns::<1, 8>(g, cols),
            (2, Elem::F32) => columns::<2, 8>(g, cols),
            (3, Elem::F32) => columns::<3, 8>(g, cols),
            (_, Elem::F32) => columns::<4, 8>(g, cols),
            (1, Elem::Bf16) => columns::<1, 16>(g, cols),
            (2, Elem::Bf16) => columns::<2, 16>(g, cols),
            (3, Elem::Bf16) => columns::<3, 16>(g, cols),
            (_, Elem::Bf16) => columns::<4, 16>(g, cols),
        }
    }
}

/// `M` rows by `cols`; `STEP` elements of B, 32 bytes, are read from each column at a time.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn columns<const M: usize, const STEP: usize>(g: &Gemm, cols: Range<usize>) {
    let (size, stride) = (g.b.elem.bytes(), g.b.stride * g.b.elem.bytes());
    let row_bytes = g.k * size;
    let mut a = [[0.0f32; CHUNK]; M];
    for col in cols.clone().step_by(COLS) {
        // Columns past the end repeat the last one and are not stored.
        let rows: [*const u8; COLS] =
            std::array::from_fn(|i| g.b.ptr.wrapping_add((col + i).min(cols.end - 1) * stride));
        // SAFETY: rows of A and B exist, reads end before k.
        unsafe {
            let mut sum = [[_mm256_setzero_ps(); 2]; M];
            if g.accumulate {
                for (row, sum) in sum.iter_mut().enumerate() {
                    *sum = [read(g, row, col, cols.end), read(g, row, col + 8, cols.end)];
                }
            }
            for first in (0..g.k).step_by(CHUNK) {
                let count = CHUNK.min(g.k - first);
                for (row, a) in a.iter_mut().enumerate() {
                    widen_row(g, row, first, &mut a[..count]);
                }
                let whole = count / STEP * STEP;
                for step in (0..whole).step_by(STEP) {
                    let at = (first + step) * size;
                    // At the end of these rows, prefetches the next ones.
                    let ahead = at + AHEAD;
                    let ahead = if ahead < row_bytes { ahead } else { COLS * stride + ahead - row_bytes };
                    if at.is_multiple_of(64) {
                        for row in rows {
                            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(ahead).cast());
                        }
                    }
                    for half in 0..2 {
                        let b = transposed(&rows[8 * half..], at);
                        for (i, b) in b.into_iter().enumerate() {
                            for row in 0..M {
                                let a = a[row].as_ptr().add(step);
                                if STEP == 8 {
                                    let x = _mm256_broadcast_ss(&*a.add(i));
                                    sum[row][half] = _mm256_fmadd_ps(x, b, sum[row][half]);
                                } else {
                                    let bits = _mm256_castps_si256(b);
                                    let low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
                                    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
                                    let high = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
                                    let (x, y) = (
                                        _mm256_broadcast_ss(&*a.add(2 * i)),
                                        _mm256_broadcast_ss(&*a.add(2 * i + 1)),
                                    );
                                    sum[row][half] = _mm256_fmadd_ps(x, low, sum[row][half]);
                                    sum[row][half] = _mm256_fmadd_ps(y, high, sum[row][half]);
                                }
                            }
                        }
                    }
                }
                for step in whole..count {
                    for half in 0..2 {
                        let b = single(&rows[8 * half..], g.b.elem, first + step);
                        for row in 0..M {
                            let x = _mm256_set1_ps(a[row][step]);
                            sum[row][half] = _mm256_fmadd_ps(x, b, sum[row][half]);
                        }
                    }
                }
            }
            for (row, sum) in sum.into_iter().enumerate() {
                write(g, row, col, cols.end, sum[0]);
                write(g, row, col + 8, cols.end, sum[1]);
            }
        }
    }
}

/// Distance in bytes at which a group of eight rows is prefetched.
const OCTET_AHEAD: usize = 2048;

/// `M` rows by `cols`, in groups of eight, `H` of which are processed together so that their chains of additions do not
/// wait for each other.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn octets<const M: usize, const H: usize>(g: &Gemm, cols: Range<usize>) {
    const LINE: usize = 64;
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    let mut a = [[0.0f32; CHUNK]; M];
    for col in cols.clone().step_by(8 * H) {
        // Groups past the end repeat the last one and are not stored.
        let eights: [*const u8; H] =
            std::array::from_fn(|i| g.b.ptr.wrapping_add((col + 8 * i).min(cols.end - 8) * g.k * 2));
        // SAFETY: rows of A and B exist, reads end before k.
        unsafe {
            let mut sum = [[_mm256_setzero_ps(); H]; M];
            if g.accumulate {
                for (row, sum) in sum.iter_mut().enumerate() {
                    *sum = std::array::from_fn(|i| read(g, row, col + 8 * i, cols.end));
                }
            }
            for first in (0..g.k).step_by(CHUNK) {
                let count = CHUNK.min(g.k - first);
                for (row, a) in a.iter_mut().enumerate() {
                    widen_row(g, row, first, &mut a[..count]);
                }
                for step in (0..count).step_by(2) {
                    let at = (first + step) * 16;
                    let mut b = [_mm256_setzero_si256(); H];
                    for (b, from) in b.iter_mut().zip(eights) {
                        if at.is_multiple_of(LINE) {
                            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + OCTET_AHEAD).cast());
                        }
                        *b = _mm256_loadu_si256(from.add(at).cast());
                    }
                    for (a, sum) in a.iter().zip(&mut sum) {
                        let x = _mm256_broadcast_ss(&a[step]);
                        let y = _mm256_broadcast_ss(&a[step + 1]);
                        for (b, sum) in b.into_iter().zip(sum) {
                            let low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b));
                            *sum = _mm256_fmadd_ps(x, low, *sum);
                            *sum = _mm256_fmadd_ps(y, _mm256_castsi256_ps(_mm256_and_si256(b, upper)), *sum);
                        }
                    }
                }
            }
            for (row, sum) in sum.into_iter().enumerate() {
                for (i, sum) in sum.into_iter().enumerate() {
                    write(g, row, col + 8 * i, cols.end, sum);
                }
            }
        }
    }
}

/// 32 bytes of eight rows, transposed to eight vectors with one dword per row.
///
/// # Safety
/// The rows have them.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn transposed(rows: &[*const u8], at: usize) -> [__m256; 8] {
    // SAFETY: the caller's promise.
    let row = |i: usize| unsafe { _mm256_loadu_ps(rows[i].add(at).cast()) };
    let pairs: [[__m256; 2]; 4] = std::array::from_fn(|i| {
        let (x, y) = (row(2 * i), row(2 * i + 1));
        [_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)]
    });
    let fours: [[__m256; 4]; 2] = std::array::from_fn(|i| {
        let ([a, b], [c, d]) = (pairs[2 * i], pairs[2 * i + 1]);
        [
            _mm256_shuffle_ps::<0x44>(a, c),
            _mm256_shuffle_ps::<0xee>(a, c),
            _mm256_shuffle_ps::<0x44>(b, d),
            _mm256_shuffle_ps::<0xee>(b, d),
        ]
    });
    std::array::from_fn(|i| {
        let (x, y) = (fours[0][i % 4], fours[1][i % 4]);
        if i < 4 { _mm256_permute2f128_ps::<0x20>(x, y) } else { _mm256_permute2f128_ps::<0x31>(x, y) }
    })
}

/// Element `at` of eight rows.
///
/// # Safety
/// The rows have it.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn single(rows: &[*const u8], elem: Elem, at: usize) -> __m256 {
    // SAFETY: the caller's promise.
    let values: [f32; 8] = std::array::from_fn(|i| unsafe { value(rows[i], elem, at) });
    // SAFETY: eight values.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// An element of a row.
///
/// # Safety
/// The row has it.
#[inline(always)]
unsafe fn value(row: *const u8, elem: Elem, at: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match elem {
            Elem::F32 => row.cast::<f32>().add(at).read_unaligned(),
            Elem::Bf16 => f32::from_bits(u32::from(row.cast::<u16>().add(at).read_unaligned()) << 16),
        }
    }
}

/// Elements of a row of A from `first` on.
///
/// # Safety
/// The row has them.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn widen_row(g: &Gemm, row: usize, first: usize, out: &mut [f32]) {
    let a = g.a.ptr.wrapping_add(row * g.a.stride * g.a.elem.bytes());
    for (at, out) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *out = unsafe { value(a, g.a.elem, first + at) };
    }
}

/// Address of a row of C from `col`, and the number of columns, at most eight, before `end`.
///
/// # Safety
/// The row exists.
#[inline(always)]
unsafe fn lanes(g: &Gemm, row: usize, col: usize, end: usize) -> (*mut u8, usize) {
    let at = (row * g.c.stride + col) * g.c.elem.bytes();
    (g.c.ptr.wrapping_add(at), end.saturating_sub(col).min(8))
}

/// Eight elements of a row of C from `col`, zero from column `end` on.
///
/// # Safety
/// The row exists.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn read(g: &Gemm, row: usize, col: usize, end: usize) -> __m256 {
    // SAFETY: only existing columns are read.
    unsafe {
        let (c, count) = lanes(g, row, col, end);
        let mut values = [0.0f32; 8];
        for (at, out) in values.iter_mut().enumerate().take(count) {
            *out = value(c, g.c.elem, at);
        }
        _mm256_loadu_ps(values.as_ptr())
    }
}

/// Writes the elements that [`read`] reads.
///
/// # Safety
/// See [`read`].
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn write(g: &Gemm, row: usize, col: usize, end: usize, sum: __m256) {
    // SAFETY: only existing columns are written.
    unsafe {
        let (c, count) = lanes(g, row, col, end);
        let mut values = [0.0f32; 8];
        _mm256_storeu_ps(values.as_mut_ptr(), sum);
        for (at, value) in values.into_iter().enumerate().take(count) {
            match g.c.elem {
                Elem::F32 => c.cast::<f32>().add(at).write_unaligned(value),
                Elem::Bf16 => c.cast::<u16>().add(at).write_unaligned(half::bf16::from_f32(value).to_bits()),
            }
        }
    }
}
