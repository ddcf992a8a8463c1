//! Mamba-2's scan (Dao and Gu, "Transformers are SSMs", 2024) by chunks of a document's rows, forward and backward.
//!
//! With `L_i` the sum of the log decays of a chunk's rows up to i, `G_ij = e^(L_i - L_j)`, `d_j = delta_j x_j` and S the
//! state before the chunk: `y_i = sum over j <= i of (C_i . B_j) G_ij d_j + e^(L_i) S C_i + D x_i`, and the state after
//! the chunk is `e^(L_q) S + sum over j of e^(L_q - L_j) d_j B_j^T`. A state is kept as `state` rows of `width`.
//!
//! Chunks begin at multiples of 128 rows of the document, whatever comes before it in the stream, and a task is a block
//! of heads of one document (backward: of 2,048 rows of one): no result depends on the number of threads or on which
//! documents are packed together. Sums over rows continue in ascending chunks from what the output holds.
//!
//! Values are f32 or bf16; all products are of f32. The kernels allocate no more than lists of tasks: the caller
//! provides the workspace.
#![allow(unsafe_code)]

mod backward;
mod chunk;
mod decays;
mod delta;
mod family;
mod forward;
mod layout;
mod pass;
mod reverse;
mod step;

use std::ops::Range;

use fathom_tensor::{DocumentRun, SCAN_CHUNK};

pub use backward::{backward, bytes_backward};
pub use decays::Steps;
pub use delta::{
    DeltaAdvance, DeltaBackward, DeltaEnds, DeltaForward, DeltaOperands, DeltaSizes, delta_advance,
    delta_backward, delta_bytes_backward, delta_bytes_forward, delta_ends, delta_forward,
};
pub use forward::{Ends, Forward, advance, bytes_forward, ends, forward};

pub use pass::Backward;

use crate::mat::Mat;

/// Rows of a chunk.
const CHUNK: usize = SCAN_CHUNK;
/// Rows and columns of the blocks into which the triangle of a chunk's pairs is cut.
const STRIP: usize = 16;
/// Strips of a chunk.
const STRIPS: usize = CHUNK / STRIP;
/// Most heads of a task, which share the products of B and C; with 8 these are a fifteenth of a backward pass.
pub const TASK_HEADS: usize = 8;

/// Extents of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Heads, a multiple of the groups.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Groups of heads that share B and C.
    pub groups: usize,
    /// Columns of B and of C, per group.
    pub state: usize,
    /// Most heads of a task: [`TASK_HEADS`]. Gradients of B and C are summed by tasks, so it decides on their bits.
    pub task_heads: usize,
}

impl Sizes {
    /// Heads, rows and columns of a state.
    pub fn of_state(&self) -> [usize; 3] {
        [self.heads, self.state, self.width]
    }

    /// Columns of x.
    fn inner(&self) -> usize {
        self.heads * self.width
    }

    /// Padded columns of a head.
    fn wide(&self) -> usize {
        self.width.next_multiple_of(STRIP)
    }

    /// Padded rows of a state.
    fn tall(&self) -> usize {
        self.state.next_multiple_of(STRIP)
    }

    /// Elements of a head's padded state.
    fn square(&self) -> usize {
        self.tall() * self.wide()
    }

    /// Blocks of heads of a group: as few as there can be, of nearly equal size.
    fn blocks_of_group(&self) -> usize {
        (self.heads / self.groups).div_ceil(self.task_heads)
    }

    /// Blocks of heads.
    fn blocks(&self) -> usize {
        self.groups * self.blocks_of_group()
    }

    /// Heads of a full block.
    fn block_heads(&self) -> usize {
        (self.heads / self.groups).div_ceil(self.blocks_of_group())
    }

    /// The group of a block, and its heads.
    fn block(&self, block: usize) -> (usize, Range<usize>) {
        let (group, index) = (block / self.blocks_of_group(), block % self.blocks_of_group());
        let (each, size) = (self.heads / self.groups, self.block_heads());
        let first = group * each + (index * size).min(each);
        (group, first..(first + size).min((group + 1) * each))
    }
}

/// Operands of a scan; see [`fathom_tensor::SsdOperands`].
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Extents.
    pub sizes: Sizes,
    /// `[rows, heads * width + 2 * groups * state]`.
    pub u: Mat,
    /// Raw step sizes `[rows, heads]`, with their weights.
    pub steps: Steps<'a>,
    /// `[heads]`.
    pub d: &'a [f32],
    /// The documents of the rows.
    pub runs: &'a [DocumentRun],
}

/// States at borders of runs, or their gradients: f32 `[heads, state * width]`, of gated DeltaNet `[heads, key * value]`, a row for each
/// place.
#[derive(Clone, Copy, Debug)]
pub struct RunStates<'a> {
    /// The place of each run; or empty.
    pub places: &'a [Option<usize>],
    /// The first row.
    pub first: *mut f32,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl RunStates<'_> {
    /// None of them.
    pub const NONE: RunStates<'static> = RunStates { places: &[], first: std::ptr::null_mut(), stride: 0 };

    /// The place of a run.
    fn place(&self, run: usize) -> Option<usize> {
        self.places.get(run).copied().flatten()
    }

    /// The row of a run.
    fn of(&self, run: usize) -> Option<*mut f32> {
        self.place(run).map(|place| self.first.wrapping_add(place * self.stride))
    }
}

impl Operands<'_> {
    fn rows(&self) -> usize {
        self.runs.last().map_or(0, |run| run.rows.end)
    }
}

/// The chunks of a run.
fn chunks(run: &DocumentRun) -> impl Iterator<Item = Range<usize>> + use<> {
    pieces(run, CHUNK)
}

/// Parts of a run that begin at multiples of `most` rows of its document.
fn pieces(run: &DocumentRun, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let (rows, offset) = (run.rows.clone(), run.offset);
    let mut start = rows.start;
    std::iter::from_fn(move || {
        let (from, within) = (start, (offset + start - rows.start) % most);
        start = (from + most - within).min(rows.end);
        (from < rows.end).then_some(from..start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_begin_at_multiples_of_the_document() {
        let run = |rows, offset| DocumentRun { rows, document: 0, offset };
        let of = |rows, offset| chunks(&run(rows, offset)).collect::<Vec<_>>();
        assert_eq!(of(5..300, 0), [5..133, 133..261, 261..300]);
        assert_eq!(of(5..300, 100), [5..33, 33..161, 161..289, 289..300]);
        assert_eq!(of(7..8, 128), vec![7..8; 1]);
        assert_eq!(of(7..7, 0), []);
    }

    #[test]
    fn blocks_have_every_head_once() {
        for (heads, groups) in [(16, 1), (24, 1), (9, 1), (128, 8), (4, 4), (20, 2), (34, 2)] {
            let sizes = Sizes { heads, width: 4, groups, state: 4, task_heads: TASK_HEADS };
            let all: Vec<usize> = (0..sizes.blocks()).flat_map(|block| sizes.block(block).1).collect();
            assert_eq!(all, (0..heads).collect::<Vec<_>>(), "{sizes:?}");
            for block in 0..sizes.blocks() {
                let (group, own) = sizes.block(block);
                assert!(own.clone().all(|head| head / (heads / groups) == group) && own.len() <= TASK_HEADS);
            }
        }
    }
}
