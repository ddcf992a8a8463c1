//! The kernel with matrix units, for many rows: tiles of bf16 products whose sums are integers that f32 represents
//! exactly.
//!
//! An integer of a row is `256 upper + lower` ([`super::rows`]); both parts, and the codes of every format but NF4,
//! have at most eight significant bits, so they are exact in bf16. Over a group the products with the upper parts are
//! multiples of 256, and divided by it their sums stay below 2^24, as do those with the lower parts: every sum is exact
//! in whatever order tiles add, and the combination of both is rounded once, like an integer converted to f32. The bits
//! are therefore those of the other kernels. If codes are small, both parts are summed in one tile.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use fathom_tensor::grouped::Codes;

use super::avx512::joined;
use super::format::{Format, GROUP, Lies};
use super::panel::{Panel, STEPS, Tile};
use super::rows::{Rows, TILE_ROWS};

/// Elements of a tile: sixteen rows of 64 bytes.
const ELEMENTS: usize = TILE_ROWS * GROUP;

/// True if tiles can multiply codes of this format; those of NF4 have too many bits.
pub(super) const fn takes<F: Format>() -> bool {
    !matches!(F::LIES, Lies::Nf4)
}

/// True if products with both parts of an integer are summed together: 16 magnitudes of codes and 32 elements, or 32
/// and 16, stay below 2^24.
const fn together<F: Format>() -> bool {
    use fathom_tensor::ggml::Kind;
    matches!(
        F::LIES,
        Lies::Within(Kind::Q4_0 | Kind::Q4_1 | Kind::Q5_0 | Kind::Q4K | Kind::Q6K)
            | Lies::Behind(Codes::Int2 | Codes::Int4 | Codes::E2m1)
    )
}

/// True if each half of a group has its own factor.
const fn halved<F: Format>() -> bool {
    F::FACTORS == 2 && F::PLANES == 1
}

#[repr(C, align(64))]
struct Config([u8; 64]);

/// Palette 1: tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 codes of `pairs` pairs. (Intel SDM vol. 1, 18.2.)
const fn config(pairs: usize) -> Config {
    let mut bytes = [0u8; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        let rows = matches!(tile, 4 | 5);
        bytes[16 + 2 * tile] = if rows { 4 * pairs as u8 } else { 64 };
        bytes[48 + tile] = if tile > 5 { pairs as u8 } else { TILE_ROWS as u8 };
        tile += 1;
    }
    Config(bytes)
}

static WHOLE: Config = config(STEPS);
static HALF: Config = config(STEPS / 2);

/// Guard: tiles are configured while this lives.
pub(super) struct Tiles(());

impl Tiles {
    /// # Safety
    /// The processor has tiles, and the process may use them.
    pub unsafe fn of<F: Format>() -> Tiles {
        let config = if halved::<F>() { &HALF } else { &WHOLE };
        // SAFETY: the caller's promise; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config.0.as_ptr(), options(nostack, readonly)) };
        Tiles(())
    }
}

impl Drop for Tiles {
    /// Releases the tiles; otherwise every context switch would save 8 KiB.
    fn drop(&mut self) {
        // SAFETY: the tiles were configured.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Writes the parts of a row's integers as bf16, with sixteen rows adjacent for each group.
///
/// # Safety
/// The row was quantized; `rows` has tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn spread(rows: Rows, row: usize) {
    let (tile, at) = (row / TILE_ROWS, row % TILE_ROWS);
    // SAFETY: the caller's promise.
    unsafe {
        let to = rows.tiles.add(tile * TILE_ROWS * 2 * rows.k + at * GROUP);
        let from = rows.codes.add(row * rows.stride).cast_const();
        for group in 0..rows.k / GROUP {
            let codes = _mm512_loadu_si512(from.add(group * GROUP).cast());
            // Swaps the second and the third group of eight.
            let codes = _mm512_shuffle_i64x2::<0b11_01_10_00>(codes, codes);
            let upper = _mm512_srai_epi16::<8>(_mm512_add_epi16(codes, _mm512_set1_epi16(128)));
            let upper = _mm512_slli_epi16::<8>(upper);
            let lower = _mm512_sub_epi16(codes, upper);
            let to = to.add(group * 2 * ELEMENTS);
            _mm512_storeu_si512(to.cast(), halves(upper));
            _mm512_storeu_si512(to.add(ELEMENTS).cast(), halves(lower));
        }
    }
}

/// Converts integers to bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
fn halves(integers: __m512i) -> __m512i {
    let single = |half: __m256i| _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half));
    let low = single(_mm512_castsi512_si256(integers));
    let high = single(_mm512_extracti64x4_epi64::<1>(integers));
    // SAFETY: vectors of the same size.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Converts the codes of a panel's first `groups` groups to bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn as_bf16<F: Format>(panel: &mut Panel, groups: usize) {
    for codes in panel.codes[..groups * F::PLANES].as_flattened_mut() {
        let at = codes.as_mut_ptr().cast::<__m512i>();
        // SAFETY: sixteen pairs.
        unsafe { _mm512_store_si512(at, halves(_mm512_load_si512(at))) };
    }
}

/// Results of the tiles for a group: sums of its halves or planes, with both parts of the integers together or
/// separate.
#[repr(C, align(64))]
struct Sums([[Tile; TILE_ROWS]; 4]);

/// Adds the first `groups` groups of a panel of bf16, which are those from `from` on, to sixteen rows of a tile.
///
/// # Safety
/// The rows have the groups, the tile the rows; [`Tiles`] of the format live.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn micro<F: Format>(
    panel: &Panel,
    (from, groups): (usize, usize),
    rows: Rows,
    tile: *mut Tile,
) {
    // Double-buffered, so that a group's tiles are computed while the previous group's are added.
    let mut found = [const { MaybeUninit::<Sums>::uninit() }; 2];
    // SAFETY: the caller's promise.
    unsafe {
        let groups_of_row = rows.k / GROUP;
        let mut a = rows.tiles.add(from * 2 * ELEMENTS).cast_const();
        let mut b = panel.codes.as_ptr().cast::<u8>();
        let parts = rows.parts.add(from).cast_const();
        let mut sums = [_mm512_setzero_ps(); TILE_ROWS];
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_loadu_ps(tile.add(row).cast());
        }
        for group in 0..=groups {
            if group < groups {
                products::<F>(a, b, found[group % 2].as_mut_ptr());
                a = a.add(2 * ELEMENTS);
                b = b.add(2 * ELEMENTS * F::PLANES);
            }
            let Some(before) = group.checked_sub(1) else { continue };
            let [first, second] = panel.factors.get_unchecked(before);
            let load = |from: &Tile| _mm512_load_ps(from.as_ptr());
            let factors = [load(first), if F::FACTORS == 2 { load(second) } else { load(first) }];
            let offsets =
                if F::OFFSET { load(panel.offsets.get_unchecked(before)) } else { _mm512_setzero_ps() };
            let of = found[before % 2].as_ptr().cast::<Tile>();
            let first_part = parts.add(before);
            // Unrolled by hand, because the compiler would keep the loop, and the sums in memory.
            macro_rules! add {
                ($($row:literal)*) => {$(
                    let at = |which: usize| _mm512_load_ps(of.add(which * TILE_ROWS + $row).cast());
                    let totals = match (together::<F>(), F::FACTORS) {
                        (true, 1) => [at(0); 2],
                        (true, _) => [at(0), at(1)],
                        (false, 1) => [_mm512_add_ps(at(0), at(1)); 2],
                        (false, _) => [_mm512_add_ps(at(0), at(1)), _mm512_add_ps(at(2), at(3))],
                    };
                    let part = &*first_part.wrapping_add(groups_of_row.wrapping_mul($row));
                    sums[$row] = joined::<F>(sums[$row], totals, (factors, offsets), part);
                )*};
            }
            add!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        for (row, sum) in sums.into_iter().enumerate() {
            _mm512_storeu_ps(tile.add(row).cast(), sum);
        }
    }
}

/// Computes the tiles of a group of sixteen rows and sixteen columns: upper parts at `a`, lower ones behind them, codes
/// at `b`.
///
/// # Safety
/// See [`micro`].
#[inline(always)]
unsafe fn products<F: Format>(a: *const u16, b: *const u8, to: *mut Sums) {
    // SAFETY: tiles of sixteen rows of 64 bytes, or of halves of them; room for all sums that are stored.
    unsafe {
        match (together::<F>(), halved::<F>(), F::PLANES) {
            (true, false, _) => asm!(
                "tilezero tmm0",
                "tileloadd tmm6, [{b} + {s}*1]", "tileloadd tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm0, tmm5, tmm6",
                "tilestored [{c} + {s}*1], tmm0",
                a = in(reg) a, b = in(reg) b, c = in(reg) to, s = in(reg) 64usize, options(nostack)
            ),
            // The second half of a group is 32 bytes further in rows, and eight pairs further in codes.
            (true, true, _) => asm!(
                "tilezero tmm0", "tilezero tmm1",
                "tileloadd tmm6, [{b} + {s}*1]", "tileloadd tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm0, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {s}*1 + 512]", "tileloadd tmm4, [{a} + {s}*1 + 32]", "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {s}*1 + 1056]", "tdpbf16ps tmm1, tmm5, tmm7",
                "tilestored [{c} + {s}*1], tmm0", "tilestored [{c} + {s}*1 + 1024], tmm1",
                a = in(reg) a, b = in(reg) b, c = in(reg) to, s = in(reg) 64usize, options(nostack)
            ),
            (false, _, 1) => asm!(
                "tilezero tmm0", "tilezero tmm1",
                "tileloadd tmm6, [{b} + {s}*1]", "tileloadd tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm5, tmm6",
                "tilestored [{c} + {s}*1], tmm0", "tilestored [{c} + {s}*1 + 1024], tmm1",
                a = in(reg) a, b = in(reg) b, c = in(reg) to, s = in(reg) 64usize, options(nostack)
            ),
            (false, ..) => asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tileloadd tmm6, [{b} + {s}*1]", "tileloadd tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm2, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7",
                "tilestored [{c} + {s}*1], tmm0", "tilestored [{c} + {s}*1 + 1024], tmm1",
                "tilestored [{c} + {s}*1 + 2048], tmm2", "tilestored [{c} + {s}*1 + 3072], tmm3",
                a = in(reg) a, b = in(reg) b, c = in(reg) to, s = in(reg) 64usize, options(nostack)
            ),
        }
    }
}
