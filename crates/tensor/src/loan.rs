//! Loans of a tensor's elements to a transfer. Until the transfer retires, no code may learn their address, so no
//! operation can read or reuse them: [`Tensor::address`] panics for any tensor that overlaps them, including clones and
//! other views.

use crate::Tensor;

/// Bytes of the address range that hold a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u64,
    rows: u64,
    row: u64,
    stride: u64,
}

impl Span {
    /// The bytes of a tensor; rows without gaps between them are merged into one.
    pub fn of(tensor: &Tensor, start: u64) -> Span {
        let size = tensor.dtype().bytes() as u64;
        if tensor.is_contiguous() {
            Span { start, rows: 1, row: tensor.bytes(), stride: tensor.bytes() }
        } else {
            Span {
                start,
                rows: tensor.rows() as u64,
                row: tensor.cols() as u64 * size,
                stride: tensor.stride() as u64 * size,
            }
        }
    }

    fn end(&self) -> u64 {
        self.start + (self.rows - 1) * self.stride + self.row
    }

    /// True if the spans share a byte. Two views of different strides count as overlapping if their ranges do.
    pub fn overlaps(&self, other: &Span) -> bool {
        if [self, other].iter().any(|span| span.rows * span.row == 0) {
            return false;
        }
        let (low, high) = if self.start <= other.start { (self, other) } else { (other, self) };
        if high.start >= low.end() {
            return false;
        }
        match (low.rows, high.rows) {
            (1, 1) => true,
            (1, _) => high.meets(low.start, low.end()),
            (_, 1) => low.meets(high.start, high.end()),
            _ if low.stride != high.stride => true,
            _ => {
                let (rows, col) =
                    ((high.start - low.start) / low.stride, (high.start - low.start) % low.stride);
                let wrapped = (col + high.row).saturating_sub(low.stride);
                (rows < low.rows && col < low.row) || (wrapped > 0 && rows + 1 < low.rows)
            }
        }
    }

    /// True if a row has a byte in `start..end`.
    fn meets(&self, start: u64, end: u64) -> bool {
        if end <= self.start {
            return false;
        }
        let (low, high) = (start.saturating_sub(self.start), end - self.start);
        let first = if low < self.row { 0 } else { (low - self.row) / self.stride + 1 };
        first < self.rows && first * self.stride < high
    }
}

/// A tensor whose elements are on loan to a transfer, for links. Dropping it ends the loan.
pub struct Lent {
    tensor: Tensor,
    span: Span,
}

impl Lent {
    /// Lends the elements.
    ///
    /// # Panics
    /// If some of them are already on loan.
    #[track_caller]
    pub fn new(tensor: Tensor) -> Lent {
        let span = Span::of(&tensor, tensor.address());
        tensor.loans().borrow_mut().push(span);
        Lent { tensor, span }
    }

    /// The tensor, usable once the loan ends.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut loans = self.tensor.loans().borrow_mut();
        if let Some(index) = loans.iter().position(|lent| *lent == self.span) {
            loans.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares all pairs of small spans with counting bytes.
    #[test]
    fn overlap_is_exact_at_equal_strides() {
        let bytes = |s: &Span| -> Vec<u64> {
            (0..s.rows).flat_map(|r| (0..s.row).map(move |c| s.start + r * s.stride + c)).collect()
        };
        let mut spans = Vec::new();
        for start in 0..14 {
            spans.extend((0..9).map(|row| Span { start, rows: 1, row, stride: row }));
            spans.extend((1..5).flat_map(|row| (2..4).map(move |rows| Span { start, rows, row, stride: 5 })));
        }
        for a in &spans {
            for b in &spans {
                let shared = bytes(a).iter().any(|byte| bytes(b).contains(byte));
                assert_eq!(a.overlaps(b), shared, "{a:?} {b:?}");
            }
        }
    }
}
