//! The other operand: rows of f32 or bf16 as integers of 16 bits, each group of 32 neighbours under one f32 scale.
//!
//! The scale is the largest magnitude over 32639, so an integer's error is within 1.6e-5 of that magnitude, less than
//! that of bf16. Its two bytes are both signed, since 32639 is 256 x 127 + 127, and for a few rows they are also stored
//! separately, for kernels that multiply bytes. A group whose largest magnitude is below 2^-100 becomes zeros; one with
//! an infinity or a NaN has the scale NaN.
#![allow(unsafe_code)]

use half::bf16;

use super::format::GROUP;
use crate::isa::Isa;
use crate::mat::{Elem, Mat};

/// Largest number of rows whose integers are also stored as separate bytes, for products of bytes.
pub(super) const APART: usize = 32;

/// Largest magnitude of the integers.
pub(super) const MOST: f32 = 32639.0;
/// Largest magnitude below which a group becomes zeros.
pub(super) const LEAST: f32 = f32::from_bits((127 - 100) << 23);
/// `x + ROUND` has the integer nearest to x, ties to even, in its lowest bits, if |x| < 2^22.
const ROUND: f32 = 12_582_912.0;

/// Rows per tile of matrix units.
pub(super) const TILE_ROWS: usize = 16;

/// Scale and sums of a group.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GroupSums {
    /// The scale.
    pub scale: f32,
    /// Sum of the integers of each half.
    pub halves: [i32; 2],
    /// Sum of all integers.
    pub sum: i32,
    /// Sum of all integers, rounded to f32.
    pub total: f32,
}

/// The bytes of a group's integers in element order; each integer is `256 upper + lower`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Bytes {
    /// -127..=127.
    pub upper: [i8; GROUP],
    /// -128..=127.
    pub lower: [i8; GROUP],
}

impl Bytes {
    #[inline(always)]
    fn of(codes: &[i16; GROUP]) -> Bytes {
        let mut bytes = Bytes { upper: [0; GROUP], lower: [0; GROUP] };
        for at in 0..GROUP {
            bytes.upper[at] = (codes[at].wrapping_add(128) >> 8) as i8;
            bytes.lower[at] = codes[at] as i8;
        }
        bytes
    }
}

/// Quantized rows in scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// i16 [rows, k]; in each group the second and the third eight elements are swapped, in the order of bytes widened
    /// by halves of vectors.
    pub codes: *mut i16,
    /// [rows, k / 32].
    pub parts: *mut GroupSums,
    /// [rows, k / 32], with padding, if there are at most [`APART`] rows; else null.
    pub bytes: *mut Bytes,
    /// bf16 [rows / 16, k / 32, 2, 16, 32] for matrix units ([`super::amx`]): the upper and the lower parts of sixteen
    /// rows' integers, in element order. Null if there are no matrix units.
    pub tiles: *mut u16,
    /// Columns.
    pub k: usize,
    /// Integers from one row to the next: more than k, so that adjacent rows use different cache sets.
    pub stride: usize,
}

// SAFETY: addresses; functions that dereference them state their requirements.
unsafe impl Sync for Rows {}

impl Rows {
    fn stride(k: usize) -> usize {
        k + 2 * GROUP
    }

    /// Groups of bytes from one row to the next, padded for the same reason.
    fn bytes_apart(k: usize) -> usize {
        k / GROUP + 3
    }

    /// The same distance in bytes.
    pub fn bytes_stride(self) -> usize {
        size_of::<Bytes>() * Rows::bytes_apart(self.k)
    }

    /// The bytes of a row.
    pub fn bytes_of(self, row: usize) -> *mut Bytes {
        self.bytes.wrapping_add(row * Rows::bytes_apart(self.k))
    }

    /// Number of rows that storage is allocated for: whole tiles if there are tiles.
    pub fn held(isa: Isa, rows: usize) -> usize {
        if Rows::tiled(isa, rows) { rows.next_multiple_of(TILE_ROWS) } else { rows }
    }

    /// True if this many rows have tiles.
    fn tiled(isa: Isa, rows: usize) -> bool {
        isa == Isa::Amx && rows > APART
    }

    /// Bytes of this many rows.
    pub fn bytes(isa: Isa, rows: usize, k: usize) -> usize {
        let apart = if rows <= APART { rows * size_of::<Bytes>() * Rows::bytes_apart(k) } else { 0 };
        let tiles = if Rows::tiled(isa, rows) { 4 * k } else { 0 };
        let each = 2 * Rows::stride(k) + size_of::<GroupSums>() * (k / GROUP);
        Rows::held(isa, rows) * (each + tiles) + apart
    }

    /// Rows in 64-byte-aligned memory.
    pub fn at(memory: *mut u8, isa: Isa, rows: usize, k: usize) -> Rows {
        let (stride, held) = (Rows::stride(k), Rows::held(isa, rows));
        let behind = memory.wrapping_add(2 * held * stride);
        let (mut bytes, mut tiles, mut parts) = (std::ptr::null_mut::<Bytes>(), std::ptr::null_mut(), behind);
        if rows <= APART {
            bytes = behind.cast();
            parts = behind.wrapping_add(rows * size_of::<Bytes>() * Rows::bytes_apart(k));
        } else if Rows::tiled(isa, rows) {
            tiles = behind.cast();
            parts = behind.wrapping_add(4 * held * k);
        }
        Rows { codes: memory.cast(), parts: parts.cast(), bytes, tiles, k, stride }
    }

    /// The rows from `row` on.
    pub fn from(self, row: usize) -> Rows {
        let groups = row * (self.k / GROUP);
        let bytes = if self.bytes.is_null() { self.bytes } else { self.bytes_of(row) };
        let parts = self.parts.wrapping_add(groups);
        // If there are tiles, `row` is a multiple of their rows.
        let tiles = if self.tiles.is_null() { self.tiles } else { self.tiles.wrapping_add(2 * row * self.k) };
        Rows { codes: self.codes.wrapping_add(row * self.stride), parts, bytes, tiles, ..self }
    }
}

/// Quantizes row `from` of `x` as row `to`.
///
/// # Safety
/// Both rows exist, and nothing else uses the latter.
#[inline(always)]
pub(super) unsafe fn quantise(x: &Mat, from: usize, rows: Rows, to: usize) {
    let apart = !rows.bytes.is_null();
    let rows = rows.from(to);
    for group in 0..rows.k / GROUP {
        // SAFETY: the caller's promise.
        unsafe {
            let values: [f32; GROUP] = match x.elem {
                Elem::F32 => {
                    x.ptr.cast::<f32>().add(from * x.stride + group * GROUP).cast::<[f32; GROUP]>().read()
                }
                Elem::Bf16 => {
                    let bits = x.ptr.cast::<[bf16; GROUP]>();
                    let bits = bits.byte_add(2 * (from * x.stride + group * GROUP)).read();
                    bits.map(|bits| f32::from_bits(u32::from(bits.to_bits()) << 16))
                }
            };
            let (mut codes, part) = one(&values);
            if apart {
                rows.bytes.add(group).write(Bytes::of(&codes));
            }
            let (second, third) = codes[8..24].split_at_mut(8);
            second.swap_with_slice(third);
            rows.codes.cast::<[i16; GROUP]>().add(group).write(codes);
            rows.parts.add(group).write(part);
        }
    }
}

/// Quantizes a group: integers in element order.
#[inline(always)]
fn one(x: &[f32; GROUP]) -> ([i16; GROUP], GroupSums) {
    // Magnitudes compare like their bits as integers, with NaN the largest.
    let mut most = [0u32; 8];
    for (at, x) in x.iter().enumerate() {
        most[at % 8] = most[at % 8].max(x.to_bits() & 0x7fff_ffff);
    }
    let most = f32::from_bits(most.into_iter().fold(0, u32::max));
    let usual = (LEAST..f32::INFINITY).contains(&most);
    let scale = if usual {
        most / MOST
    } else if most < LEAST {
        0.0
    } else {
        f32::NAN
    };
    let factor = if usual { MOST / most } else { 0.0 };
    let mut codes = [0i16; GROUP];
    for (code, x) in codes.iter_mut().zip(x) {
        // Non-finite values become zero.
        let x = if usual { *x } else { 0.0 };
        *code = (x * factor + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i16;
    }
    let halves = [0, 16].map(|at| codes[at..at + 16].iter().map(|code| i32::from(*code)).sum::<i32>());
    let sum = halves[0] + halves[1];
    (codes, GroupSums { scale, halves, sum, total: sum as f32 })
}

/// The element at a position of a group, and vice versa.
#[inline(always)]
pub(super) const fn swapped(at: usize) -> usize {
    match at / 8 {
        1 => at + 8,
        2 => at - 8,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_integers() {
        for k in [32, 96] {
            let values: Vec<f32> = (0..k).map(|at| (at as f32 * 1.7).sin() * [1.0, -3e4][at % 2]).collect();
            let x = Mat { ptr: values.as_ptr().cast(), elem: Elem::F32, stride: k };
            let mut memory = vec![0u64; Rows::bytes(Isa::Portable, 1, k) / 8 + 8];
            let memory: *mut u8 = memory.as_mut_ptr().cast();
            let rows = Rows::at(memory.wrapping_add(memory.align_offset(64)), Isa::Portable, 1, k);
            // SAFETY: both rows have these elements.
            unsafe { quantise(&x, 0, rows, 0) };
            for at in 0..k {
                // SAFETY: this part was written.
                let (code, bytes) = unsafe {
                    (*rows.codes.add(at / GROUP * GROUP + swapped(at % GROUP)), *rows.bytes.add(at / GROUP))
                };
                let of = |bytes: &[i8; GROUP]| i32::from(bytes[at % GROUP]);
                assert_eq!(256 * of(&bytes.upper) + of(&bytes.lower), i32::from(code), "{at} of {k}");
                assert!(code.abs() <= 32639 && of(&bytes.upper).abs() <= 127, "{code}");
            }
        }
    }
}
