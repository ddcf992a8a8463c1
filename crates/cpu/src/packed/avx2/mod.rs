//! The AVX2 kernels: codes are widened to 16 bits and multiplied by `vpmaddwd`, whose sums are exact; f32 additions are
//! in the order of the portable kernel.
#![allow(unsafe_code)]

mod codes;
pub(super) mod octets;
mod quantise;
mod sums;
mod table;

use std::arch::x86_64::*;
use std::ops::Range;

use super::format::{Columns, Format, GROUP, OCTET, Table, span};
use super::panel::{COLS, Panel, Tile};
use super::rows::Rows;
use codes::integers;
pub(super) use quantise::{quantise_row, store_bf16};
pub(super) use sums::stored;
use sums::{added, pinned, unbiased};
use table::table;

/// Distance in bytes at which a column's blocks are prefetched.
const AHEAD: usize = 640;

/// Four columns' sums, those of the first halves in the lower lane and those of the second in the upper, from four
/// partial sums of each in both lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn gathered([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let two = |x, y| _mm256_add_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    let (x, y) = (two(a, b), two(c, d));
    _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y))
}

/// Factors and offsets of eight columns; the second factors are `apart` f32s behind the first.
///
/// # Safety
/// They exist, if the type has them.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn held<F: Format>(factors: *const f32, apart: usize, offsets: *const f32) -> ([__m256; 2], __m256) {
    // SAFETY: the caller's promise.
    unsafe {
        let first = _mm256_loadu_ps(factors);
        let second = if F::FACTORS == 2 { _mm256_loadu_ps(factors.add(apart)) } else { first };
        ([first, second], if F::OFFSET { _mm256_loadu_ps(offsets) } else { _mm256_setzero_ps() })
    }
}

/// `M` rows by eight columns, read in packed form.
///
/// # Safety
/// The columns have the blocks of the rows' k, the rows exist.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn octet<F: Format, const M: usize>(columns: Columns, rows: Rows) -> [[f32; OCTET]; M] {
    if F::OCTETS {
        // SAFETY: passed on; up to [`super::rows::APART`] rows have their bytes.
        return unsafe { octets::octet::<F, M>(columns, rows) }.map(|x| stored(x));
    }
    let blocks = rows.k / GROUP / F::GROUPS;
    let code_bytes = blocks * F::BYTES;
    let mut sums = [_mm256_setzero_ps(); M];
    let mut found = Table::new();
    // Number of blocks that the table is valid for.
    let (span, mut left) = (span::<F>(columns), 0);
    for index in 0..blocks {
        let at = columns.block::<F>(index);
        let ahead = index * F::BYTES + AHEAD;
        // At the end of these columns, prefetches the next ones.
        let ahead = if ahead < code_bytes { ahead } else { OCTET * columns.apart + ahead - code_bytes };
        if F::BYTES > 64 || index.is_multiple_of(64 / F::BYTES) {
            for col in 0..OCTET {
                for line in (0..F::BYTES).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(columns.at(col).wrapping_add(ahead + line).cast());
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if left == 0 {
                table::<F>(columns, index, &mut found);
                left = span;
            }
            left -= 1;
            for group in 0..F::GROUPS {
                let place = index * F::GROUPS + group;
                let mut planes = [[[_mm256_setzero_si256(); 2]; M]; 2];
                for (plane, fours) in planes[..F::PLANES].iter_mut().enumerate() {
                    for four in 0..2 {
                        let mut partial = [[_mm256_setzero_si256(); 4]; M];
                        for col in 0..4 {
                            let w = integers::<F>(at.at(4 * four + col), (group, plane));
                            for (row, partial) in partial.iter_mut().enumerate() {
                                let x = rows.codes.add(row * rows.stride + place * GROUP).cast::<__m256i>();
                                let (low, high) = (_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1)));
                                partial[col] = pinned(_mm256_add_epi32(
                                    _mm256_madd_epi16(w[0], low),
                                    _mm256_madd_epi16(w[1], high),
                                ));
                            }
                        }
                        for (fours, partial) in fours.iter_mut().zip(partial) {
                            fours[four] = pinned(gathered(partial));
                        }
                    }
                }
                for (row, sum) in sums.iter_mut().enumerate() {
                    let part = &*rows.parts.add(row * (rows.k / GROUP) + place);
                    let halves = |plane: usize| {
                        let [x, y] = planes[plane][row];
                        [_mm256_permute2x128_si256::<0x20>(x, y), _mm256_permute2x128_si256::<0x31>(x, y)]
                    };
                    let whole = |plane: usize| {
                        let [x, y] = halves(plane);
                        _mm256_add_epi32(x, y)
                    };
                    let parts = if F::PLANES == 2 {
                        [whole(0), whole(1)]
                    } else if F::FACTORS == 2 {
                        let [x, y] = halves(0);
                        let unbiased = |x, integers| unbiased::<F>(x, integers, &found.zeros);
                        [unbiased(x, part.halves[0]), unbiased(y, part.halves[1])]
                    } else {
                        [unbiased::<F>(whole(0), part.sum, &found.zeros); 2]
                    };
                    let factors = found.factors[F::FACTORS * group].as_ptr();
                    let held = held::<F>(factors, OCTET, found.offsets[group].as_ptr());
                    *sum = added::<F>(*sum, parts, held, part);
                }
            }
        }
    }
    sums.map(|x| stored(x))
}

/// Prefetches blocks of eight columns to the second-level cache, for a panel that is filled after another has been
/// used.
pub(super) fn fetch<F: Format>(columns: Columns, blocks: Range<usize>) {
    let columns = columns.block::<F>(if F::OCTETS { OCTET * blocks.start } else { blocks.start });
    let bytes = blocks.len() * F::BYTES;
    let (parts, bytes) = if F::OCTETS { (1, OCTET * bytes) } else { (OCTET, bytes) };
    for part in 0..parts {
        for line in (0..bytes).step_by(64) {
            // SAFETY: a hint, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(columns.at(part).wrapping_add(line).cast()) };
        }
    }
}

/// Writes block `index` of each of eight columns into a panel as its columns from `first` on; the block's first group
/// becomes group `at`.
///
/// # Safety
/// The columns have this type and the block, the panel the groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn fill<F: Format>(
    columns: Columns,
    index: usize,
    (panel, first, at): (&mut Panel, usize, usize),
) {
    if F::OCTETS {
        // SAFETY: passed on.
        return unsafe { octets::fill::<F>(columns, index, (panel, first, at)) };
    }
    let (mut found, blocks) = (Table::new(), columns.block::<F>(index));
    // SAFETY: the caller's promise.
    unsafe {
        table::<F>(columns, index, &mut found);
        for group in 0..F::GROUPS {
            for plane in 0..F::PLANES {
                let mut low = [_mm256_setzero_si256(); OCTET];
                let mut high = low;
                for col in 0..OCTET {
                    let bias = if F::ZEROS { found.zeros[col] } else { F::BIAS };
                    let bias = _mm256_set1_epi16(bias as i16);
                    let [x, y] = integers::<F>(blocks.at(col), (group, plane));
                    (low[col], high[col]) = (_mm256_sub_epi16(x, bias), _mm256_sub_epi16(y, bias));
                }
                let to = panel.codes[(at + group) * F::PLANES + plane].as_mut_ptr();
                for (part, rows) in [transposed(&low), transposed(&high)].into_iter().enumerate() {
                    for (step, value) in rows.into_iter().enumerate() {
                        // The first half of a group has the first four elements of both.
                        let step = step / 4 * 8 + 4 * part + step % 4;
                        _mm256_store_si256(to.add(step).cast::<i16>().add(2 * first).cast(), value);
                    }
                }
            }
            for factor in 0..F::FACTORS {
                let to = &mut panel.factors[at + group][factor][first..first + OCTET];
                to.copy_from_slice(&found.factors[F::FACTORS * group + factor]);
            }
            if F::OFFSET {
                panel.offsets[at + group][first..first + OCTET].copy_from_slice(&found.offsets[group]);
            }
        }
    }
}

/// Transposes eight vectors of eight dwords.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed(rows: &[__m256i; 8]) -> [__m256i; 8] {
    let pairs: [[__m256i; 2]; 4] = std::array::from_fn(|i| {
        let (x, y) = (rows[2 * i], rows[2 * i + 1]);
        [_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y)]
    });
    let fours: [[__m256i; 4]; 2] = std::array::from_fn(|i| {
        let ([a, b], [c, d]) = (pairs[2 * i], pairs[2 * i + 1]);
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    });
    std::array::from_fn(|i| {
        let (x, y) = (fours[0][i % 4], fours[1][i % 4]);
        if i < 4 { _mm256_permute2x128_si256::<0x20>(x, y) } else { _mm256_permute2x128_si256::<0x31>(x, y) }
    })
}

/// Adds the first `groups` groups of a panel, which are those from `from` on, to `R` rows of a tile.
///
/// # Safety
/// The rows have the groups, the tile the rows.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn micro<F: Format, const R: usize>(
    panel: &Panel,
    (from, groups): (usize, usize),
    rows: Rows,
    tile: *mut Tile,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for group in 0..groups {
            let place = from + group;
            let x: [*const i32; R] = std::array::from_fn(|row| {
                rows.codes.add(row * rows.stride + place * GROUP).cast::<i32>().cast_const()
            });
            let mut sums = [[[_mm256_setzero_si256(); 2]; 2]; R];
            // Position of the pair among the row's, which are in the order of widened bytes.
            macro_rules! step {
                ($w:ident, $plane:ident: $($step:literal at $at:literal),*) => {
                    $(
                        let left = _mm256_load_si256($w.add(2 * $step));
                        let right = _mm256_load_si256($w.add(2 * $step + 1));
                        for row in 0..R {
                            let x = _mm256_set1_epi32(x[row].add($at).read_unaligned());
                            let half = if F::PLANES == 2 || F::FACTORS == 1 { $plane } else { $step / 8 };
                            let sum = &mut sums[row][half];
                            sum[0] = pinned(_mm256_add_epi32(sum[0], _mm256_madd_epi16(left, x)));
                            sum[1] = pinned(_mm256_add_epi32(sum[1], _mm256_madd_epi16(right, x)));
                        }
                    )*
                };
            }
            for plane in 0..F::PLANES {
                let w = panel.codes[group * F::PLANES + plane].as_ptr().cast::<__m256i>();
                step!(w, plane: 0 at 0, 1 at 1, 2 at 2, 3 at 3, 4 at 8, 5 at 9, 6 at 10, 7 at 11);
                step!(w, plane: 8 at 4, 9 at 5, 10 at 6, 11 at 7, 12 at 12, 13 at 13, 14 at 14, 15 at 15);
            }
            let factors = panel.factors[group].as_ptr().cast::<f32>();
            let offsets = panel.offsets[group].as_ptr();
            for (row, [first, second]) in sums.into_iter().enumerate() {
                let part = &*rows.parts.add(row * (rows.k / GROUP) + place);
                let tile = (*tile.add(row)).as_mut_ptr();
                for half in 0..2 {
                    let (tile, at) = (tile.add(OCTET * half), OCTET * half);
                    let held = held::<F>(factors.add(at), COLS, offsets.add(at));
                    let sum = added::<F>(_mm256_loadu_ps(tile), [first[half], second[half]], held, part);
                    _mm256_storeu_ps(tile, sum);
                }
            }
        }
    }
}
