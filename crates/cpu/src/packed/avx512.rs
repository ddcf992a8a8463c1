//! The kernels with AVX-512 and its integer products (VNNI): `vpdpwssd` adds the products of two neighbours to a 32-bit
//! element. Sums of integers are exact, and f32 additions are in the order of the portable kernel.
#![allow(unsafe_code)]

mod sixteen;
mod sums;

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::octets::octet_vnni;
use super::avx2::stored;
use super::format::{Columns, Format, GROUP, OCTET};
use super::panel::{Panel, STEPS, Tile};
use super::rows::Rows;
pub(super) use sixteen::{Ahead, doubled, fill, pair, some};
use sums::added;
pub(super) use sums::joined;

/// True if the processor supports these products at this level.
pub(super) fn has(isa: crate::isa::Isa) -> bool {
    isa >= crate::isa::Isa::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// True if this many rows process sixteen columns at a time. A single row waits for memory, which two streams of blocks
/// read no faster than one (22.8 ms on one thread for a token of a 1B model in Q4_K_M, 24.7 with sixteen columns), and
/// so do blocks of six bits.
pub(super) const fn pairs<F: Format>(rows: usize) -> bool {
    rows > 1 && !matches!(F::LIES, super::format::Lies::Within(fathom_tensor::ggml::Kind::Q6K))
}

/// Adds to `$sum` the products of `$w` and pair `$at` of a row at `$x`. Written as an instruction: the compiler makes
/// two of the intrinsic, which takes a third more time.
macro_rules! dot {
    ($sum:ident, $w:ident, $x:ident $text:literal, $at:literal $(, $stride:ident)?) => {
        asm!(
            concat!("vpdpwssd {sum}, {w}, dword ptr [{x} ", $text, " + {at}]{{1to16}}"),
            sum = inout(zmm_reg) *$sum,
            w = in(zmm_reg) $w,
            x = in(reg) $x,
            $(stride = in(reg) $stride,)?
            at = const 4 * $at,
            options(pure, readonly, nostack, preserves_flags)
        )
    };
}

/// Like [`super::avx2::micro`]. `R` is less than four or a multiple of it.
///
/// # Safety
/// See there; in addition, the processor [`has`] the products.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn micro<F: Format, const R: usize>(
    panel: &Panel,
    (from, groups): (usize, usize),
    rows: Rows,
    tile: *mut Tile,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut tiles, groups_of_row) = ([_mm512_setzero_ps(); R], rows.k / GROUP);
        // The first of each four rows; the others follow at fixed distances in bytes.
        let mut x = [rows.codes.cast::<i32>().cast_const(); R];
        let (stride, thrice) = (2 * rows.stride, 6 * rows.stride);
        for row in 0..R {
            tiles[row] = _mm512_loadu_ps(tile.add(row).cast());
            let of = if R < 4 { row } else { 4 * row };
            x[row] = x[row].wrapping_byte_add(of * stride + 2 * from * GROUP);
        }
        let parts = rows.parts.add(from).cast_const();
        let mut w = panel.codes.as_ptr().cast::<__m512i>();
        for group in 0..groups {
            let mut sums = [[_mm512_setzero_si512(); R]; 2];
            // Position of a step's pair among the row's, which are in the order of widened bytes. Unrolled by hand,
            // because the compiler keeps larger loops.
            macro_rules! step {
                ($plane:literal: $($step:literal at $at:literal),*) => {$(
                    let held = _mm512_load_si512(w.add(STEPS * $plane + $step));
                    let half = if F::PLANES == 2 || F::FACTORS == 1 { $plane } else { $step / 8 };
                    let (whole, rest) = sums[half].as_chunks_mut::<4>();
                    for ([a, b, c, d], x) in whole.iter_mut().zip(x) {
                        dot!(a, held, x "", $at);
                        dot!(b, held, x "+ {stride}", $at, stride);
                        dot!(c, held, x "+ 2 * {stride}", $at, stride);
                        dot!(d, held, x "+ {stride}", $at, thrice);
                    }
                    for (sum, x) in rest.iter_mut().zip(x) {
                        dot!(sum, held, x "", $at);
                    }
                )*};
                ($plane:literal) => {
                    step!($plane: 0 at 0, 1 at 1, 2 at 2, 3 at 3, 4 at 8, 5 at 9, 6 at 10, 7 at 11);
                    step!($plane: 8 at 4, 9 at 5, 10 at 6, 11 at 7, 12 at 12, 13 at 13, 14 at 14, 15 at 15);
                };
            }
            step!(0);
            if F::PLANES == 2 {
                step!(1);
            }
            w = w.add(STEPS * F::PLANES);
            for x in &mut x {
                *x = x.wrapping_add(STEPS);
            }
            let load = |from: &Tile| _mm512_load_ps(from.as_ptr());
            let [first, second] = panel.factors.get_unchecked(group);
            let factors = [load(first), if F::FACTORS == 2 { load(second) } else { load(first) }];
            let offsets =
                if F::OFFSET { load(panel.offsets.get_unchecked(group)) } else { _mm512_setzero_ps() };
            for (row, tile) in tiles.iter_mut().enumerate() {
                let part = &*parts.add(row * groups_of_row + group);
                *tile = added::<F>(*tile, [sums[0][row], sums[1][row]], (factors, offsets), part);
            }
        }
        for (row, sum) in tiles.into_iter().enumerate() {
            _mm512_storeu_ps(tile.add(row).cast(), sum);
        }
    }
}

/// Like [`super::avx2::octet`].
///
/// # Safety
/// See there; in addition, columns are interleaved, and the processor [`has`] the products.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn octet<F: Format, const M: usize>(columns: Columns, rows: Rows) -> [[f32; OCTET]; M] {
    // SAFETY: passed on.
    unsafe { octet_vnni::<F, M>(columns, rows) }.map(|x| stored(x))
}
