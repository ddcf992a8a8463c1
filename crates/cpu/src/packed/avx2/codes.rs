//! Codes of eight columns' groups as integers of 16 bits.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use fathom_tensor::ggml::Kind;
use fathom_tensor::grouped::Codes;

use super::super::format::{DOUBLED, Format, Lies, NF4};

/// Sixteen bytes, repeated in both lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn twice(bytes: [u8; 16]) -> __m256i {
    // SAFETY: sixteen bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// The lower nibbles of sixteen bytes, then the upper ones.
///
/// # Safety
/// They can be read.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn nibbles(pairs: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    let pairs = unsafe { _mm_loadu_si128(pairs.cast()) };
    _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(pairs), pairs), _mm256_set1_epi8(15))
}

/// The [`nibbles`] behind a word, each with its fifth bit from the word.
///
/// # Safety
/// They can be read.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn fives(block: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    let (word, fours) = unsafe { (block.cast::<i32>().read_unaligned(), nibbles(block.add(4))) };
    // Repeats each byte of the word eight times, each time selecting another bit.
    let each = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    let kept = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), each), bits);
    let fifths = _mm256_and_si256(_mm256_cmpeq_epi8(kept, bits), _mm256_set1_epi8(16));
    _mm256_or_si256(fours, fifths)
}

/// The nibbles of each of sixteen bytes, the upper before the lower.
///
/// # Safety
/// They can be read.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn neighbours(pairs: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    let pairs = unsafe { _mm_loadu_si128(pairs.cast()) };
    let low = _mm_set1_epi8(15);
    let (first, second) = (_mm_and_si128(_mm_srli_epi16::<4>(pairs), low), _mm_and_si128(pairs, low));
    _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second))
}

/// The lower or the upper bytes of NF4's integers in a plane.
const fn bytes_of_nf4(plane: usize, upper: bool) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = NF4[plane][code].to_le_bytes()[upper as usize];
        code += 1;
    }
    bytes
}

/// The lower and the upper bytes of NF4's integers, by plane.
const NF4_BYTES: [[[u8; 16]; 2]; 2] =
    [[bytes_of_nf4(0, false), bytes_of_nf4(0, true)], [bytes_of_nf4(1, false), bytes_of_nf4(1, true)]];

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
    match F::LIES {
        Lies::Within(Kind::Q8_0) => _mm256_xor_si256(load(2), _mm256_set1_epi8(-128)),
        Lies::Signed => _mm256_xor_si256(load(0), _mm256_set1_epi8(-128)),
        // SAFETY: the caller's promise.
        Lies::Nf4 => unsafe { neighbours(block) },
        // SAFETY: the caller's promise.
        Lies::Within(Kind::Q4_0) => unsafe { nibbles(block.add(2)) },
        // SAFETY: the caller's promise.
        Lies::Within(Kind::Q4_1) => unsafe { nibbles(block.add(4)) },
        // SAFETY: the caller's promise.
        Lies::Within(Kind::Q5_0) => unsafe { fives(block.add(2)) },
        // SAFETY: the caller's promise.
        Lies::Within(Kind::Q5_1) => unsafe { fives(block.add(4)) },
        Lies::Within(Kind::Q4K) => _mm256_and_si256(shifted(load(16 + group / 2 * 32), group % 2 * 4), low),
        Lies::Within(Kind::Q5K) => {
            let four = _mm256_and_si256(shifted(load(48 + group / 2 * 32), group % 2 * 4), low);
            let fifth = _mm256_and_si256(shifted(load(16), group), one);
            _mm256_or_si256(four, _mm256_slli_epi16::<4>(fifth))
        }
        Lies::Within(_) => {
            let (half, part) = (group / 4, group % 4);
            let four = _mm256_and_si256(shifted(load(64 * half + part % 2 * 32), part / 2 * 4), low);
            let two = _mm256_and_si256(shifted(load(128 + 32 * half), 2 * part), _mm256_set1_epi8(3));
            _mm256_or_si256(four, _mm256_slli_epi16::<4>(two))
        }
        Lies::Behind(Codes::Int2) => {
            // SAFETY: the caller's promise.
            let fours = _mm256_set1_epi64x(unsafe { block.cast::<i64>().read_unaligned() });
            let shifted = _mm256_srlv_epi64(fours, _mm256_set_epi64x(6, 4, 2, 0));
            _mm256_and_si256(shifted, _mm256_set1_epi8(3))
        }
        // SAFETY: the caller's promise.
        Lies::Behind(Codes::Int4) => unsafe { nibbles(block) },
        Lies::Behind(Codes::Int8 | Codes::E4m3) => load(0),
        // SAFETY: the caller's promise.
        Lies::Behind(Codes::E2m1) => _mm256_shuffle_epi8(twice(DOUBLED), unsafe { nibbles(block) }),
    }
}

/// Bytes as 16 bits: elements 0..8 and 16..24, then 8..16 and 24..32.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(codes: __m256i) -> [__m256i; 2] {
    let zero = _mm256_setzero_si256();
    [_mm256_unpacklo_epi8(codes, zero), _mm256_unpackhi_epi8(codes, zero)]
}

/// The integers of a group of a block, of a plane: elements 0..8 and 16..24, then 8..16 and 24..32.
///
/// # Safety
/// The block is of this type.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn integers<F: Format>(block: *const u8, (group, plane): (usize, usize)) -> [__m256i; 2] {
    // SAFETY: passed on.
    let codes = unsafe { codes::<F>(block, group) };
    if F::PLANES == 1 {
        return widened(codes);
    }
    if matches!(F::LIES, Lies::Nf4) {
        let [low, high] = NF4_BYTES[plane].map(|bytes| _mm256_shuffle_epi8(twice(bytes), codes));
        return [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
    }
    // By exponent: the significand's upper bit, and its shift.
    const UPPER: [u8; 16] = [0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8];
    const SHIFTS: [[u8; 16]; 2] = [
        [1, 1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64],
    ];
    let exponents = _mm256_and_si256(_mm256_srli_epi16::<3>(codes), _mm256_set1_epi8(15));
    let rest = _mm256_and_si256(codes, _mm256_set1_epi8(7));
    let sizes = _mm256_or_si256(rest, _mm256_shuffle_epi8(twice(UPPER), exponents));
    let signed = _mm256_sign_epi8(sizes, _mm256_or_si256(codes, _mm256_set1_epi8(1)));
    let factors = _mm256_shuffle_epi8(twice(SHIFTS[plane]), exponents);
    let ([x, y], [low, high]) = (widened(factors), widened(signed));
    // Pairs each product with one by zero.
    [_mm256_maddubs_epi16(x, low), _mm256_maddubs_epi16(y, high)]
}
