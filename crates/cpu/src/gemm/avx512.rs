//! The AVX-512 kernels: 14 x 32 tiles, f32 with fused multiply-add, and bf16 pairs with `vdpbf16ps`.
//!
//! 28 of 32 registers hold sums, two hold B, one a broadcast of A: 16 loads for 28 products.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use pack512::first;

use super::kernel::{Kind, Panels, nothing};
use super::lanes512::{MR, NR, narrow, widen};
use super::{Elem, MatMut, block::Tile, few512, pack512, slim512};

/// See [`Kind::stream_bytes`].
const STREAM_BYTES: usize = 16 << 20;

/// Makes non-temporal stores visible to other threads.
unsafe fn fence() {
    // SAFETY: every processor with AVX-512 has the instruction.
    unsafe { _mm_sfence() }
}

/// Panels `[k][width]` of f32.
pub(super) static KIND_F32: Kind = Kind {
    mr: MR,
    nr: NR,
    unit: 1,
    kc: 256,
    size: 4,
    block: (350, 1024),
    keep: 0,
    edges: (14, 14),
    group: 4,
    pack_first_bytes: 0,
    pack_a: pack512::f32_a,
    pack_b: pack512::f32_b,
    micro: micro_f32,
    prefetch_lines: 0,
    enter: nothing,
    leave: fence,
    load,
    store,
    round: None,
    stream_bytes: STREAM_BYTES,
    few: Some((few512::ROWS, few512::few_f32)),
    slim: None,
    few_widens: false,
};

/// Panels `[k / 2][width][2]` of bf16.
pub(super) static KIND_BF16: Kind = Kind {
    mr: MR,
    nr: NR,
    unit: 2,
    kc: 384,
    size: 2,
    block: (518, 1536),
    keep: 0,
    edges: (14, 14),
    group: 4,
    pack_first_bytes: 4 << 20,
    pack_a: pack512::bf16_a,
    pack_b: pack512::bf16_b,
    micro: micro_bf16,
    prefetch_lines: 0,
    enter: nothing,
    leave: fence,
    load,
    store: store_flushed,
    round: Some(round),
    stream_bytes: STREAM_BYTES,
    few: Some((few512::ROWS_BF16, few512::few_bf16)),
    slim: Some((slim512::COLUMNS, slim512::slim)),
    few_widens: false,
};

/// Defines a micro-kernel: `$step(sum, a dword, b)` is one unit of k for 16 columns. A panel of A holds MR dwords per
/// unit whatever the number of rows computed.
macro_rules! kernel {
    ($name:ident, $tile:ident, $features:literal, $step:expr) => {
        /// See [`super::kind::Micro`].
        #[target_feature(enable = $features)]
        unsafe fn $name(steps: usize, panels: Panels, c: *mut f32, rows: usize, fresh: bool) {
            let (a, b) = (panels.a, panels.b);
            // SAFETY: passed on.
            unsafe {
                match rows {
                    1 => $tile::<1>(steps, a.cast(), b.cast(), c, fresh),
                    2 => $tile::<2>(steps, a.cast(), b.cast(), c, fresh),
                    3 | 4 => $tile::<4>(steps, a.cast(), b.cast(), c, fresh),
                    5..=8 => $tile::<8>(steps, a.cast(), b.cast(), c, fresh),
                    9..=11 => $tile::<11>(steps, a.cast(), b.cast(), c, fresh),
                    _ => $tile::<14>(steps, a.cast(), b.cast(), c, fresh),
                }
            }
        }

        /// The first `R` rows of a tile.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn $tile<const R: usize>(
            steps: usize,
            a: *const i32,
            b: *const f32,
            c: *mut f32,
            fresh: bool,
        ) {
            // SAFETY: `a` and `b` hold `steps` times MR and NR dwords, `c` holds MR x NR sums.
            unsafe {
                let mut sum = [[_mm512_setzero_ps(); 2]; R];
                if !fresh {
                    for i in 0..R {
                        sum[i] = [_mm512_loadu_ps(c.add(i * NR)), _mm512_loadu_ps(c.add(i * NR + 16))];
                    }
                }
                // The next tile of C follows this one, often in a slower cache.
                for line in 0..2 * MR {
                    _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(MR * NR + line * 16).cast());
                }
                let (mut a, mut b) = (a, b);
                for _ in 0..steps {
                    let (b0, b1) = (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16)));
                    for i in 0..R {
                        let x = _mm512_set1_epi32(*a.add(i));
                        sum[i] = [$step(sum[i][0], x, b0), $step(sum[i][1], x, b1)];
                    }
                    (a, b) = (a.add(MR), b.add(NR));
                }
                for i in 0..R {
                    _mm512_storeu_ps(c.add(i * NR), sum[i][0]);
                    _mm512_storeu_ps(c.add(i * NR + 16), sum[i][1]);
                }
            }
        }
    };
}

kernel!(micro_f32, tile_f32, "avx512f", |sum, x, b| _mm512_fmadd_ps(_mm512_castsi512_ps(x), b, sum));
kernel!(micro_bf16, tile_bf16, "avx512f,avx512bf16", |sum, x: __m512i, b: __m512| {
    _mm512_dpbf16_ps(
        sum,
        std::mem::transmute::<__m512i, __m512bh>(x),
        std::mem::transmute::<__m512, __m512bh>(b),
    )
});

/// See [`super::block::load`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn load(tile: &Tile, c: &MatMut) {
    let lanes = first(tile.cols);
    for row in 0..tile.rows {
        let at = (tile.row + row) * c.stride + tile.col;
        // SAFETY: masked to the valid columns of C; a row of a tile holds NR values.
        unsafe {
            let to = tile.ptr.add(row * NR);
            let (low, high) = match c.elem {
                Elem::F32 => {
                    let from = c.ptr.cast::<f32>().add(at);
                    let low = _mm512_maskz_loadu_ps(lanes as u16, from);
                    (low, _mm512_maskz_loadu_ps((lanes >> 16) as u16, from.wrapping_add(16)))
                }
                Elem::Bf16 => {
                    let both = _mm512_maskz_loadu_epi16(lanes, c.ptr.cast::<i16>().add(at));
                    (widen(_mm512_castsi512_si256(both)), widen(_mm512_extracti64x4_epi64::<1>(both)))
                }
            };
            _mm512_storeu_ps(to, low);
            _mm512_storeu_ps(to.add(16), high);
        }
    }
}

/// True if whole lines of a large C are written with non-temporal stores.
#[inline(always)]
fn past_caches(tile: &Tile, to: *mut u8) -> bool {
    tile.stream && tile.cols == NR && to.addr().is_multiple_of(64)
}

/// See [`super::block::store`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn store(tile: &Tile, c: &MatMut) {
    let lanes = first(tile.cols);
    for row in 0..tile.rows {
        let at = (tile.row + row) * c.stride + tile.col;
        // SAFETY: masked to the valid columns of C; a row of a tile holds NR values.
        unsafe {
            let from = tile.ptr.add(row * NR);
            let (low, high) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
            match c.elem {
                Elem::F32 if past_caches(tile, c.ptr.cast::<f32>().add(at).cast()) => {
                    let to = c.ptr.cast::<f32>().add(at);
                    _mm512_stream_ps(to, low);
                    _mm512_stream_ps(to.add(16), high);
                }
                Elem::F32 => {
                    let to = c.ptr.cast::<f32>().add(at);
                    _mm512_mask_storeu_ps(to, lanes as u16, low);
                    _mm512_mask_storeu_ps(to.wrapping_add(16), (lanes >> 16) as u16, high);
                }
                Elem::Bf16 => {
                    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(narrow(low)), narrow(high));
                    let to = c.ptr.cast::<i16>().add(at);
                    if lanes == !0 {
                        _mm512_storeu_si512(to.cast(), both);
                    } else {
                        _mm512_mask_storeu_epi16(to, lanes, both);
                    }
                }
            }
        }
    }
}

/// [`store`] of sums of `vdpbf16ps`, none of which is denormal: rounds to bf16 by `vcvtne2ps2bf16`, which flushes
/// denormals.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn store_flushed(tile: &Tile, c: &MatMut) {
    if c.elem == Elem::F32 {
        // SAFETY: passed on.
        return unsafe { store(tile, c) };
    }
    let lanes = first(tile.cols);
    for row in 0..tile.rows {
        let at = (tile.row + row) * c.stride + tile.col;
        // SAFETY: masked to the valid columns of C; a row of a tile holds NR values; 32 bf16 are 64 bytes.
        unsafe {
            let from = tile.ptr.add(row * NR);
            let both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from));
            let both = std::mem::transmute::<__m512bh, __m512i>(both);
            let to = c.ptr.cast::<i16>().add(at);
            if past_caches(tile, to.cast()) {
                _mm512_stream_si512(to.cast(), both);
            } else if lanes == !0 {
                _mm512_storeu_si512(to.cast(), both);
            } else {
                _mm512_mask_storeu_epi16(to, lanes, both);
            }
        }
    }
}

/// Rounds the first rows of a tile to bf16, with the bits that [`store_flushed`] writes and [`load`] reads back.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn round(tile: *mut f32, rows: usize) {
    for row in 0..rows {
        // SAFETY: a row of a tile holds NR values.
        unsafe {
            let at = tile.add(row * NR);
            let both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(at.add(16)), _mm512_loadu_ps(at));
            let both = std::mem::transmute::<__m512bh, __m512i>(both);
            _mm512_storeu_ps(at, widen(_mm512_castsi512_si256(both)));
            _mm512_storeu_ps(at.add(16), widen(_mm512_extracti64x4_epi64::<1>(both)));
        }
    }
}
