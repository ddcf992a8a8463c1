//! Lookup of an NF4 block's elements in its table.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use fathom_tensor::blocks::{NF4_BLOCK, NF4_VALUES};
use half::bf16;

/// Bytes of a block's codes.
const BYTES: usize = NF4_BLOCK / 2;

/// The values of a block's codes.
#[inline(always)]
pub(super) fn table<T: Copy>(scale: f32, of: impl Fn(f32) -> T) -> [T; 16] {
    NF4_VALUES.map(|value| of(value * scale))
}

/// Element types of the tables.
pub(super) trait Table: Copy {
    /// Looks elements up one by one.
    #[inline(always)]
    fn look_up(table: &[Self; 16], codes: &[u8; BYTES], out: &mut [Self; NF4_BLOCK]) {
        for (pair, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
            *out = [table[usize::from(pair >> 4)], table[usize::from(pair & 15)]];
        }
    }

    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn look_up_avx2(table: &[Self; 16], codes: &[u8; BYTES], out: &mut [Self; NF4_BLOCK]);

    /// # Safety
    /// The processor has AVX-512 F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    unsafe fn look_up_avx512(table: &[Self; 16], codes: &[u8; BYTES], out: &mut [Self; NF4_BLOCK]);
}

/// Sixteen bytes of codes as 32 indices, in the order of the elements.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn indices(codes: *const u8) -> [__m128i; 2] {
    // SAFETY: the caller gives sixteen bytes.
    let pairs = unsafe { _mm_loadu_si128(codes.cast()) };
    let mask = _mm_set1_epi8(15);
    let (first, second) = (_mm_and_si128(_mm_srli_epi16(pairs, 4), mask), _mm_and_si128(pairs, mask));
    [_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn bf16_avx2(table: &[bf16; 16], codes: &[u8; BYTES], out: &mut [bf16; NF4_BLOCK]) {
    // SAFETY: a table is 32 bytes, a block's codes are 32, and 64 elements are written, sixteen at a time.
    unsafe {
        let table = table.as_ptr().cast::<__m128i>();
        let (a, b) = (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1)));
        // The lower bytes of the sixteen values, and the upper ones.
        let even = _mm_set1_epi16(255);
        let low = _mm_packus_epi16(_mm_and_si128(a, even), _mm_and_si128(b, even));
        let high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
        for half in 0..2 {
            for (part, index) in indices(codes.as_ptr().add(16 * half)).into_iter().enumerate() {
                let (low, high) = (_mm_shuffle_epi8(low, index), _mm_shuffle_epi8(high, index));
                let out = out.as_mut_ptr().add(32 * half + 16 * part).cast::<__m128i>();
                _mm_storeu_si128(out, _mm_unpacklo_epi8(low, high));
                _mm_storeu_si128(out.add(1), _mm_unpackhi_epi8(low, high));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn bf16_avx512(table: &[bf16; 16], codes: &[u8; BYTES], out: &mut [bf16; NF4_BLOCK]) {
    // SAFETY: as in `bf16_avx2`, 32 elements at a time.
    unsafe {
        let table = _mm512_castsi256_si512(_mm256_loadu_si256(table.as_ptr().cast()));
        for half in 0..2 {
            let [first, second] = indices(codes.as_ptr().add(16 * half));
            let index = _mm512_cvtepu8_epi16(_mm256_set_m128i(second, first));
            let values = _mm512_permutexvar_epi16(index, table);
            _mm512_storeu_si512(out.as_mut_ptr().add(32 * half).cast(), values);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn f32_avx2(table: &[f32; 16], codes: &[u8; BYTES], out: &mut [f32; NF4_BLOCK]) {
    // SAFETY: as in `bf16_avx2`, eight elements at a time.
    unsafe {
        let (low, high) = (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8)));
        for half in 0..2 {
            for (part, all) in indices(codes.as_ptr().add(16 * half)).into_iter().enumerate() {
                for (eight, index) in [all, _mm_srli_si128(all, 8)].into_iter().enumerate() {
                    let index = _mm256_cvtepu8_epi32(index);
                    // The index's top bit, as a sign, selects the upper half of the table.
                    let upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
                    let values = _mm256_blendv_ps(
                        _mm256_permutevar8x32_ps(low, index),
                        _mm256_permutevar8x32_ps(high, index),
                        upper,
                    );
                    _mm256_storeu_ps(out.as_mut_ptr().add(32 * half + 16 * part + 8 * eight), values);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn f32_avx512(table: &[f32; 16], codes: &[u8; BYTES], out: &mut [f32; NF4_BLOCK]) {
    // SAFETY: as in `bf16_avx2`.
    unsafe {
        let table = _mm512_loadu_ps(table.as_ptr());
        for half in 0..2 {
            for (part, index) in indices(codes.as_ptr().add(16 * half)).into_iter().enumerate() {
                let values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(index), table);
                _mm512_storeu_ps(out.as_mut_ptr().add(32 * half + 16 * part), values);
            }
        }
    }
}

macro_rules! table {
    ($t:ty, $avx2:ident, $avx512:ident) => {
        impl Table for $t {
            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn look_up_avx2(table: &[$t; 16], codes: &[u8; BYTES], out: &mut [$t; NF4_BLOCK]) {
                // SAFETY: passed on.
                unsafe { $avx2(table, codes, out) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn look_up_avx512(table: &[$t; 16], codes: &[u8; BYTES], out: &mut [$t; NF4_BLOCK]) {
                // SAFETY: passed on.
                unsafe { $avx512(table, codes, out) }
            }
        }
    };
}

table!(f32, f32_avx2, f32_avx512);
table!(bf16, bf16_avx2, bf16_avx512);
