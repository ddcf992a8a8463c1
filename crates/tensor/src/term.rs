//! Terms of a product: the contributions of low-rank adapters.

use crate::profile::TERMS;
use crate::{MatMul, OpDesc, Tensor};

/// `a b` or, with `b_trans`, `a b^T`, added to some columns of a product's result.
#[derive(Clone, Copy, Debug)]
pub struct ProductTerm<'a> {
    /// [m, k].
    pub a: &'a Tensor,
    /// [k, columns], or [columns, k] if `b_trans`.
    pub b: &'a Tensor,
    /// Transposes B.
    pub b_trans: bool,
    /// The first of those columns.
    pub first: usize,
}

impl ProductTerm<'_> {
    /// Columns, and the summed size.
    pub fn sizes(&self) -> (usize, usize) {
        let [k, n] = self.b.shape();
        if self.b_trans { (k, n) } else { (n, k) }
    }

    /// Calls `product` with the product that adds this term to C.
    pub fn added(&self, c: &Tensor, product: impl FnOnce(&MatMul<'_>)) {
        let c = &c.view_cols(self.first..self.first + self.sizes().0);
        product(&MatMul { a: self.a, a_trans: false, b: self.b, b_trans: self.b_trans, c, accumulate: true });
    }
}

impl MatMul<'_> {
    /// Shapes and types of this product with terms.
    ///
    /// # Panics
    /// If there are more than [`TERMS`], or the shapes do not fit.
    #[track_caller]
    pub fn desc_with(&self, terms: &[ProductTerm<'_>]) -> OpDesc {
        assert!(terms.len() <= TERMS, "matmul: {} terms", terms.len());
        let (m, n, k) = self.sizes();
        let mut sizes = [(0, 0); TERMS];
        sizes.iter_mut().zip(terms).for_each(|(size, term)| *size = term.sizes());
        OpDesc::WithTerms { m, n, k, input: self.a.dtype(), output: self.c.dtype(), terms: sizes }
    }
}
