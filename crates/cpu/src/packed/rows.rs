//! The other operand: rows of f32 or bf16 as integers of 16 bits, each 32 neighbours under one f32 scale.
//!
//! The scale is the largest magnitude over 32767, so an integer is within 1.6e-5 of that magnitude of what it stands for: less than
//! bf16 rounds by. A group whose largest magnitude is below 2^-100 is zeros; one with an infinity or a NaN has the scale NaN.
#![allow(unsafe_code)]

use half::bf16;

use super::format::GROUP;
use crate::mat::{Elem, Mat};

/// What codes reach to.
const MOST: f32 = 32767.0;
/// Below it a group is zeros.
const LEAST: f32 = f32::from_bits((127 - 100) << 23);
/// `x + ROUND` has the integer nearest to x, ties to even, in its lowest bits, if |x| < 2^22.
const ROUND: f32 = 12_582_912.0;

/// What a group's sums are multiplied with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GroupSums {
    /// f32.
    pub scale: f32,
    /// Sums of the integers of each half.
    pub halves: [i32; 2],
    /// The sum of all.
    pub sum: i32,
}

/// Quantised rows in scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// i16 [rows, k]; of each group the second and the third eight elements are exchanged, as bytes are when vectors of them are
    /// widened by halves.
    pub codes: *mut i16,
    /// [rows, k / 32].
    pub parts: *mut GroupSums,
    /// Columns.
    pub k: usize,
    /// Integers from one row to the next: more than k, so that neighbouring rows are in different sets of a cache.
    pub stride: usize,
}

// SAFETY: addresses; whoever follows one says who may.
unsafe impl Sync for Rows {}

impl Rows {
    fn stride(k: usize) -> usize {
        k + 2 * GROUP
    }

    /// Bytes of so many rows.
    pub fn bytes(rows: usize, k: usize) -> usize {
        rows * (2 * Rows::stride(k) + size_of::<GroupSums>() * (k / GROUP))
    }

    /// Rows in memory that is aligned to 64 bytes.
    pub fn at(memory: *mut u8, rows: usize, k: usize) -> Rows {
        let stride = Rows::stride(k);
        Rows { codes: memory.cast(), parts: memory.wrapping_add(2 * rows * stride).cast(), k, stride }
    }

    /// From this row on.
    pub fn from(self, row: usize) -> Rows {
        let parts = self.parts.wrapping_add(row * (self.k / GROUP));
        Rows { codes: self.codes.wrapping_add(row * self.stride), parts, ..self }
    }
}

/// Quantises row `from` of `x` as row `to`.
///
/// # Safety
/// Both rows exist, and nothing else uses the latter.
#[inline(always)]
pub(super) unsafe fn quantise(x: &Mat, from: usize, rows: Rows, to: usize) {
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
            let (codes, part) = one(&values);
            rows.codes.cast::<[i16; GROUP]>().add(group).write(codes);
            rows.parts.add(group).write(part);
        }
    }
}

/// Quantises a group.
#[inline(always)]
fn one(x: &[f32; GROUP]) -> ([i16; GROUP], GroupSums) {
    // As integers magnitudes are in their order, and NaN is the largest.
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
        // What is no number becomes zero.
        let x = if usual { *x } else { 0.0 };
        *code = (x * factor + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i16;
    }
    let halves = [0, 16].map(|at| codes[at..at + 16].iter().map(|code| i32::from(*code)).sum::<i32>());
    let (second, third) = codes[8..24].split_at_mut(8);
    second.swap_with_slice(third);
    (codes, GroupSums { scale, halves, sum: halves[0] + halves[1] })
}

/// Which element is the one at this place of a group; and the other way round.
#[inline(always)]
pub(super) const fn swapped(at: usize) -> usize {
    match at / 8 {
        1 => at + 8,
        2 => at - 8,
        _ => at,
    }
}
