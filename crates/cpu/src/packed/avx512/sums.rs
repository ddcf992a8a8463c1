//! Sums of products of codes, added to a tile.

use std::arch::x86_64::*;

use crate::packed::format::Format;
use crate::packed::rows::GroupSums;

/// Adds a group's contribution to sixteen columns of a row, from its integer sums.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn added<F: Format>(
    sum: __m512,
    [first, second]: [__m512i; 2],
    held: ([__m512; 2], __m512),
    part: &GroupSums,
) -> __m512 {
    joined::<F>(sum, [_mm512_cvtepi32_ps(first), _mm512_cvtepi32_ps(second)], held, part)
}

/// The same from f32 sums: factors of a group's halves, or the first for all of it, and offsets if the type has them.
#[target_feature(enable = "avx512f")]
#[inline]
pub(in super::super) fn joined<F: Format>(
    sum: __m512,
    [first, second]: [__m512; 2],
    (factors, offsets): ([__m512; 2], __m512),
    part: &GroupSums,
) -> __m512 {
    let mut term = _mm512_mul_ps(factors[0], first);
    if F::FACTORS == 2 {
        term = _mm512_add_ps(term, _mm512_mul_ps(factors[1], second));
    }
    if F::OFFSET {
        term = _mm512_sub_ps(term, _mm512_mul_ps(offsets, _mm512_set1_ps(part.total)));
    }
    _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(part.scale), term))
}
