//! Gated DeltaNet (Yang et al., "Gated Delta Networks", 2024) by chunks of 64 rows of a document, forward and backward.
//!
//! Per value head, with q and k normalised and q divided by the root of their columns: `S <- e^(g_t) S`,
//! `S <- S + beta_t k_t (v_t - S^T k_t)^T`, `o_t = S^T q_t`, and S of `key` rows and `value` columns. In a chunk with S
//! before it, `T = 1 + tril(beta_i (k_i . k_j) G_ij, -1)` and `W = T^-1 beta (v - e^L K S)`:
//! `O = e^L Q S + tril(Q K^T G) W`, and the state after it is `e^(L_q) S + (e^(L_q - L) K)^T W`.
//!
//! The map from a state to that after a run is `S -> M S + ends`: M is what the run makes of 1 if all v are zero, so that it is computed as
//! `key` further columns of the state, without values. Gradients of states have its transpose.
//!
//! A task is the value heads of a key head in one document (backward: in 2,048 rows of one). Rules as for scans.

mod backward;
mod borders;
mod carry;
mod forward;
mod inverse;
mod layout;
mod pass;
mod reverse;
mod step;

pub use backward::delta_backward;
pub use borders::{DeltaAdvance, DeltaEnds, delta_advance, delta_ends};
pub use forward::{DeltaForward, delta_forward};
pub use layout::{bytes_backward as delta_bytes_backward, bytes_forward as delta_bytes_forward};
pub use pass::DeltaBackward;

use std::ops::Range;

use fathom_tensor::DocumentRun;

use super::decays::Steps;
use super::family::Family;
use super::{CHUNK, STRIP, chunk};
use crate::attention::simd::Simd;
use crate::mat::Mat;

/// Rows of a chunk: half of a scan's, since the triangle to be solved grows with them.
const ROWS: usize = 64;

/// Extents of gated DeltaNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v, a multiple of those.
    pub heads: usize,
    /// Columns of a head of q or k.
    pub key: usize,
    /// Columns of a head of v.
    pub value: usize,
    /// Columns of a state after those of v: none, or `key` where maps of runs are computed.
    pub further: usize,
}

impl DeltaSizes {
    /// Heads, rows and columns of a state.
    pub fn of_state(&self) -> [usize; 3] {
        [self.heads, self.key, self.value]
    }

    /// Value heads of a key head.
    fn each(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Padded columns of q and k, and rows of a state.
    fn tall(&self) -> usize {
        self.key.next_multiple_of(STRIP)
    }

    /// Padded columns of a state: v's, then further ones.
    fn wide(&self) -> usize {
        self.value.next_multiple_of(STRIP) + self.further.next_multiple_of(STRIP)
    }

    /// Elements of a padded state.
    fn square(&self) -> usize {
        self.tall() * self.wide()
    }

    /// Elements of a state.
    fn state(&self) -> usize {
        self.key * self.value
    }

    /// Columns of u with q, k and v: of a key head, and of a value head.
    fn q(&self, head: usize) -> Range<usize> {
        head * self.key..(head + 1) * self.key
    }

    fn k(&self, head: usize) -> Range<usize> {
        (self.key_heads + head) * self.key..(self.key_heads + head + 1) * self.key
    }

    fn v(&self, head: usize) -> Range<usize> {
        let first = 2 * self.key_heads * self.key + head * self.value;
        first..first + self.value
    }
}

/// Operands; see [`fathom_tensor::DeltaOperands`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaOperands<'a> {
    /// Extents.
    pub sizes: DeltaSizes,
    /// `[rows, 2 * key_heads * key + heads * value]`.
    pub u: Mat,
    /// Raw steps of the decays `[rows, heads]`, with their weights.
    pub steps: Steps<'a>,
    /// `[rows, heads]`: raw step sizes.
    pub b: Mat,
    /// Added to sums of squares of q and k.
    pub eps: f32,
    /// Factor of the step sizes' sigmoid.
    pub beta: f32,
    /// The documents of the rows.
    pub runs: &'a [DocumentRun],
}

/// The chunks of a run: they begin at multiples of [`ROWS`] of the document.
fn chunks(run: &DocumentRun) -> impl Iterator<Item = Range<usize>> + use<> {
    super::pieces(run, ROWS)
}

/// Reads and normalises rows of q or k, times `factor`; what each was multiplied by, without the factor, to `scales`.
#[inline(always)]
unsafe fn normalised<F: Family>(
    of: &DeltaOperands<'_>,
    rows: &Range<usize>,
    cols: Range<usize>,
    (factor, scales): (f32, &mut [f32; CHUNK]),
    to: *mut f32,
) {
    let tall = of.sizes.tall();
    // SAFETY: the caller's rows, and room for them.
    unsafe {
        chunk::rows::<F>(&of.u, rows, cols, tall, to);
        for at in 0..rows.len() {
            let row = to.add(at * tall);
            scales[at] = 1.0 / (chunk::dot::<F>(row, row, tall) + of.eps).sqrt();
            let scale = F::S::splat(scales[at] * factor);
            for col in (0..tall).step_by(STRIP) {
                F::S::store(row.add(col), F::S::mul(F::S::load(row.add(col)), scale));
            }
        }
    }
}
