//! Rounding of master weights to four-bit formats (`fathom_tensor::FourBits`), by the reference definition.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use fathom_tensor::FourBits;

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, run};
use crate::mat::MatMut;

struct Blocks<'a, T> {
    format: FourBits,
    x: &'a [f32],
    factor: f32,
    out: MatMut,
    types: PhantomData<fn(T)>,
}

/// Rounds whole blocks of a weight with this factor.
///
/// # Safety
/// See the module documentation; `out` is one row as long as `x`.
pub unsafe fn round_weights(place: Place<'_>, format: FourBits, x: &[f32], factor: f32, out: MatMut) {
    let (count, bytes) = (x.len() / format.block(), format.block() * (4 + out.elem.bytes()));
    // SAFETY: the caller's promise; blocks are disjoint.
    by_elem!(out.elem, T => unsafe {
        run(place, &Blocks::<T> { format, x, factor, out, types: PhantomData }, count, 1, bytes)
    });
}

impl<T: Float> Kernel for Blocks<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let block = self.format.block();
        for at in part {
            let range = at * block..(at + 1) * block;
            let x = &self.x[range.clone()];
            // SAFETY: the caller's row, in which these blocks belong to this call.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.ptr.cast::<T>().add(range.start), block) };
            let times = self.format.scale(x, self.factor).times;
            for (out, x) in out.iter_mut().zip(x) {
                *out = T::narrow(self.format.number(*x, times) * times);
            }
        }
    }
}
