//! Quantized keys and values: each head of a token is its scale, f32, followed by its codes.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over caller-checked extents, see each `# Safety`

use std::marker::PhantomData;

use fathom_tensor::PageFormat;
use fathom_tensor::spill::{E4M3, encode_e4m3};

use super::pack::{View, put};
use super::simd::{LANES, Simd};
use crate::mat::{Elem, Mat};
use crate::threads::Threads;

/// Rows of heads to quantize.
pub struct PackRows<'a> {
    pub x: Mat,
    pub rows: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub format: PageFormat,
    pub out: *mut u8,
    /// Bytes between rows of the output.
    pub out_bytes: usize,
    pub life: PhantomData<&'a ()>,
}

// SAFETY: as for `Mat`: addresses, which only `pack` dereferences.
unsafe impl Sync for PackRows<'_> {}

/// Quantizes every head of every row.
///
/// # Safety
/// The pointers cover the rows, and nothing else writes to the output.
pub unsafe fn pack(threads: &Threads, p: &PackRows<'_>) {
    let head_bytes = p.format.head_bytes(p.head_dim, fathom_tensor::DType::F32);
    threads.run(p.rows, &|row, _| {
        for head in 0..p.heads {
            let out = p.out.wrapping_add(row * p.out_bytes + head * head_bytes);
            // SAFETY: this function's contract; rows are disjoint.
            unsafe { pack_head(p, row * p.x.stride + head * p.head_dim, out) };
        }
    });
}

/// Quantizes one head: the scale, then the codes.
unsafe fn pack_head(p: &PackRows<'_>, at: usize, out: *mut u8) {
    let value = |index: usize| match p.x.elem {
        Elem::F32 => *p.x.ptr.cast::<f32>().add(at + index),
        Elem::Bf16 => f32::from_bits(u32::from(*p.x.ptr.cast::<u16>().add(at + index)) << 16),
    };
    let most = (0..p.head_dim).map(|index| value(index).abs()).fold(0.0f32, f32::max);
    let scale = most / p.format.largest();
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    out.cast::<f32>().write_unaligned(scale);
    let codes = out.add(4);
    let whole = |index: usize| (value(index) * inverse).round_ties_even() as i32;
    match p.format {
        PageFormat::Plain => panic!("pages: plain rows are not packed"),
        PageFormat::Fp8 => {
            (0..p.head_dim).for_each(|index| codes.add(index).write(encode_e4m3(value(index) * inverse)))
        }
        PageFormat::Int8 => {
            (0..p.head_dim)
                .for_each(|index| codes.add(index).write(whole(index).clamp(-127, 127) as i8 as u8));
        }
        PageFormat::Int4 => {
            for index in 0..p.head_dim.div_ceil(2) {
                let half = |index: usize| {
                    if index < p.head_dim { whole(index).clamp(-7, 7) as u8 & 15 } else { 0 }
                };
                codes.add(index).write(half(2 * index) | half(2 * index + 1) << 4);
            }
        }
    }
}

/// Rows of one head to convert back to elements.
pub struct PackedRows {
    pub from: View,
    /// First row, and number of rows.
    pub first: usize,
    pub rows: usize,
    /// Elements per head.
    pub cols: usize,
    pub format: PageFormat,
    /// Element type of the output.
    pub elem: Elem,
    /// Contiguous rows of `cols` elements.
    pub to: *mut u8,
}

/// Multiplies codes by their scale, rounding to the element type once.
///
/// # Safety
/// `from` has the rows, `to` has room for them.
#[inline(always)]
pub unsafe fn unpack<S: Simd>(p: &PackedRows) {
    for row in 0..p.rows {
        let from = p.from.row(p.first + row).cast_const();
        let (scale, codes) = (S::splat(from.cast::<f32>().read_unaligned()), from.add(4));
        let to = p.to.add(row * p.cols * p.elem.bytes());
        let mut at = 0;
        while at < p.cols {
            let values = match p.format {
                _ if at + LANES > p.cols => last::<S>(p, codes, at),
                PageFormat::Plain => S::splat(0.0),
                PageFormat::Fp8 => S::e4m3(codes.add(at)),
                PageFormat::Int8 => S::whole(codes.add(at).cast()),
                PageFormat::Int4 => {
                    let halves = halves(codes.add(at / 2).cast::<[u8; LANES / 2]>().read_unaligned());
                    S::whole(halves.as_ptr())
                }
            };
            put::<S>(to, p.elem, at, p.cols, S::mul(values, scale));
            at += LANES;
        }
    }
}

/// The last, fewer than sixteen codes of a head, padded with zeros.
#[inline(always)]
unsafe fn last<S: Simd>(p: &PackedRows, codes: *const u8, at: usize) -> S::V {
    let mut lanes = [0.0f32; LANES];
    for (index, value) in (at..p.cols).zip(&mut lanes) {
        *value = match p.format {
            PageFormat::Plain => 0.0,
            PageFormat::Fp8 => E4M3[*codes.add(index) as usize],
            PageFormat::Int8 => f32::from(*codes.add(index).cast::<i8>()),
            PageFormat::Int4 => {
                let both = *codes.add(index / 2);
                let half = if index.is_multiple_of(2) { both << 4 } else { both };
                f32::from(half as i8 >> 4)
            }
        };
    }
    S::load(lanes.as_ptr())
}

/// The signed halves of eight bytes, lower halves first.
#[inline(always)]
fn halves(bytes: [u8; LANES / 2]) -> [i8; LANES] {
    // Spreads each half to its own byte.
    let apart = |four: u32| {
        let mut x = u64::from(four);
        x = (x | (x << 16)) & 0x0000_ffff_0000_ffff;
        x = (x | (x << 8)) & 0x00ff_00ff_00ff_00ff;
        x = (x | (x << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
        // The sign fills the upper half: 8 * 30 = 0xf0.
        x | ((x & 0x0808_0808_0808_0808) * 30)
    };
    let all = u64::from_le_bytes(bytes);
    let [low, high] = [apart(all as u32), apart((all >> 32) as u32)].map(u64::to_le_bytes);
    std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] } as i8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_signed() {
        for byte in 0..=u8::MAX {
            let bytes = std::array::from_fn(|i| byte.wrapping_add((37 * i) as u8));
            let halves = halves(bytes);
            for (at, byte) in bytes.into_iter().enumerate() {
                assert_eq!(halves[2 * at..][..2], [(byte << 4) as i8 >> 4, byte as i8 >> 4]);
            }
        }
    }
}
