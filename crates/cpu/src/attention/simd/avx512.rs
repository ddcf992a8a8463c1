//! AVX-512 F, BW, DQ, VL, and with `PAIRS` also BF16.
#![allow(unsafe_op_in_unsafe_fn)] // the whole trait is unsafe: pointers and preconditions are the callers'

use super::{EXP2_SHORT, EXP2_UNIT, LANES, Simd};
use std::arch::x86_64::*;

/// With `PAIRS`, words hold two bf16 and `dot` is `vdpbf16ps`.
pub struct Avx512<const PAIRS: bool>;

type V = __m512;

/// For `zip`: elements `first..first + 16` of two rows of bf16 in turn.
const fn interleave(first: u16) -> [u16; 32] {
    let mut index = [0u16; 32];
    let mut i = 0;
    while i < 16 {
        index[2 * i] = first + i as u16;
        index[2 * i + 1] = first + 32 + i as u16;
        i += 1;
    }
    index
}

static LOW: [u16; 32] = interleave(0);
static HIGH: [u16; 32] = interleave(16);

// SAFETY: the intrinsics used are those named at the top of the file, which the callers guarantee.
unsafe impl<const PAIRS: bool> Simd for Avx512<PAIRS> {
    type V = V;
    const PAIRS: bool = PAIRS;
    // Sixteen sums cover the latency of two products a cycle, and 4 divides every row count but the last.
    const TILE: (usize, usize) = (4, 4);

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        _mm512_storeu_ps(p, v)
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn exp2(x: V) -> V {
        // x - floor(x), no exceptions; scalef takes the floor itself.
        let f = _mm512_reduce_ps::<0x09>(x);
        let mut p;
        if PAIRS {
            let [c1, c2, c3, c4] = EXP2_SHORT;
            p = _mm512_set1_ps(c4);
            for c in [c3, c2, c1, 1.0] {
                p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(c));
            }
        } else {
            let [c1, c2, c3, c4, c5] = EXP2_UNIT;
            p = _mm512_set1_ps(c5);
            for c in [c4, c3, c2, c1, 1.0] {
                p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(c));
            }
        }
        _mm512_scalef_ps(p, x)
    }
    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        _mm512_reduce_add_ps(v)
    }
    #[inline(always)]
    unsafe fn peak(v: V) -> f32 {
        _mm512_reduce_max_ps(v)
    }
    #[inline(always)]
    unsafe fn exceeds(v: V, limit: f32) -> bool {
        _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(v, _mm512_set1_ps(limit)) != 0
    }
    #[inline(always)]
    unsafe fn select(bits: u16, a: V, b: V) -> V {
        _mm512_mask_mov_ps(b, bits, a)
    }
    #[inline(always)]
    unsafe fn between(p: *const i32, lo: i32, hi: i32) -> u16 {
        let x = _mm512_loadu_si512(p.cast());
        let above = _mm512_cmpge_epi32_mask(x, _mm512_set1_epi32(lo));
        _mm512_mask_cmple_epi32_mask(above, x, _mm512_set1_epi32(hi))
    }
    #[inline(always)]
    unsafe fn widen(p: *const u16) -> V {
        let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
    }
    #[inline(always)]
    unsafe fn narrow(p: *mut u16, v: V) {
        if PAIRS {
            let half: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
            _mm256_storeu_si256(p.cast(), half);
            return;
        }
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let chosen = _mm512_mask_mov_epi32(rounded, nan, quiet);
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(chosen)));
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [V; LANES]) {
        let mut r = [_mm512_setzero_si512(); LANES];
        for i in 0..LANES {
            r[i] = _mm512_castps_si512(rows[i]);
        }
        let mut t = [_mm512_setzero_si512(); LANES];
        let mut u = t;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
            u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
            u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
            u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
        }
        for i in 0..4 {
            t[i] = _mm512_shuffle_i32x4::<0x88>(u[i], u[i + 4]);
            t[i + 4] = _mm512_shuffle_i32x4::<0xdd>(u[i], u[i + 4]);
            t[i + 8] = _mm512_shuffle_i32x4::<0x88>(u[i + 8], u[i + 12]);
            t[i + 12] = _mm512_shuffle_i32x4::<0xdd>(u[i + 8], u[i + 12]);
        }
        for i in 0..8 {
            rows[i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4::<0x88>(t[i], t[i + 8]));
            rows[i + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4::<0xdd>(t[i], t[i + 8]));
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn dot(acc: V, a: *const u32, b: V) -> V {
        if PAIRS {
            let a: __m512bh = std::mem::transmute(_mm512_set1_epi32(*a as i32));
            _mm512_dpbf16_ps(acc, a, std::mem::transmute::<__m512, __m512bh>(b))
        } else {
            _mm512_fmadd_ps(_mm512_set1_ps(*a.cast::<f32>()), b, acc)
        }
    }
    #[inline(always)]
    unsafe fn pair(low: V, high: V) -> V {
        std::mem::transmute(_mm512_cvtne2ps_pbh(high, low))
    }
    #[inline(always)]
    unsafe fn zip(a: V, b: V) -> (V, V) {
        let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
        (
            _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_loadu_si512(LOW.as_ptr().cast()), b)),
            _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_loadu_si512(HIGH.as_ptr().cast()), b)),
        )
    }
}
