//! AVX2 and FMA: a vector is two registers of eight.
#![allow(unsafe_op_in_unsafe_fn)] // the whole trait is unsafe: pointers and preconditions are the callers'

use super::{EXP2_NEAR, LANES, Simd};
use std::arch::x86_64::*;

/// Haswell and later.
pub struct Avx2;

type V = [__m256; 2];

#[inline(always)]
unsafe fn exp2_half(x: __m256) -> __m256 {
    let x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-127.0)), _mm256_set1_ps(127.0));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let f = _mm256_sub_ps(x, n);
    let [c1, c2, c3, c4, c5] = EXP2_NEAR;
    let mut p = _mm256_set1_ps(c5);
    for c in [c4, c3, c2, c1, 1.0] {
        p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(c));
    }
    let n = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n)))
}

#[inline(always)]
unsafe fn round_half(v: __m256) -> __m128i {
    let bits = _mm256_castps_si256(v);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
    let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(high, high));
    _mm256_castsi256_si128(packed)
}

#[inline(always)]
unsafe fn lane_masks(bits: u16) -> [__m256; 2] {
    let one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let mut masks = [_mm256_setzero_ps(); 2];
    for (half, mask) in masks.iter_mut().enumerate() {
        let all = _mm256_and_si256(_mm256_set1_epi32(i32::from(bits >> (half * 8))), one);
        *mask = _mm256_castsi256_ps(_mm256_cmpeq_epi32(all, one));
    }
    masks
}

/// Transposes the 4 x 4 words of each half.
#[inline(always)]
unsafe fn fours(rows: [__m256; 4]) -> [__m256; 4] {
    let [a, b, c, d] = rows;
    let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (low_next, high_next) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    [
        _mm256_shuffle_ps::<0x44>(low, low_next),
        _mm256_shuffle_ps::<0xee>(low, low_next),
        _mm256_shuffle_ps::<0x44>(high, high_next),
        _mm256_shuffle_ps::<0xee>(high, high_next),
    ]
}

/// Converts eight e4m3 codes, one per dword, by moving bits; the smallest codes, which are multiples of 2^-9, and NaN
/// are special cases.
#[inline(always)]
unsafe fn e4m3_half(codes: __m256i) -> __m256 {
    let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)));
    let code = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
    let bits = _mm256_add_epi32(_mm256_slli_epi32::<20>(code), _mm256_set1_epi32(120 << 23));
    let small = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(1.0 / 512.0));
    let is_small = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), code));
    let value = _mm256_blendv_ps(_mm256_castsi256_ps(bits), small, is_small);
    let is_none = _mm256_castsi256_ps(_mm256_cmpeq_epi32(code, _mm256_set1_epi32(0x7f)));
    let value = _mm256_blendv_ps(value, _mm256_set1_ps(f32::NAN), is_none);
    _mm256_or_ps(value, _mm256_castsi256_ps(sign))
}

// SAFETY: the intrinsics used are AVX2 and FMA, which the callers guarantee.
unsafe impl Simd for Avx2 {
    type V = V;
    const PAIRS: bool = false;
    const TILE: (usize, usize) = (6, 1);

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        _mm256_storeu_ps(p, v[0]);
        _mm256_storeu_ps(p.add(8), v[1]);
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
    }
    #[inline(always)]
    unsafe fn exp2(x: V) -> V {
        [exp2_half(x[0]), exp2_half(x[1])]
    }
    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        let mut x = [0.0f32; 8];
        _mm256_storeu_ps(x.as_mut_ptr(), _mm256_add_ps(v[0], v[1]));
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }
    #[inline(always)]
    unsafe fn peak(v: V) -> f32 {
        let mut x = [0.0f32; 8];
        _mm256_storeu_ps(x.as_mut_ptr(), _mm256_max_ps(v[0], v[1]));
        x.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn select(bits: u16, a: V, b: V) -> V {
        let masks = lane_masks(bits);
        [_mm256_blendv_ps(b[0], a[0], masks[0]), _mm256_blendv_ps(b[1], a[1], masks[1])]
    }
    #[inline(always)]
    unsafe fn between(p: *const i32, lo: i32, hi: i32) -> u16 {
        let mut bits = 0;
        for half in 0..2 {
            let x = _mm256_loadu_si256(p.add(half * 8).cast());
            let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), x);
            let above = _mm256_cmpgt_epi32(x, _mm256_set1_epi32(hi));
            let out = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_or_si256(below, above))) as u16;
            bits |= (!out & 0xff) << (half * 8);
        }
        bits
    }
    #[inline(always)]
    unsafe fn widen(p: *const u16) -> V {
        let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
        ]
    }
    #[inline(always)]
    unsafe fn narrow(p: *mut u16, v: V) {
        _mm_storeu_si128(p.cast(), round_half(v[0]));
        _mm_storeu_si128(p.add(8).cast(), round_half(v[1]));
    }
    #[inline(always)]
    unsafe fn whole(p: *const i8) -> V {
        let codes = _mm_loadu_si128(p.cast());
        [
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes))),
        ]
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> V {
        let codes = _mm_loadu_si128(p.cast());
        [e4m3_half(_mm256_cvtepu8_epi32(codes)), e4m3_half(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(codes)))]
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [V; LANES]) {
        let mut turned = [[_mm256_setzero_ps(); 2]; LANES];
        for right in 0..2 {
            for below in 0..2 {
                let mut square = [_mm256_setzero_ps(); 8];
                for i in 0..8 {
                    square[i] = rows[8 * below + i][right];
                }
                let (mut upper, mut lower) = ([_mm256_setzero_ps(); 4], [_mm256_setzero_ps(); 4]);
                for i in 0..4 {
                    upper[i] = _mm256_permute2f128_ps::<0x20>(square[i], square[i + 4]);
                    lower[i] = _mm256_permute2f128_ps::<0x31>(square[i], square[i + 4]);
                }
                let (upper, lower) = (fours(upper), fours(lower));
                for i in 0..4 {
                    turned[8 * right + i][below] = upper[i];
                    turned[8 * right + 4 + i][below] = lower[i];
                }
            }
        }
        *rows = turned;
    }
    #[inline(always)]
    unsafe fn columns(rows: &[*const u8; LANES], at: usize) -> [V; LANES] {
        let upper = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
        let mut columns = [[_mm256_setzero_ps(); 2]; LANES];
        // Pairs of elements are transposed as words, then separated: half as many shuffles.
        for half in 0..2 {
            for quarter in 0..2 {
                let mut words = [_mm256_setzero_ps(); 4];
                for i in 0..4 {
                    let from = at + 16 * quarter;
                    let low = _mm_loadu_ps(rows[8 * half + i].add(from).cast());
                    let high = _mm_loadu_ps(rows[8 * half + 4 + i].add(from).cast());
                    words[i] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high);
                }
                for (i, pair) in fours(words).into_iter().enumerate() {
                    let column = 8 * quarter + 2 * i;
                    let even = _mm256_slli_epi32::<16>(_mm256_castps_si256(pair));
                    columns[column][half] = _mm256_castsi256_ps(even);
                    columns[column + 1][half] = _mm256_and_ps(pair, upper);
                }
            }
        }
        columns
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn dot(acc: V, a: *const u32, b: V) -> V {
        let a = _mm256_broadcast_ss(&*a.cast::<f32>());
        [_mm256_fmadd_ps(a, b[0], acc[0]), _mm256_fmadd_ps(a, b[1], acc[1])]
    }
    #[inline(always)]
    unsafe fn pair(_: V, _: V) -> V {
        unreachable!("words of this instruction set hold one f32")
    }
    #[inline(always)]
    unsafe fn zip(_: V, _: V) -> (V, V) {
        unreachable!("words of this instruction set hold one f32")
    }
}
