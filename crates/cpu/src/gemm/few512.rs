//! Products of a few rows with a weight stored `[n,k]`, as decoding needs them: B is read once, transposed in
//! registers and used, never packed. The chain of additions is that of the blocked kernel, step for step.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::lanes512::{narrow, widen};
use super::pack512::{F32, PAIR, first, load, load_transposed, transpose, unit};
use super::{Elem, Gemm};

/// Largest number of f32 rows.
pub(super) const ROWS: usize = 4;
/// Largest number of bf16 rows: beyond it there are not enough registers for the sums and sixteen columns of B (83 to
/// 99 GMAC/s on one core at 8 rows and 66 in blocks, 62 at 12 rows).
pub(super) const ROWS_BF16: usize = 8;
/// Distance in bytes at which a row of B is prefetched.
const AHEAD: usize = 512;

/// Calls a function of one to four rows.
macro_rules! by_rows {
    ($rows:expr, $function:ident, ($($arg:expr),*)) => {
        match $rows {
            1 => $function::<1>($($arg),*),
            2 => $function::<2>($($arg),*),
            3 => $function::<3>($($arg),*),
            _ => $function::<4>($($arg),*),
        }
    };
}

/// Columns `cols` of a product of at most [`ROWS`] rows of f32.
///
/// # Safety
/// See [`super::gemm`]; A is stored `[m,k]` and B `[n,k]`, both f32.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn few_f32(g: &Gemm, cols: Range<usize>) {
    // SAFETY: passed on.
    unsafe { by_rows!(g.m, columns_f32, (g, cols)) }
}

/// Columns `cols` of a product of at most [`ROWS_BF16`] rows of bf16.
///
/// # Safety
/// See [`few_f32`], with both bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn few_bf16(g: &Gemm, cols: Range<usize>) {
    // SAFETY: passed on.
    unsafe {
        match g.m {
            1 => columns_bf16::<1>(g, cols),
            2 => columns_bf16::<2>(g, cols),
            3 => columns_bf16::<3>(g, cols),
            4 => columns_bf16::<4>(g, cols),
            5 | 6 => columns_bf16::<6>(g, cols),
            _ => columns_bf16::<8>(g, cols),
        }
    }
}

/// Columns `cols` of a product of at most [`ROWS`] rows of bf16, with the sums of tiles.
///
/// # Safety
/// See [`few_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn few_tiles(g: &Gemm, cols: Range<usize>) {
    // SAFETY: passed on.
    unsafe { by_rows!(g.m, columns_tiles, (g, cols)) }
}

/// Rows of B for sixteen columns from `col`. Columns past the end repeat the last one and are not stored.
#[inline(always)]
fn rows_from(g: &Gemm, col: usize, end: usize) -> [*const u8; 16] {
    let stride = g.b.stride * g.b.elem.bytes();
    std::array::from_fn(|i| g.b.ptr.wrapping_add((col + i).min(end - 1) * stride))
}

/// Prefetches ahead of dword `step` of these rows; at their end, the next sixteen rows.
#[inline(always)]
fn fetch(g: &Gemm, rows: &[*const u8; 16], step: usize) {
    let (row, stride) = (g.k * g.b.elem.bytes(), g.b.stride * g.b.elem.bytes());
    let ahead = step * 4 + AHEAD;
    let ahead = if ahead < row { ahead } else { 16 * stride + ahead - row };
    for row in rows {
        // SAFETY: a hint, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(ahead).cast()) };
    }
}

/// Sums of sixteen columns from `col` before the first product: zeros, or C.
///
/// # Safety
/// See [`few_f32`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn first_sums<const M: usize>(g: &Gemm, col: usize, end: usize) -> [__m512; M] {
    let mut sums = [_mm512_setzero_ps(); M];
    if g.accumulate {
        for (row, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise; rows past the last repeat it.
            *sum = unsafe { read(g, row.min(g.m - 1), col, end) };
        }
    }
    sums
}

/// Like the functions defined by `columns`, with the sums of an AMX tile: of 32 neighbours, those at even places in one
/// chain and those at odd places in another, then the sum of both, then C. (Intel SDM vol. 2, TDPBF16PS.)
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn columns_tiles<const M: usize>(g: &Gemm, cols: Range<usize>) {
    const DEPTH: usize = 32;
    let row_of = |row: usize| row.min(g.m - 1);
    for col in cols.clone().step_by(16) {
        let rows = rows_from(g, col, cols.end);
        // SAFETY: rows of A and B exist, reads past k are masked.
        unsafe {
            let mut sum = first_sums::<M>(g, col, cols.end);
            for k in (0..g.k).step_by(DEPTH) {
                let left = g.k - k;
                // Elements at even and at odd places, widened.
                let mut x = [[[0.0f32; 16]; 2]; M];
                for (row, x) in x.iter_mut().enumerate() {
                    let at = g.a.ptr.wrapping_add((row_of(row) * g.a.stride + k) * 2);
                    let pairs = load::<PAIR>(at, left);
                    _mm512_storeu_ps(x[0].as_mut_ptr(), even(pairs));
                    _mm512_storeu_ps(x[1].as_mut_ptr(), odd(pairs));
                }
                let b = if left >= DEPTH {
                    fetch(g, &rows, k / 2);
                    load_transposed(&rows, 2 * k)
                } else {
                    let mut b: [__m512i; 16] =
                        std::array::from_fn(|i| load::<PAIR>(rows[i].wrapping_add(2 * k), left));
                    transpose(&mut b);
                    b
                };
                let mut chains = [[_mm512_setzero_ps(); 2]; M];
                for (i, b) in b.into_iter().enumerate() {
                    let (low, high) = (even(b), odd(b));
                    for row in 0..M {
                        let [first, second] = &mut chains[row];
                        *first = _mm512_fmadd_ps(_mm512_set1_ps(x[row][0][i]), low, *first);
                        *second = _mm512_fmadd_ps(_mm512_set1_ps(x[row][1][i]), high, *second);
                    }
                }
                for (sum, [first, second]) in sum.iter_mut().zip(chains) {
                    *sum = _mm512_add_ps(*sum, _mm512_add_ps(first, second));
                }
            }
            for (row, sum) in sum.into_iter().enumerate().take(g.m) {
                write(g, row, col, cols.end, sum);
            }
        }
    }
}

/// The first of each pair of bf16, as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn even(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
}

/// The second of each pair of bf16, as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn odd(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-1 << 16)))
}

/// At most `M` rows by `cols`, 16 columns at a time; the last row is repeated for missing ones. (More groups of columns
/// in flight were slower: 16 rows of B are about as many streams as the caches follow.)
macro_rules! columns {
    ($name:ident, $form:expr, $features:literal, $step:expr) => {
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn $name<const M: usize>(g: &Gemm, cols: Range<usize>) {
            let size = g.b.elem.bytes();
            let dwords = g.k.div_ceil(unit($form));
            let whole = g.k / (16 * unit($form)) * 16;
            let row_of = |row: usize| row.min(g.m - 1);
            for col in cols.clone().step_by(16) {
                let rows = rows_from(g, col, cols.end);
                // SAFETY: rows of A and B exist, reads past k are masked or skipped.
                unsafe {
                    let mut sum = first_sums::<M>(g, col, cols.end);
                    for step in (0..whole).step_by(16) {
                        fetch(g, &rows, step);
                        let b = load_transposed(&rows, step * 4);
                        for (i, b) in b.into_iter().enumerate() {
                            for row in 0..M {
                                let a = g.a.ptr.add(row_of(row) * g.a.stride * size).cast::<i32>();
                                let x = _mm512_set1_epi32(a.add(step + i).read_unaligned());
                                sum[row] = $step(sum[row], x, b);
                            }
                        }
                    }
                    if whole < dwords {
                        let left = g.k - whole * unit($form);
                        let mut b: [__m512i; 16] =
                            std::array::from_fn(|i| load::<$form>(rows[i].wrapping_add(whole * 4), left));
                        transpose(&mut b);
                        for (i, b) in b.into_iter().enumerate().take(dwords - whole) {
                            for row in 0..M {
                                let x = _mm512_set1_epi32(last::<$form>(g, row_of(row), whole + i));
                                sum[row] = $step(sum[row], x, b);
                            }
                        }
                    }
                    for (row, sum) in sum.into_iter().enumerate().take(g.m) {
                        write(g, row, col, cols.end, sum);
                    }
                }
            }
        }
    };
}

columns!(columns_f32, F32, "avx512f,avx512bw,avx512vl", |sum, x, b| {
    _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(b), sum)
});
columns!(columns_bf16, PAIR, "avx512f,avx512bw,avx512vl,avx512bf16", |sum, x: __m512i, b: __m512i| {
    _mm512_dpbf16_ps(
        sum,
        std::mem::transmute::<__m512i, __m512bh>(x),
        std::mem::transmute::<__m512i, __m512bh>(b),
    )
});

/// Dword `at` of a row of A; a pair cut by k is padded with zero.
///
/// # Safety
/// The row exists and its first element is before k.
#[inline(always)]
unsafe fn last<const FORM: u8>(g: &Gemm, row: usize, at: usize) -> i32 {
    // SAFETY: the element, or both of the pair, are before k.
    unsafe {
        let a = g.a.ptr.add(row * g.a.stride * g.a.elem.bytes());
        if FORM == PAIR && 2 * at + 1 == g.k {
            a.cast::<u16>().add(2 * at).read_unaligned() as i32
        } else {
            a.cast::<i32>().add(at).read_unaligned()
        }
    }
}

/// Sixteen elements of a row of C from `col`, zero from column `end` on.
///
/// # Safety
/// The row exists.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn read(g: &Gemm, row: usize, col: usize, end: usize) -> __m512 {
    let (at, lanes) = (row * g.c.stride + col, first(end.saturating_sub(col).min(16)) as u16);
    // SAFETY: masked to the columns that exist.
    unsafe {
        match g.c.elem {
            Elem::F32 => _mm512_maskz_loadu_ps(lanes, g.c.ptr.cast::<f32>().wrapping_add(at)),
            Elem::Bf16 => widen(_mm256_maskz_loadu_epi16(lanes, g.c.ptr.cast::<i16>().wrapping_add(at))),
        }
    }
}

/// Writes the elements that [`read`] reads.
///
/// # Safety
/// See [`read`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) unsafe fn write(g: &Gemm, row: usize, col: usize, end: usize, sum: __m512) {
    let (at, lanes) = (row * g.c.stride + col, first(end.saturating_sub(col).min(16)) as u16);
    // SAFETY: masked to the columns that exist.
    unsafe {
        match g.c.elem {
            Elem::F32 => _mm512_mask_storeu_ps(g.c.ptr.cast::<f32>().wrapping_add(at), lanes, sum),
            Elem::Bf16 => {
                _mm256_mask_storeu_epi16(g.c.ptr.cast::<i16>().wrapping_add(at), lanes, narrow(sum));
            }
        }
    }
}
