//! The tile of AVX-512, and the conversions between bf16 and f32.

use std::arch::x86_64::*;

pub(super) const MR: usize = 14;

pub(super) const NR: usize = 32;

/// Sixteen bf16 as f32.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn widen(x: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
}

/// Sixteen f32 to bf16, to nearest even; a NaN stays one. (The same bits as `half` and `vcvtneps2bf16`, but
/// keeping denormals, which that instruction flushes.)
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn narrow(x: __m512) -> __m256i {
    let bits = _mm512_castps_si512(x);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(up, nan, quiet)))
}
