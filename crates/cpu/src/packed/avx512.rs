//! The kernels with AVX-512 and its products of integers (VNNI): `vpdpwssd` adds the products of two neighbours to an element of 32 bits.
//! Sums of integers are exact, and what is added in f32 is added in the order of the portable kernel.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::avx2::octets::octet_vnni;
use super::avx2::stored;
use super::format::{Columns, Format, GROUP, OCTET};
use super::panel::{Panel, STEPS, Tile};
use super::rows::{GroupSums, Rows};

/// Whether the processor multiplies so at this level.
pub(super) fn has(isa: crate::isa::Isa) -> bool {
    isa >= crate::isa::Isa::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// Where step's pair is among those of a row, which are in the order of widened bytes.
const fn place_of(step: usize) -> usize {
    match step / 4 {
        1 => step + 4,
        2 => step - 4,
        _ => step,
    }
}

/// What a group adds to sixteen columns of a row: factors of its halves, or of all of it the first, and offsets if the type has them.
#[target_feature(enable = "avx512f")]
#[inline]
fn added<F: Format>(
    sum: __m512,
    [first, second]: [__m512i; 2],
    (factors, offsets): ([__m512; 2], __m512),
    part: &GroupSums,
) -> __m512 {
    let of = |sum: __m512i, factor: __m512| _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sum));
    let mut term = of(first, factors[0]);
    if F::FACTORS == 2 {
        term = _mm512_add_ps(term, of(second, factors[1]));
    }
    if F::OFFSET {
        term = _mm512_sub_ps(term, _mm512_mul_ps(offsets, _mm512_set1_ps(part.total)));
    }
    _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(part.scale), term))
}

/// As [`super::avx2::micro`].
///
/// # Safety
/// As there, and the processor [`has`] it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn micro<F: Format, const R: usize>(
    panel: &Panel,
    (from, groups): (usize, usize),
    rows: Rows,
    tile: *mut Tile,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut tiles: [__m512; R] = std::array::from_fn(|row| _mm512_loadu_ps(tile.add(row).cast()));
        for group in 0..groups {
            let place = from + group;
            let x: [*const i32; R] = std::array::from_fn(|row| {
                rows.codes.add(row * rows.stride + place * GROUP).cast::<i32>().cast_const()
            });
            let mut sums = [[_mm512_setzero_si512(); R]; 2];
            for plane in 0..F::PLANES {
                let w = panel.codes[group * F::PLANES + plane].as_ptr().cast::<__m512i>();
                for half in 0..2 {
                    let sums = &mut sums[if F::PLANES == 2 || F::FACTORS == 1 { plane } else { half }];
                    for step in half * STEPS / 2..(half + 1) * STEPS / 2 {
                        let w = _mm512_load_si512(w.add(step));
                        for (sum, x) in sums.iter_mut().zip(x) {
                            let x = _mm512_set1_epi32(x.add(place_of(step)).read_unaligned());
                            *sum = _mm512_dpwssd_epi32(*sum, w, x);
                        }
                    }
                }
            }
            let load = |from: &Tile| _mm512_load_ps(from.as_ptr());
            let [first, second] = &panel.factors[group];
            let factors = [load(first), if F::FACTORS == 2 { load(second) } else { load(first) }];
            let offsets = if F::OFFSET { load(&panel.offsets[group]) } else { _mm512_setzero_ps() };
            for (row, tile) in tiles.iter_mut().enumerate() {
                let part = &*rows.parts.add(row * (rows.k / GROUP) + place);
                *tile = added::<F>(*tile, [sums[0][row], sums[1][row]], (factors, offsets), part);
            }
        }
        for (row, sum) in tiles.into_iter().enumerate() {
            _mm512_storeu_ps(tile.add(row).cast(), sum);
        }
    }
}

/// As [`super::avx2::octet`].
///
/// # Safety
/// As there; columns are interleaved, and the processor [`has`] it.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
pub(super) unsafe fn octet<F: Format, const M: usize>(columns: Columns, rows: Rows) -> [[f32; OCTET]; M] {
    // SAFETY: passed on.
    unsafe { octet_vnni::<F, M>(columns, rows) }.map(|x| stored(x))
}
