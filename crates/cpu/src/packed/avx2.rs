//! The kernels with AVX2: codes are widened to 16 bits and multiplied by `vpmaddwd`, whose sums are exact; what is added in f32 is
//! added in the order of the portable kernel.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use fathom_tensor::ggml::Kind;

use super::format::{Columns, Format, GROUP, OCTET, Table};
use super::panel::{COLS, Panel, Tile};
use super::rows::{Part, Rows, quantise};
use crate::mat::Mat;

/// How far ahead of its use a column's blocks are fetched, in bytes.
const AHEAD: usize = 640;

/// See [`quantise`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn quantise_row(x: &Mat, from: usize, rows: Rows, to: usize) {
    // SAFETY: passed on.
    unsafe { quantise(x, from, rows, to) }
}

/// The codes of a group of a block, one byte each.
///
/// # Safety
/// The block is of this type.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn codes<F: Format>(block: *const u8, group: usize) -> __m256i {
    // SAFETY: the caller's promise.
    let load = |at: usize| unsafe { _mm256_loadu_si256(block.add(at).cast()) };
    let (low, one) = (_mm256_set1_epi8(15), _mm256_set1_epi8(1));
    let shifted = |x: __m256i, by: usize| _mm256_srlv_epi32(x, _mm256_set1_epi32(by as i32));
    match F::KIND {
        Kind::Q8_0 => _mm256_xor_si256(load(2), _mm256_set1_epi8(-128)),
        Kind::Q4_0 => {
            // SAFETY: the caller's promise.
            let pairs = unsafe { _mm_loadu_si128(block.add(2).cast()) };
            _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(pairs), pairs), low)
        }
        Kind::Q4K => _mm256_and_si256(shifted(load(16 + group / 2 * 32), group % 2 * 4), low),
        Kind::Q5K => {
            let four = _mm256_and_si256(shifted(load(48 + group / 2 * 32), group % 2 * 4), low);
            let fifth = _mm256_and_si256(shifted(load(16), group), one);
            _mm256_or_si256(four, _mm256_slli_epi16::<4>(fifth))
        }
        _ => {
            let (half, part) = (group / 4, group % 4);
            let four = _mm256_and_si256(shifted(load(64 * half + part % 2 * 32), part / 2 * 4), low);
            let two = _mm256_and_si256(shifted(load(128 + 32 * half), 2 * part), _mm256_set1_epi8(3));
            _mm256_or_si256(four, _mm256_slli_epi16::<4>(two))
        }
    }
}

/// Codes as 16 bits: elements 0..8 and 16..24, then 8..16 and 24..32.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(codes: __m256i) -> [__m256i; 2] {
    let zero = _mm256_setzero_si256();
    [_mm256_unpacklo_epi8(codes, zero), _mm256_unpackhi_epi8(codes, zero)]
}

/// Four columns' sums, of the first halves in the lower lane and of the second in the upper, from four partial sums of each in both lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn gathered([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let two = |x, y| _mm256_add_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    let (x, y) = (two(a, b), two(c, d));
    _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y))
}

/// `sum - bias x integers`.
#[target_feature(enable = "avx2")]
#[inline]
fn unbiased<F: Format>(sum: __m256i, integers: i32) -> __m256i {
    if F::BIAS == 0 { sum } else { _mm256_sub_epi32(sum, _mm256_set1_epi32(F::BIAS * integers)) }
}

/// What a group adds to eight columns of a row.
///
/// # Safety
/// `at` points to the factors of the group's columns, `offset` to their offsets if the type has them; the second factors lie `apart`
/// f32s behind the first.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn added<F: Format>(
    sum: __m256,
    [first, second]: [__m256i; 2],
    (factors, apart, offsets): (*const f32, usize, *const f32),
    part: &Part,
) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let of = |sum: __m256i, at: usize| {
            _mm256_mul_ps(_mm256_loadu_ps(factors.add(at)), _mm256_cvtepi32_ps(sum))
        };
        let mut term =
            if F::FACTORS == 2 { _mm256_add_ps(of(first, 0), of(second, apart)) } else { of(first, 0) };
        if F::OFFSET {
            let integers = _mm256_cvtepi32_ps(_mm256_set1_epi32(part.sum));
            term = _mm256_sub_ps(term, _mm256_mul_ps(_mm256_loadu_ps(offsets), integers));
        }
        _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(part.scale), term))
    }
}

/// `M` rows by eight columns, read as they are packed.
///
/// # Safety
/// The columns have the blocks of the rows' k, the rows exist.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn octet<F: Format, const M: usize>(columns: Columns, rows: Rows) -> [[f32; OCTET]; M] {
    let blocks = rows.k / GROUP / F::GROUPS;
    let row_bytes = blocks * F::BYTES;
    let mut sums = [_mm256_setzero_ps(); M];
    let mut found = Table::new();
    for index in 0..blocks {
        let at = Columns { first: columns.first.wrapping_add(index * F::BYTES), ..columns };
        let ahead = index * F::BYTES + AHEAD;
        // At the end of these columns, the next ones.
        let ahead = if ahead < row_bytes { ahead } else { OCTET * columns.apart + ahead - row_bytes };
        if F::BYTES > 64 || index % 2 == 0 {
            for col in 0..OCTET {
                for line in (0..F::BYTES).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(columns.at(col).wrapping_add(ahead + line).cast());
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            table::<F>(at, &mut found);
            for group in 0..F::GROUPS {
                let place = index * F::GROUPS + group;
                let mut fours = [[_mm256_setzero_si256(); 2]; M];
                for four in 0..2 {
                    let mut partial = [[_mm256_setzero_si256(); 4]; M];
                    for col in 0..4 {
                        let w = widened(codes::<F>(at.at(4 * four + col), group));
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
                for (row, sum) in sums.iter_mut().enumerate() {
                    let part = &*rows.parts.add(row * (rows.k / GROUP) + place);
                    let [x, y] = fours[row];
                    let halves =
                        [_mm256_permute2x128_si256::<0x20>(x, y), _mm256_permute2x128_si256::<0x31>(x, y)];
                    let parts = if F::FACTORS == 2 {
                        [unbiased::<F>(halves[0], part.halves[0]), unbiased::<F>(halves[1], part.halves[1])]
                    } else {
                        [unbiased::<F>(_mm256_add_epi32(halves[0], halves[1]), part.sum); 2]
                    };
                    let factors = found.factors[F::FACTORS * group].as_ptr();
                    *sum = added::<F>(*sum, parts, (factors, OCTET, found.offsets[group].as_ptr()), part);
                }
            }
        }
    }
    let mut out = [[0.0; OCTET]; M];
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: eight f32.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
    }
    out
}

/// f16 words in the lower or the upper halves of dwords, widened.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn halves(words: __m256i) -> __m256 {
    let packed = _mm256_packus_epi32(words, words);
    let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
    _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
}

/// The f16 at `at` of each of eight blocks.
///
/// # Safety
/// The blocks have it.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn halves_at(blocks: Columns, at: usize) -> __m256 {
    // SAFETY: the caller's promise.
    let word = |col: usize| unsafe { blocks.at(col).add(at).cast::<u16>().read_unaligned() };
    let four = |col: usize| (0..4).fold(0u64, |all, i| all | u64::from(word(col + i)) << (16 * i));
    _mm256_cvtph_ps(_mm_set_epi64x(four(4).cast_signed(), four(0).cast_signed()))
}

/// As [`super::format::table`], of the blocks of eight columns.
///
/// # Safety
/// The blocks are of this type.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn table<F: Format>(blocks: Columns, out: &mut Table) {
    let store = |to: &mut [f32; OCTET], x: __m256| {
        // SAFETY: eight f32.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
    };
    // SAFETY: the caller's promise.
    unsafe {
        match F::KIND {
            Kind::Q4K | Kind::Q5K => {
                // Sixteen bytes: d, dmin, scales of groups 0..4, of their offsets, and of the rest.
                let two = |col: usize| {
                    let load = |col| _mm_loadu_si128(blocks.at(col).cast());
                    _mm256_set_m128i(load(col + 4), load(col))
                };
                let (a, b, c, d) = (two(0), two(1), two(2), two(3));
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let both = _mm256_unpacklo_epi64(ab, cd);
                let scales = _mm256_unpackhi_epi64(ab, cd);
                let (ab, cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                let (mins, rest) = (_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
                let d = halves(_mm256_and_si256(both, _mm256_set1_epi32(0xffff)));
                let least = halves(_mm256_srli_epi32::<16>(both));
                let six = _mm256_set1_epi8(63);
                let four = _mm256_set1_epi8(15);
                // The upper two bits of each byte, as its bits four and five.
                let upper = |x| _mm256_and_si256(_mm256_srli_epi32::<2>(x), _mm256_set1_epi8(48));
                let late = |x, low| _mm256_or_si256(_mm256_and_si256(low, four), upper(x));
                let all = [
                    (_mm256_and_si256(scales, six), _mm256_and_si256(mins, six)),
                    (late(scales, rest), late(mins, _mm256_srli_epi32::<4>(rest))),
                ];
                for (part, (scales, mins)) in all.into_iter().enumerate() {
                    for byte in 0..4 {
                        let of = |x| {
                            let x = _mm256_srlv_epi32(x, _mm256_set1_epi32(8 * byte as i32));
                            _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(255)))
                        };
                        let group = 4 * part + byte;
                        store(&mut out.factors[group], _mm256_mul_ps(d, of(scales)));
                        store(&mut out.offsets[group], _mm256_mul_ps(least, of(mins)));
                    }
                }
            }
            Kind::Q6K => {
                let d = halves_at(blocks, 208);
                let mut bytes: [__m128i; OCTET] =
                    std::array::from_fn(|col| _mm_loadu_si128(blocks.at(col).add(192).cast()));
                // Three perfect shuffles turn [column][byte] into [byte][column].
                for _ in 0..3 {
                    let old = bytes;
                    for i in 0..4 {
                        bytes[2 * i] = _mm_unpacklo_epi8(old[i], old[i + 4]);
                        bytes[2 * i + 1] = _mm_unpackhi_epi8(old[i], old[i + 4]);
                    }
                }
                for (pair, bytes) in bytes.into_iter().enumerate() {
                    for (half, bytes) in [bytes, _mm_srli_si128::<8>(bytes)].into_iter().enumerate() {
                        let scale = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                        store(&mut out.factors[2 * pair + half], _mm256_mul_ps(d, scale));
                    }
                }
            }
            _ => store(&mut out.factors[0], halves_at(blocks, 0)),
        }
    }
}

/// Writes a block of each of eight columns into a panel, where they are its columns from `first` on: group `at` is the block's first.
///
/// # Safety
/// The blocks are of this type, the panel has the groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn fill<F: Format>(blocks: Columns, (panel, first, at): (&mut Panel, usize, usize)) {
    let mut found = Table::new();
    let bias = _mm256_set1_epi16(F::BIAS as i16);
    // SAFETY: the caller's promise.
    unsafe {
        table::<F>(blocks, &mut found);
        for group in 0..F::GROUPS {
            let mut low = [_mm256_setzero_si256(); OCTET];
            let mut high = low;
            for col in 0..OCTET {
                let [x, y] = widened(codes::<F>(blocks.at(col), group));
                (low[col], high[col]) = (_mm256_sub_epi16(x, bias), _mm256_sub_epi16(y, bias));
            }
            let to = panel.codes[at + group].as_mut_ptr();
            for (part, rows) in [transposed(&low), transposed(&high)].into_iter().enumerate() {
                for (step, value) in rows.into_iter().enumerate() {
                    // The first half of a group has the first four of both.
                    let step = step / 4 * 8 + 4 * part + step % 4;
                    _mm256_store_si256(to.add(step).cast::<i16>().add(2 * first).cast(), value);
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

/// Eight vectors of eight dwords, turned.
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

/// The same, computed here: the compiler would add up what it loads in an order that needs more registers than there are.
#[target_feature(enable = "avx2")]
#[inline]
fn pinned(mut x: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags)) };
    x
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
            let w = panel.codes[group].as_ptr().cast::<__m256i>();
            let x: [*const i32; R] = std::array::from_fn(|row| {
                rows.codes.add(row * rows.stride + place * GROUP).cast::<i32>().cast_const()
            });
            let mut sums = [[[_mm256_setzero_si256(); 2]; 2]; R];
            // Where the pair is among those of the row, which are in the order of widened bytes.
            macro_rules! step {
                ($($step:literal at $at:literal),*) => {
                    $(
                        let left = _mm256_load_si256(w.add(2 * $step));
                        let right = _mm256_load_si256(w.add(2 * $step + 1));
                        for row in 0..R {
                            let x = _mm256_set1_epi32(x[row].add($at).read_unaligned());
                            let sum = &mut sums[row][if F::FACTORS == 2 { $step / 8 } else { 0 }];
                            sum[0] = pinned(_mm256_add_epi32(sum[0], _mm256_madd_epi16(left, x)));
                            sum[1] = pinned(_mm256_add_epi32(sum[1], _mm256_madd_epi16(right, x)));
                        }
                    )*
                };
            }
            step!(0 at 0, 1 at 1, 2 at 2, 3 at 3, 4 at 8, 5 at 9, 6 at 10, 7 at 11);
            step!(8 at 4, 9 at 5, 10 at 6, 11 at 7, 12 at 12, 13 at 13, 14 at 14, 15 at 15);
            let factors = panel.factors[group].as_ptr().cast::<f32>();
            let offsets = panel.offsets[group].as_ptr();
            for (row, [first, second]) in sums.into_iter().enumerate() {
                let part = &*rows.parts.add(row * (rows.k / GROUP) + place);
                let tile = (*tile.add(row)).as_mut_ptr();
                for half in 0..2 {
                    let (tile, at) = (tile.add(OCTET * half), OCTET * half);
                    let held = (factors.add(at), COLS, offsets.add(at));
                    let sum = added::<F>(_mm256_loadu_ps(tile), [first[half], second[half]], held, part);
                    _mm256_storeu_ps(tile, sum);
                }
            }
        }
    }
}
