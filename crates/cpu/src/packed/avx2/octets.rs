//! Eight columns whose blocks are interleaved: a vector has the same four elements of all of them, so no sums across
//! lanes are needed.
//!
//! Codes are multiplied by the upper and by the lower bytes of integers with `vpmaddubsw`, and as many products are
//! added in 16 bits as fit ([`narrow`]): all sums are exact, as in the other kernels.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use fathom_tensor::ggml::Kind;

use super::super::avx512::doubled;
use super::super::format::{Columns, Format, GROUP, Lies, OCTET};
use super::super::octets::{QUADS, groups, period, quads};
use super::super::panel::Panel;
use super::super::rows::Rows;
use super::codes::twice;
use super::sums::{added, pinned, unbiased};

/// Distance in bytes at which an octet's block is prefetched.
const AHEAD: usize = 9216;

/// Number of vectors of products with bytes of magnitude at most 128 that can be added in 16 bits.
const fn narrow<F: Format>() -> usize {
    match F::LIES {
        Lies::Within(Kind::Q5_0 | Kind::Q5_1 | Kind::Q5K) => 4,
        Lies::Within(Kind::Q6K) => 2,
        _ => 8,
    }
}

/// The lower or the upper nibbles of bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn nibbles(bytes: __m256i, upper: bool) -> __m256i {
    let bytes = if upper { _mm256_srli_epi16::<4>(bytes) } else { bytes };
    _mm256_and_si256(bytes, _mm256_set1_epi8(15))
}

/// Codes of elements `4 quad..4 quad + 4` of a group: four bytes of each column. `PART` is the group's position within
/// the [`period`].
///
/// # Safety
/// The block is of this type.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn codes<F: Format, const PART: usize>(block: *const u8, group: usize, quad: usize) -> __m256i {
    // SAFETY: the caller's promise.
    let load =
        |at: usize, word: usize| unsafe { _mm256_loadu_si256(block.add(OCTET * (at + 4 * word)).cast()) };
    match F::LIES {
        Lies::Within(Kind::Q4K) => nibbles(load(16, group / 2 * QUADS + quad), PART % 2 == 1),
        Lies::Within(Kind::Q5K) => {
            let fifths = load(16, quad);
            let fifths = match PART {
                0 => _mm256_slli_epi16::<4>(fifths),
                1 => _mm256_slli_epi16::<3>(fifths),
                2 => _mm256_slli_epi16::<2>(fifths),
                3 => _mm256_slli_epi16::<1>(fifths),
                4 => fifths,
                5 => _mm256_srli_epi16::<1>(fifths),
                6 => _mm256_srli_epi16::<2>(fifths),
                _ => _mm256_srli_epi16::<3>(fifths),
            };
            let fours = nibbles(load(48, group / 2 * QUADS + quad), PART % 2 == 1);
            _mm256_or_si256(fours, _mm256_and_si256(fifths, _mm256_set1_epi8(16)))
        }
        Lies::Within(Kind::Q6K) => {
            let upper = load(128, group / 4 * QUADS + quad);
            let upper = match PART {
                0 => _mm256_slli_epi16::<4>(upper),
                1 => _mm256_slli_epi16::<2>(upper),
                2 => upper,
                _ => _mm256_srli_epi16::<2>(upper),
            };
            let fours = nibbles(load(0, group / 4 * 16 + PART % 2 * QUADS + quad), PART >= 2);
            _mm256_or_si256(fours, _mm256_and_si256(upper, _mm256_set1_epi8(48)))
        }
        Lies::Within(kind @ (Kind::Q5_0 | Kind::Q5_1)) => {
            let at = if kind == Kind::Q5_0 { 2 } else { 4 };
            // Repeats the byte with the fifth bits of the four codes, and selects each code's own bit.
            let byte = |at: usize| (at / 4 * 4 + quad / 2) as u8;
            let bits = _mm256_set1_epi32([0x0804_0201, 0x8040_2010u32.cast_signed()][quad % 2]);
            let kept = _mm256_shuffle_epi8(load(at, 0), twice(std::array::from_fn(byte)));
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(kept, bits), bits);
            let fours = nibbles(load(at, 1 + quad % 4), quad >= 4);
            _mm256_or_si256(fours, _mm256_and_si256(set, _mm256_set1_epi8(16)))
        }
        Lies::Within(Kind::Q4_1) => nibbles(load(4, quad % 4), quad >= 4),
        _ => nibbles(load(2, quad % 4), quad >= 4),
    }
}

/// Factors of a block's groups.
struct Scales {
    /// Units of scales and of offsets.
    units: [__m256; 2],
    /// Scales, then offsets, of each group, for types that store them as packed bytes.
    bytes: [[u8; OCTET]; 16],
}

impl Scales {
    /// # Safety
    /// The block is of this type.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn of<F: Format>(block: *const u8) -> Scales {
        // SAFETY: the caller's promise.
        let half = |at: usize| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(block.add(OCTET * at).cast())) };
        let mut bytes = [[0; OCTET]; 16];
        let units = match F::LIES {
            Lies::Within(Kind::Q4K | Kind::Q5K) => {
                // SAFETY: the caller's promise.
                let load = |at: usize| unsafe { _mm256_loadu_si256(block.add(OCTET * at).cast()) };
                let (scales, mins, rest) = (load(4), load(8), load(12));
                let six = |x| _mm256_and_si256(x, _mm256_set1_epi8(63));
                // Moves the upper two bits of each byte to bits four and five.
                let upper = |x| _mm256_and_si256(_mm256_srli_epi16::<2>(x), _mm256_set1_epi8(48));
                let late = |x, up| _mm256_or_si256(nibbles(rest, up), upper(x));
                let all = [six(scales), late(scales, false), six(mins), late(mins, true)];
                for (to, all) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(all) {
                    // SAFETY: 32 bytes.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), all) };
                }
                [half(0), half(2)]
            }
            Lies::Within(Kind::Q6K) => [half(208); 2],
            // In these types offsets are added.
            _ if F::OFFSET => [half(0), _mm256_xor_ps(half(2), _mm256_set1_ps(-0.0))],
            _ => [half(0); 2],
        };
        Scales { units, bytes }
    }

    /// The factors of a group's halves, or the first for all of it, and its offsets.
    ///
    /// # Safety
    /// The block is of this type, and these scales are of this block.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn at<F: Format>(&self, block: *const u8, group: usize) -> ([__m256; 2], __m256) {
        let [unit, least] = self.units;
        // SAFETY: eight bytes.
        let eight = |from: *const u8| unsafe { _mm_loadl_epi64(from.cast()) };
        match F::LIES {
            Lies::Within(Kind::Q4K | Kind::Q5K) => {
                let of =
                    |row: usize| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(self.bytes[row].as_ptr())));
                let factor = _mm256_mul_ps(unit, of(group));
                ([factor; 2], _mm256_mul_ps(least, of(8 + group)))
            }
            Lies::Within(Kind::Q6K) => {
                let of = |half: usize| {
                    let bytes = eight(block.wrapping_add(OCTET * (192 + 2 * group + half)));
                    _mm256_mul_ps(unit, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)))
                };
                ([of(0), of(1)], _mm256_setzero_ps())
            }
            _ => ([unit; 2], least),
        }
    }
}

/// For each row, the sums of products of a group's halves if those have their own factors, else the sum for all of it
/// in the first.
///
/// # Safety
/// The block is of this type; the rows have the group's bytes at `x`.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn products<F: Format, const PART: usize, const M: usize>(
    block: *const u8,
    group: usize,
    x: [*const u8; M],
) -> [[__m256i; 2]; M] {
    let mut sums = [[_mm256_setzero_si256(); 2]; M];
    let mut held = [[_mm256_setzero_si256(); 2]; M];
    let places = [_mm256_set1_epi16(256), _mm256_set1_epi16(1)];
    // Unrolled by hand, because the compiler keeps larger loops.
    quads!(|quad| {
        // SAFETY: the caller's promise.
        let w = unsafe { codes::<F, PART>(block, group, quad) };
        let fresh = quad.is_multiple_of(narrow::<F>());
        for (held, x) in held.iter_mut().zip(x) {
            for (which, held) in held.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let x = unsafe { x.add(GROUP * which + 4 * quad).cast::<i32>().read_unaligned() };
                let product = _mm256_maddubs_epi16(w, _mm256_set1_epi32(x));
                *held = if fresh { product } else { pinned(_mm256_add_epi16(*held, product)) };
            }
        }
        if quad % narrow::<F>() + 1 == narrow::<F>() {
            let half = if F::FACTORS == 2 { quad / (QUADS / 2) } else { 0 };
            for (sums, held) in sums.iter_mut().zip(held) {
                let [upper, lower] = [0, 1].map(|at| _mm256_madd_epi16(held[at], places[at]));
                sums[half] = _mm256_add_epi32(sums[half], _mm256_add_epi32(upper, lower));
            }
        }
    });
    sums
}

/// The same by `vpdpbusd`, which adds products of four neighbours to 32 bits: two vectors of a group at a time, whose
/// sums are combined at its end.
///
/// # Safety
/// See [`products`].
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
unsafe fn summed<F: Format, const PART: usize, const M: usize>(
    block: *const u8,
    group: usize,
    x: [*const u8; M],
) -> [[__m256i; 2]; M] {
    // Sums with upper and with lower bytes, for each half.
    let mut sums = [[[_mm512_setzero_si512(); 2]; 2]; M];
    let order = _mm512_set_epi32(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    quads!(|quad| {
        if quad.is_multiple_of(2) {
            // SAFETY: the caller's promise.
            let w = unsafe { doubled::<F, PART>(block, group, quad) };
            let w = _mm512_permutexvar_epi32(order, w);
            let half = if F::FACTORS == 2 { quad / (QUADS / 2) } else { 0 };
            for (sums, x) in sums.iter_mut().zip(x) {
                for (which, sum) in sums[half].iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let x = unsafe { x.add(GROUP * which + 4 * quad).cast::<i64>().read_unaligned() };
                    *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi64(x));
                }
            }
        }
    });
    let mut out = [[_mm256_setzero_si256(); 2]; M];
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, [upper, lower]) in out.iter_mut().zip(sums) {
            let all = _mm512_add_epi32(_mm512_slli_epi32::<8>(upper), lower);
            *out = _mm512_cvtepi64_epi32(_mm512_add_epi32(all, _mm512_srli_epi64::<32>(all)));
        }
    }
    out
}

/// Defines the product of few rows by one of the two functions, with the instruction sets that it needs.
macro_rules! octet {
    ($name:ident: $products:ident, $features:literal) => {
        /// Like [`super::octet`], for interleaved columns.
        ///
        /// # Safety
        /// See there; in addition, the rows have their separate bytes, and the processor supports the instructions.
        #[target_feature(enable = $features)]
        #[inline]
        pub(in super::super) unsafe fn $name<F: Format, const M: usize>(
            columns: Columns,
            rows: Rows,
        ) -> [__m256; M] {
            let (groups, wide) = (rows.k / GROUP, OCTET * F::BYTES);
            let mut sums = [_mm256_setzero_ps(); M];
            for index in 0..groups / F::GROUPS {
                let block = columns.first.wrapping_add(index * wide);
                for line in (0..wide).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(AHEAD + line).cast());
                }
                // SAFETY: the caller's promise.
                unsafe {
                    let scales = Scales::of::<F>(block);
                    groups!(F, |group, PART| {
                        let place = index * F::GROUPS + group;
                        let x: [*const u8; M] =
                            std::array::from_fn(|row| rows.bytes_of(row).add(place).cast_const().cast());
                        let found = $products::<F, PART, M>(block, group, x);
                        let (factors, offset) = scales.at::<F>(block, group);
                        for (row, (sum, found)) in sums.iter_mut().zip(found).enumerate() {
                            let part = &*rows.parts.add(row * groups + place);
                            let parts = if F::FACTORS == 2 {
                                [0, 1].map(|half| unbiased::<F>(found[half], part.halves[half], &[0; OCTET]))
                            } else {
                                [unbiased::<F>(found[0], part.sum, &[0; OCTET]); 2]
                            };
                            *sum = added::<F>(*sum, parts, (factors, offset), part);
                        }
                    });
                }
            }
            sums
        }
    };
}

octet!(octet: products, "avx2,fma,f16c");
octet!(octet_vnni: summed, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");

/// Like [`super::fill`], for interleaved columns.
///
/// # Safety
/// See there.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn fill<F: Format>(
    columns: Columns,
    index: usize,
    (panel, first, at): (&mut Panel, usize, usize),
) {
    let block = columns.first.wrapping_add(index * OCTET * F::BYTES);
    let bias = _mm256_set1_epi16(F::BIAS as i16);
    // The first two and the last two of four bytes, as 16 bits each.
    let pairs =
        [0u8, 2].map(|byte| {
            twice(std::array::from_fn(|at| {
                if at % 2 == 0 { (at / 4 * 4 + at % 4 / 2) as u8 + byte } else { 0x80 }
            }))
        });
    // SAFETY: the caller's promise.
    unsafe {
        let scales = Scales::of::<F>(block);
        groups!(F, |group, PART| {
            let to = panel.codes[at + group].as_mut_ptr();
            quads!(|quad| {
                let w = codes::<F, PART>(block, group, quad);
                for (half, pair) in pairs.into_iter().enumerate() {
                    let value = _mm256_sub_epi16(_mm256_shuffle_epi8(w, pair), bias);
                    let to = to.add(2 * quad + half).cast::<i16>().add(2 * first);
                    _mm256_store_si256(to.cast(), value);
                }
            });
            let (factors, offset) = scales.at::<F>(block, group);
            for (to, factor) in panel.factors[at + group][..F::FACTORS].iter_mut().zip(factors) {
                _mm256_storeu_ps(to.as_mut_ptr().add(first), factor);
            }
            if F::OFFSET {
                _mm256_storeu_ps(panel.offsets[at + group].as_mut_ptr().add(first), offset);
            }
        });
    }
}
