//! Sums of products of codes as floating-point numbers.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::packed::format::{Format, OCTET};
use crate::packed::rows::GroupSums;

/// `sum - bias x integers`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unbiased<F: Format>(sum: __m256i, integers: i32, zeros: &[i32; OCTET]) -> __m256i {
    if F::ZEROS {
        // SAFETY: eight integers.
        let zeros = unsafe { _mm256_loadu_si256(zeros.as_ptr().cast()) };
        return _mm256_sub_epi32(sum, _mm256_mullo_epi32(zeros, _mm256_set1_epi32(integers)));
    }
    if F::BIAS == 0 {
        return sum;
    }
    // Multiplied as a vector: a scalar would take a detour through two more registers.
    let integers = pinned(_mm256_set1_epi32(integers));
    _mm256_sub_epi32(sum, _mm256_mullo_epi32(integers, _mm256_set1_epi32(F::BIAS)))
}

/// Adds a group's contribution to eight columns of a row: the factors of its halves, or the first for all of it, and
/// offsets if the type has them.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn added<F: Format>(
    sum: __m256,
    [first, second]: [__m256i; 2],
    (factors, offsets): ([__m256; 2], __m256),
    part: &GroupSums,
) -> __m256 {
    let of = |sum: __m256i, factor: __m256| _mm256_mul_ps(factor, _mm256_cvtepi32_ps(sum));
    let mut term = of(first, factors[0]);
    if F::FACTORS == 2 {
        term = _mm256_add_ps(term, of(second, factors[1]));
    }
    if F::OFFSET {
        term = _mm256_sub_ps(term, _mm256_mul_ps(offsets, _mm256_set1_ps(part.total)));
    }
    _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(part.scale), term))
}

/// Eight numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(in super::super) fn stored(x: __m256) -> [f32; OCTET] {
    let mut out = [0.0; OCTET];
    // SAFETY: eight f32.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) };
    out
}

/// Returns `x`, forcing its computation here: the compiler would otherwise reorder additions of loaded values so that
/// there are not enough registers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn pinned(mut x: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags)) };
    x
}
