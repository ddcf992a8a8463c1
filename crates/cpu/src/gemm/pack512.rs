//! Packing with AVX-512: every panel is `[k units][width]` dwords, a dword being one f32 or a pair of bf16.
//!
//! An operand with contiguous k is transposed in registers, 16 dwords of 16 rows at a time; one with
//! contiguous outer index is copied, widened or interleaved row by row.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::Elem;
use super::kernel::{PackRange, Source};
use super::lanes512::{MR, NR, widen};

/// Forms of a dword in a panel.
pub(super) const F32: u8 = 0;
const WIDENED: u8 = 1;
pub(super) const PAIR: u8 = 2;

/// Source elements per dword of k.
pub(super) const fn unit(form: u8) -> usize {
    if form == PAIR { 2 } else { 1 }
}

/// A panels of f32 for the 14-row kernel. See [`super::kind::Pack`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn f32_a(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on.
    unsafe {
        match source.elem {
            Elem::F32 => pack::<F32, MR>(source, cut, dst.cast()),
            Elem::Bf16 => pack::<WIDENED, MR>(source, cut, dst.cast()),
        }
    }
}

/// B panels of f32. See [`super::kind::Pack`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn f32_b(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on.
    unsafe {
        match source.elem {
            Elem::F32 => pack::<F32, NR>(source, cut, dst.cast()),
            Elem::Bf16 => pack::<WIDENED, NR>(source, cut, dst.cast()),
        }
    }
}

/// A panels of bf16 pairs. See [`super::kind::Pack`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn bf16_a(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on; both operands are bf16 where this kind is chosen.
    unsafe { pack::<PAIR, MR>(source, cut, dst.cast()) }
}

/// B panels of bf16 pairs. See [`super::kind::Pack`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn bf16_b(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on; both operands are bf16 where this kind is chosen.
    unsafe { pack::<PAIR, NR>(source, cut, dst.cast()) }
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn pack<const FORM: u8, const W: usize>(source: &Source, cut: PackRange, dst: *mut i32) {
    let steps = (cut.k1 - cut.k0).div_ceil(unit(FORM));
    // SAFETY: passed on.
    unsafe {
        if source.k_contiguous {
            for panel in 0..cut.panels {
                transpose_panel::<FORM, W>(source, cut.o0 + panel * W, cut, dst.add(panel * steps * W));
            }
        } else if FORM == PAIR {
            zip_rows::<W>(source, cut, steps, dst);
        } else {
            copy_rows::<FORM, W>(source, cut, steps, dst);
        }
    }
}

/// Packs one panel from rows with contiguous k. Stores of 16 dwords overrun a 14-wide row; the next row, stored later,
/// overwrites the excess, and the last one needs the slack of [`super::kind::SLACK`].
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn transpose_panel<const FORM: u8, const W: usize>(
    source: &Source,
    o0: usize,
    cut: PackRange,
    dst: *mut i32,
) {
    let steps = (cut.k1 - cut.k0).div_ceil(unit(FORM));
    let size = source.elem.bytes();
    for half in (0..W).step_by(16) {
        // Rows past the operand repeat its last one: their sums are never stored, and a loop of fixed length keeps the
        // block in registers.
        let rows_at: [*const u8; 16] = std::array::from_fn(|i| {
            source.ptr.wrapping_add((o0 + half + i.min(W - 1)).min(source.outer - 1) * source.stride * size)
        });
        let whole = source.k.saturating_sub(cut.k0) / (16 * unit(FORM)) * 16;
        // SAFETY: the rows exist, and `load` reads at most `valid` elements of them.
        unsafe {
            for step in (0..steps).step_by(16) {
                let k = cut.k0 + step * unit(FORM);
                let valid = if step < whole { usize::MAX } else { source.k.saturating_sub(k) };
                let rows = if FORM != WIDENED && step < whole {
                    load_transposed(&rows_at, k * size)
                } else {
                    let mut rows =
                        std::array::from_fn(|i| load::<FORM>(rows_at[i].wrapping_add(k * size), valid));
                    transpose(&mut rows);
                    rows
                };
                let to = dst.add(step * W + half);
                if steps - step >= 16 {
                    for i in 0..16 {
                        _mm512_storeu_si512(to.add(i * W).cast(), rows[i]);
                    }
                } else {
                    for (i, row) in rows.iter().enumerate().take(steps - step) {
                        _mm512_storeu_si512(to.add(i * W).cast(), *row);
                    }
                }
            }
        }
    }
}

/// 16 dwords of 16 rows, transposed: quarters of four rows are loaded into the four lanes of a register, so that only
/// exchanges within lanes remain.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn load_transposed(rows: &[*const u8; 16], offset: usize) -> [__m512i; 16] {
    // Four rows at a time: a row's line is used up at once, as with a power-of-two stride the cache has no room for the
    // lines of sixteen rows.
    let mut v = [[_mm512_setzero_si512(); 4]; 4];
    for i in 0..4 {
        for quarter in 0..4 {
            // SAFETY: each row has 64 bytes at `offset`.
            let part = |lane: usize| unsafe {
                _mm_loadu_si128(rows[4 * lane + i].wrapping_add(offset + 16 * quarter).cast())
            };
            let first = _mm512_castsi128_si512(part(0));
            let two = _mm512_mask_broadcast_i32x4(first, 0x00f0, part(1));
            let three = _mm512_mask_broadcast_i32x4(two, 0x0f00, part(2));
            v[quarter][i] = _mm512_mask_broadcast_i32x4(three, 0xf000, part(3));
        }
    }
    let mut out = [_mm512_setzero_si512(); 16];
    for (quarter, v) in v.into_iter().enumerate() {
        let (a, b) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpacklo_epi32(v[2], v[3]));
        let (c, d) = (_mm512_unpackhi_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[2], v[3]));
        out[4 * quarter] = _mm512_unpacklo_epi64(a, b);
        out[4 * quarter + 1] = _mm512_unpackhi_epi64(a, b);
        out[4 * quarter + 2] = _mm512_unpacklo_epi64(c, d);
        out[4 * quarter + 3] = _mm512_unpackhi_epi64(c, d);
    }
    out
}

/// Sixteen dwords of one row, zero from element `valid` on.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn load<const FORM: u8>(from: *const u8, valid: usize) -> __m512i {
    // SAFETY: masked to the valid elements.
    unsafe {
        match FORM {
            F32 if valid >= 16 => _mm512_loadu_si512(from.cast()),
            F32 => _mm512_maskz_loadu_epi32(first(valid) as u16, from.cast()),
            PAIR if valid >= 32 => _mm512_loadu_si512(from.cast()),
            PAIR => _mm512_maskz_loadu_epi16(first(valid), from.cast()),
            _ => _mm512_castps_si512(load_widened(from, valid)),
        }
    }
}

/// Sixteen bf16 as f32, zero from element `valid` on.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load_widened(from: *const u8, valid: usize) -> __m512 {
    // SAFETY: masked to the valid elements.
    unsafe { widen(load_half(from, valid)) }
}

/// Sixteen bf16, zero from element `valid` on.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load_half(from: *const u8, valid: usize) -> __m256i {
    // SAFETY: masked to the valid elements.
    unsafe {
        if valid >= 16 {
            _mm256_loadu_si256(from.cast())
        } else {
            _mm512_castsi512_si256(_mm512_maskz_loadu_epi16(first(valid), from.cast()))
        }
    }
}

/// The first `count` of 32 lanes.
#[inline(always)]
pub(super) fn first(count: usize) -> u32 {
    if count >= 32 { !0 } else { (1 << count) - 1 }
}

/// Packs panels from rows with contiguous outer index, a few rows at a time for all panels, so that the source is read
/// in long runs. Stores of 16 dwords overrun a 14-wide row as in [`transpose_panel`], except for the last of a panel:
/// the next panel's first row may be there already.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn copy_rows<const FORM: u8, const W: usize>(
    source: &Source,
    cut: PackRange,
    steps: usize,
    dst: *mut i32,
) {
    const STEPS: usize = 16;
    for from in (0..steps).step_by(STEPS) {
        let end = (from + STEPS).min(steps);
        for panel in 0..cut.panels {
            for half in (0..W).step_by(16) {
                let o = cut.o0 + panel * W + half;
                let valid = source.outer.saturating_sub(o);
                // SAFETY: each existing row has `valid` elements from `o` on; stores are inside the panel.
                unsafe {
                    let to = dst.add(panel * steps * W + half);
                    for step in from..end {
                        let dwords = load_across::<FORM>(source, o, valid, cut.k0 + step * unit(FORM));
                        if W - half < 16 && step + 1 == steps {
                            _mm512_mask_storeu_epi32(to.add(step * W), first(W - half) as u16, dwords);
                        } else {
                            _mm512_storeu_si512(to.add(step * W).cast(), dwords);
                        }
                    }
                }
            }
        }
    }
}

/// Indices that interleave two vectors of bf16: elements `first..first + 16` of both.
const fn zip(first: u16) -> [u16; 32] {
    let mut index = [0u16; 32];
    let mut i = 0;
    while i < 16 {
        index[2 * i] = first + i as u16;
        index[2 * i + 1] = 32 + first + i as u16;
        i += 1;
    }
    index
}

static ZIP: [u16; 32] = zip(0);
static ZIP_14: [u16; 32] = zip(14);
static ZIP_16: [u16; 32] = zip(16);

/// [`copy_rows`] of bf16 pairs: one load of each of two rows serves both halves of a panel of 32, or two panels of 14.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn zip_rows<const W: usize>(source: &Source, cut: PackRange, steps: usize, dst: *mut i32) {
    const STEPS: usize = 16;
    let two = if W == MR { 2 } else { 1 };
    // SAFETY: the tables have 64 bytes; each existing row has `valid` elements from `o` on; stores are inside the
    // panels.
    unsafe {
        let low = _mm512_loadu_si512(ZIP.as_ptr().cast());
        let high = _mm512_loadu_si512(if two == 2 { &ZIP_14 } else { &ZIP_16 }.as_ptr().cast());
        for from in (0..steps).step_by(STEPS) {
            for panel in (0..cut.panels).step_by(two) {
                let o = cut.o0 + panel * W;
                let valid = first(source.outer.saturating_sub(o));
                let to = dst.add(panel * steps * W);
                let second = if two == 2 { to.add(steps * W) } else { to.add(16) };
                let both = two == 1 || panel + 1 < cut.panels;
                for step in from..(from + STEPS).min(steps) {
                    let k = cut.k0 + 2 * step;
                    let row = source.ptr.wrapping_add((k * source.stride + o) * 2);
                    let here = _mm512_maskz_loadu_epi16(if k < source.k { valid } else { 0 }, row.cast());
                    // Rows are read in short runs, which hardware prefetchers do not predict.
                    let ahead = row.wrapping_add(2 * STEPS * source.stride * 2);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(source.stride * 2).cast());
                    let below = row.wrapping_add(source.stride * 2);
                    let below =
                        _mm512_maskz_loadu_epi16(if k + 1 < source.k { valid } else { 0 }, below.cast());
                    let lanes = if two == 2 && step + 1 == steps { first(MR) as u16 } else { !0 };
                    let dwords = _mm512_permutex2var_epi16(here, low, below);
                    _mm512_mask_storeu_epi32(to.add(step * W), lanes, dwords);
                    if both {
                        let dwords = _mm512_permutex2var_epi16(here, high, below);
                        _mm512_mask_storeu_epi32(second.add(step * W), lanes, dwords);
                    }
                }
            }
        }
    }
}

/// Sixteen dwords for the outer indices from `o` on, of which `valid` exist, at `k`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load_across<const FORM: u8>(source: &Source, o: usize, valid: usize, k: usize) -> __m512i {
    let row = source.ptr.wrapping_add((k * source.stride + o) * source.elem.bytes());
    // SAFETY: masked to the elements that exist.
    unsafe { load::<FORM>(row, if k < source.k { valid } else { 0 }) }
}

/// Transposes 16 x 16 dwords.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose(r: &mut [__m512i; 16]) {
    let mut t = [_mm512_setzero_si512(); 16];
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for i in (0..16).step_by(4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for i in 0..4 {
        t[i] = _mm512_shuffle_i32x4::<0x88>(r[i], r[i + 4]);
        t[i + 4] = _mm512_shuffle_i32x4::<0xdd>(r[i], r[i + 4]);
        t[i + 8] = _mm512_shuffle_i32x4::<0x88>(r[i + 8], r[i + 12]);
        t[i + 12] = _mm512_shuffle_i32x4::<0xdd>(r[i + 8], r[i + 12]);
    }
    for i in 0..8 {
        r[i] = _mm512_shuffle_i32x4::<0x88>(t[i], t[i + 8]);
        r[i + 8] = _mm512_shuffle_i32x4::<0xdd>(t[i], t[i + 8]);
    }
}

/// 16 pairs of k of an operand with contiguous outer index, two times 16 outer indices each, from `o` and `k`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) unsafe fn pairs_across(source: &Source, o: usize, k: usize) -> [[__m512i; 16]; 2] {
    let valid = first(source.outer.saturating_sub(o));
    let mut halves = [[_mm512_setzero_si512(); 16]; 2];
    // SAFETY: the tables have 64 bytes; masked to the operand.
    unsafe {
        let low = _mm512_loadu_si512(ZIP.as_ptr().cast());
        let high = _mm512_loadu_si512(ZIP_16.as_ptr().cast());
        for pair in 0..16 {
            let row = |k: usize| {
                let from = source.ptr.wrapping_add((k * source.stride + o) * 2);
                _mm512_maskz_loadu_epi16(if k < source.k { valid } else { 0 }, from.cast())
            };
            let (here, below) = (row(k + 2 * pair), row(k + 2 * pair + 1));
            halves[0][pair] = _mm512_permutex2var_epi16(here, low, below);
            halves[1][pair] = _mm512_permutex2var_epi16(here, high, below);
        }
    }
    halves
}
