//! Keys and values in few bits: codes of a head of a token behind their scale, f32.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over caller-checked extents, see each `# Safety`

use std::marker::PhantomData;

use fathom_tensor::spill::{E4M3, encode_e4m3};

use super::pack::{View, put};
use super::simd::{LANES, Simd};
use super::{Elem, PageFormat};
use crate::mat::Mat;
use crate::threads::Threads;

/// Rows whose heads are packed.
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

// SAFETY: as of `Mat`: addresses, which only `pack` follows.
unsafe impl Sync for PackRows<'_> {}

/// Packs every head of every row.
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

/// One head: the scale, then the codes.
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

/// Rows of one head that become elements again.
pub struct Unpacking {
    pub from: View,
    /// First row, and how many.
    pub first: usize,
    pub rows: usize,
    /// Elements of a head.
    pub cols: usize,
    pub format: PageFormat,
    /// What they become.
    pub elem: Elem,
    /// Rows of `cols` elements, one behind the other.
    pub to: *mut u8,
}

/// Codes times their scale, rounded to the element once.
///
/// # Safety
/// `from` has the rows, `to` has room for them.
#[inline(always)]
pub unsafe fn unpack<S: Simd>(p: &Unpacking) {
    for row in 0..p.rows {
        let from = p.from.row(p.first + row).cast_const();
        let (scale, codes) = (from.cast::<f32>().read_unaligned(), from.add(4));
        let to = p.to.add(row * p.cols * p.elem.bytes());
        let mut at = 0;
        while at < p.cols {
            let count = LANES.min(p.cols - at);
            let mut lanes = [0.0f32; LANES];
            match p.format {
                PageFormat::Plain => {}
                PageFormat::Fp8 => {
                    for (lane, value) in lanes.iter_mut().enumerate().take(count) {
                        *value = E4M3[*codes.add(at + lane) as usize];
                    }
                }
                PageFormat::Int8 if count == LANES => {
                    let codes = codes.add(at).cast::<[i8; LANES]>().read_unaligned();
                    lanes = codes.map(f32::from);
                }
                PageFormat::Int8 => {
                    for (lane, value) in lanes.iter_mut().enumerate().take(count) {
                        *value = f32::from(*codes.add(at + lane).cast::<i8>());
                    }
                }
                PageFormat::Int4 => {
                    for (lane, value) in lanes.iter_mut().enumerate().take(count) {
                        let both = *codes.add((at + lane) / 2);
                        let half = if (at + lane).is_multiple_of(2) { both << 4 } else { both };
                        *value = f32::from(half as i8 >> 4);
                    }
                }
            }
            put::<S>(to, p.elem, at, p.cols, S::mul(S::load(lanes.as_ptr()), S::splat(scale)));
            at += LANES;
        }
    }
}
