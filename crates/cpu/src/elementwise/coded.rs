//! Optimizer updates with moments in e4m3 codes with a scale for each block ([`fathom_tensor::moments`]).
#![allow(unsafe_code)]

use std::ops::Range;
use std::slice::from_raw_parts_mut;

use fathom_tensor::moments::{BLOCK, decode_block, encode_block, noise};

use super::level::{Float, Kernel, Level};
use super::update::{MomentScales, Update};

/// The kernel: block by block, decodes the moments to f32, updates them and encodes them again.
pub(super) struct Blocks<'a, T> {
    pub update: Update<'a, T, f32>,
    pub scales: MomentScales,
}

// SAFETY: each task dereferences the pointers only within its own blocks.
unsafe impl<T> Sync for Blocks<'_, T> {}

/// One of the two moments of one block.
struct Moment<'a> {
    codes: &'a mut [u8],
    scale: &'a mut f32,
    key: u32,
    root: bool,
}

impl Moment<'_> {
    #[inline(always)]
    fn get(&self, values: &mut [f32]) {
        decode_block(self.codes, *self.scale, self.root, values);
    }

    /// Encodes the values; `first` is the index of the first value in its weight.
    #[inline(always)]
    fn put(self, values: &mut [f32], first: usize) {
        let key = self.key;
        *self.scale = encode_block(values, self.root, |at| noise(key, (first + at) as u32), self.codes);
    }
}

impl<T: Float> Kernel for Blocks<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let (op, scales) = (self.update.op, &self.scales);
        for block in part {
            let from = block * BLOCK;
            let count = BLOCK.min(op.count - from);
            // SAFETY: elements from..from + count of each tensor, and the block's scales, belong to this call.
            let moment = |codes: *mut u8, scales: *mut f32, root: bool| unsafe {
                let codes = from_raw_parts_mut(codes.add(from), count);
                Moment { codes, scale: &mut *scales.add(block), key: op.keys[usize::from(root)], root }
            };
            let (mut first, mut second) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (first, second) = (&mut first[..count], &mut second[..count]);
            let m = moment(op.m, scales.m, false);
            m.get(first);
            let v = (!op.v.is_null()).then(|| moment(op.v, scales.v, true));
            v.iter().for_each(|v| v.get(second));
            let given = v.is_some().then_some(&mut *second);
            // SAFETY: as above.
            unsafe { self.update.advance::<L>(from, first, given) };
            m.put(first, op.first + from);
            if let Some(v) = v {
                v.put(second, op.first + from);
            }
        }
    }
}
