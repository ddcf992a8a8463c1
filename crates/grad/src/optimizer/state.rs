//! The optimizer's state of each weight.

use std::ops::Range;

use fathom_tensor::Tensor;
use fathom_tensor::moments::BLOCK;

use crate::disk::{CHUNK, SweptChunk};
use crate::shares::SLOT;
use crate::value::Value;

// Ranks and chunks have whole blocks, so that the codes do not depend on where they are stored.
const _: () = assert!(SLOT.is_multiple_of(BLOCK) && CHUNK.is_multiple_of(BLOCK));

/// Moments of one weight, and its f32 master if the weight is narrower and masters are wanted: for the elements whose
/// state this rank keeps, shaped like the weight if that is all of them.
pub struct State {
    /// Its elements.
    pub range: Range<usize>,
    /// First moment.
    pub m: Value,
    /// Second moment, if there is one.
    pub v: Option<Value>,
    /// f32 weights.
    pub master: Option<Value>,
    /// f32 [1, blocks], for moments that are e4m3 codes: the scales of the first, and of the roots of the second if
    /// there is one. They stay in memory wherever the codes are.
    pub scales: Vec<Value>,
}

impl State {
    /// All values, in a fixed order.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        let state = [Some(&self.m), self.v.as_ref(), self.master.as_ref()];
        state.into_iter().flatten().chain(&self.scales)
    }

    /// Some elements of all values.
    pub(super) fn parts(&self, range: &Range<usize>, read: bool) -> impl Iterator<Item = SweptChunk<'_>> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let (range, moments) = (range.clone(), self.values().count() - self.scales.len());
        self.values().enumerate().map(move |(at, value)| {
            let range = if at < moments { range.clone() } else { blocks.clone() };
            value.chunk(range, read, true)
        })
    }
}

/// Some elements of a state in memory, as in [`State::parts`].
pub(super) struct Views<'a> {
    pub m: &'a Tensor,
    pub v: Option<&'a Tensor>,
    pub master: Option<&'a Tensor>,
    pub scales: &'a [Tensor],
}

impl<'a> Views<'a> {
    pub fn of(state: &State, views: &'a [Tensor]) -> Views<'a> {
        let (values, scales) = views.split_at(views.len() - state.scales.len());
        let mut values = values.iter();
        let m = values.next().unwrap_or_else(|| panic!("an update without moments"));
        let v = state.v.as_ref().and_then(|_| values.next());
        Views { m, v, master: values.next(), scales }
    }
}

/// A hash of a weight that does not depend on which rank has it (FNV-1a of its name).
pub(super) fn key(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
