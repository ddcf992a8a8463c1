//! Formats whose rows are interleaved by eight ([`fathom_tensor::ggml::octets`]).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use fathom_tensor::ggml::Kind;
use fathom_tensor::ggml::octets::{MOST_BYTES, block};

use super::format::{Columns, Format, GROUP, Lies, OCTET};

/// A format with interleaved rows.
pub(super) struct Octets<F>(PhantomData<F>);

impl<F: Format> Format for Octets<F> {
    const LIES: Lies = F::LIES;
    const BYTES: usize = F::BYTES;
    const GROUPS: usize = F::GROUPS;
    const FACTORS: usize = F::FACTORS;
    const OFFSET: bool = F::OFFSET;
    const BIAS: i32 = F::BIAS;
    const OCTETS: bool = true;
}

/// De-interleaved blocks of eight columns.
pub(super) struct Apart([[u8; MOST_BYTES]; OCTET]);

impl Apart {
    /// An empty buffer.
    pub fn new() -> Apart {
        Apart([[0; MOST_BYTES]; OCTET])
    }

    /// De-interleaves block `index` of eight columns.
    ///
    /// # Safety
    /// The block exists, and the rows are interleaved.
    pub unsafe fn take<F: Format>(&mut self, columns: Columns, index: usize) -> [*const u8; OCTET] {
        let Lies::Within(kind) = F::LIES else { return columns.each(OCTET) };
        let bytes = OCTET * F::BYTES;
        // SAFETY: the caller's promise.
        let octet = unsafe { std::slice::from_raw_parts(columns.first.add(index * bytes), bytes) };
        for (row, out) in self.0.iter_mut().enumerate() {
            block(kind, octet, row, &mut out[..F::BYTES]);
        }
        std::array::from_fn(|col| self.0[col].as_ptr())
    }
}

/// Vectors per group: each has four elements of eight columns.
pub(super) const QUADS: usize = GROUP / 4;
/// Number of groups after which the layout of a block's codes repeats.
pub(super) const fn period<F: Format>() -> usize {
    match F::LIES {
        Lies::Within(Kind::Q4K) => 2,
        Lies::Within(Kind::Q5K) => 8,
        Lies::Within(Kind::Q6K) => 4,
        _ => 1,
    }
}

/// Evaluates an expression for each group of a block, with the group's position within the period as a constant.
macro_rules! groups {
    ($format:ident, |$group:ident, $part:ident| $call:expr) => {
        for first in (0..$format::GROUPS).step_by(const { period::<$format>() }) {
            groups!(@ $format, first, |$group, $part| $call, 0 1 2 3 4 5 6 7);
        }
    };
    (@ $format:ident, $first:ident, |$group:ident, $part:ident| $call:expr, $($at:literal)*) => {$(
        if const { $at < period::<$format>() } {
            const $part: usize = $at;
            let $group = $first + $at;
            $call
        }
    )*};
}
pub(super) use groups;

/// Evaluates an expression for each vector of a group.
macro_rules! quads {
    (|$quad:ident| $call:expr) => { quads!(@ |$quad| $call, 0 1 2 3 4 5 6 7) };
    (@ |$quad:ident| $call:expr, $($at:literal)*) => {$(
        let $quad: usize = $at;
        $call;
    )*};
}
pub(super) use quads;
