//! Masks as short lists of slices, and sizes that live on the device.

use std::rc::Rc;

use crate::Tensor;

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

/// What the host knows of a mask that is plain: documents one after the other over all rows, each row attending causally
/// within its own. Libraries have fused kernels for such masks and need to be told; kernels read the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Where each document ends, ascending; the last is the number of rows.
    pub ends: Rc<[usize]>,
    /// Tokens that a row attends to, itself included; none for all before it.
    pub window: Option<usize>,
}

impl Packed {
    /// The documents, if the slices are such a mask of rows at these positions.
    pub fn of(slices: &[Slice], positions: &[i32]) -> Option<Packed> {
        let first = slices.first()?;
        let window = if first.lo <= -Slice::OPEN { None } else { Some(usize::try_from(1 - first.lo).ok()?) };
        let mut ends = Vec::with_capacity(slices.len());
        for slice in slices {
            let rows = ends.last().copied().unwrap_or(0)..usize::try_from(slice.q_end).ok()?;
            let fits = rows.start < rows.end
                && rows.end <= positions.len()
                && *slice == Slice::causal(rows.clone(), rows.clone(), window)
                && positions[rows.clone()].windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
            if !fits {
                return None;
            }
            ends.push(rows.end);
        }
        (ends.last() == Some(&positions.len())).then(|| Packed { ends: ends.into(), window })
    }

    /// Rows of the longest document.
    pub fn longest(&self) -> usize {
        let starts = std::iter::once(&0).chain(self.ends.iter());
        self.ends.iter().zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_documents_are_told_from_other_masks() {
        let own = |rows: std::ops::Range<usize>, window| Slice::causal(rows.clone(), rows, window);
        let positions = [0, 1, 2, 0, 1];
        let found = |slices: &[Slice]| Packed::of(slices, &positions);
        let packed = found(&[own(0..3, Some(2)), own(3..5, Some(2))]).unwrap();
        assert_eq!((&packed.ends[..], packed.window, packed.longest()), (&[3, 5][..], Some(2), 3));
        let crossing = Slice::causal(3..5, 0..5, None);
        for slices in [
            // A row is left, positions begin anew within one, windows differ, keys of others, nothing causal.
            &[own(0..3, None)][..],
            &[own(0..5, None)],
            &[own(0..3, None), own(3..5, Some(2))],
            &[own(0..3, None), crossing],
            &[Slice::full(0..3, 0..3), Slice::full(3..5, 3..5)],
            &[],
        ] {
            assert_eq!(found(slices), None, "{slices:?}");
        }
    }
}
