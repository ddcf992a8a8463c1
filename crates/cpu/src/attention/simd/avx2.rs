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
    unsafe fn transpose(rows: &mut [V; LANES]) {
        let mut words = [[0.0f32; LANES]; LANES];
        for (i, row) in rows.iter().enumerate() {
            Self::store(words[i].as_mut_ptr(), *row);
        }
        for (i, row) in rows.iter_mut().enumerate() {
            let mut column = [0.0f32; LANES];
            for j in 0..LANES {
                column[j] = words[j][i];
            }
            *row = Self::load(column.as_ptr());
        }
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
