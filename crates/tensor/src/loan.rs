//! Loans of a tensor's elements to a transfer. Until the transfer retires, no code may learn their address, so no
//! operation can read or reuse them: [`Tensor::address`] panics for any tensor that overlaps them, including clones and
//! other views.

use crate::Tensor;
use crate::span::Span;

/// A tensor whose elements are on loan to a transfer, for links. Dropping it ends the loan.
pub struct LoanedTensor {
    tensor: Tensor,
    span: Span,
}

impl LoanedTensor {
    /// Lends the elements.
    ///
    /// # Panics
    /// If some of them are already on loan.
    #[track_caller]
    pub fn new(tensor: Tensor) -> LoanedTensor {
        let span = Span::of(&tensor, tensor.address());
        tensor.loans().borrow_mut().push(span);
        LoanedTensor { tensor, span }
    }

    /// The tensor, usable once the loan ends.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Drop for LoanedTensor {
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
