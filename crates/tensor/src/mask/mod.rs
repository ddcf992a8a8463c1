//! Masks as short lists of slices, and sizes that live on the device.

mod packed;

use crate::Tensor;

pub use packed::{Band, Packed, Sequence};

/// Query row i and key row j attend iff `q` holds i, `k` holds j and `lo <= pos_k[j] - pos_q[i] <= hi`.
/// At most one slice of a mask covers a pair. Causal, windowed, full and cross attention, packed documents
/// and ring chunks are values of this one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Slice {
    /// First query row.
    pub q_start: i64,
    /// One past the last query row.
    pub q_end: i64,
    /// First key row.
    pub k_start: i64,
    /// One past the last key row.
    pub k_end: i64,
    /// Smallest `pos_k - pos_q` that attends.
    pub lo: i64,
    /// Largest `pos_k - pos_q` that attends.
    pub hi: i64,
}

impl Slice {
    /// Open end of `lo` or `hi`.
    pub const OPEN: i64 = i64::MAX / 2;

    /// Causal attention of rows to rows, within a window of `window` tokens if given.
    pub fn causal(q: std::ops::Range<usize>, k: std::ops::Range<usize>, window: Option<usize>) -> Slice {
        let lo = window.map_or(-Slice::OPEN, |w| 1 - w as i64);
        let [q_start, q_end, k_start, k_end] = [q.start, q.end, k.start, k.end].map(|x| x as i64);
        Slice { q_start, q_end, k_start, k_end, lo, hi: 0 }
    }

    /// Attention of every row to every row.
    pub fn full(q: std::ops::Range<usize>, k: std::ops::Range<usize>) -> Slice {
        Slice { lo: -Slice::OPEN, hi: Slice::OPEN, ..Slice::causal(q, k, None) }
    }
}

/// A number of rows: known to the host, or a cap with the count on the device.
#[derive(Clone, Debug)]
pub enum Extent {
    /// Exactly this many.
    Fixed(usize),
    /// At most `cap`; kernels read `count` (one i32).
    UpTo {
        /// Shapes, charges and plans use this.
        cap: usize,
        /// The count, one i32.
        count: Tensor,
    },
}

impl Extent {
    /// What shapes and charges use.
    pub fn cap(&self) -> usize {
        match self {
            Extent::Fixed(n) => *n,
            Extent::UpTo { cap, .. } => *cap,
        }
    }
}

/// A mask on the device.
#[derive(Clone, Debug)]
pub struct Mask {
    /// i64 [cap, 6]: the fields of [`Slice`].
    pub table: Tensor,
    /// How many rows of `table` are slices.
    pub slices: Extent,
    /// Positions of query rows, i32 [1, q_tokens].
    pub pos_q: Tensor,
    /// Positions of key rows, i32 [1, k_tokens].
    pub pos_k: Tensor,
    /// Pairs that attend; the host's count, for FLOPs only.
    pub pairs: u64,
    /// The same mask in plain words, where it has them and the host knows.
    pub packed: Option<Packed>,
    /// Ring steps and gathered keys: what a library makes under it are parts that join each other, or those of other keys, and it
    /// needs scratch for them ([`crate::OpDesc::Attention`]). Plans know this, and no sequences.
    pub partial: bool,
}
