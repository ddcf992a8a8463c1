//! Operands of matrix products.

use crate::Tensor;

/// `C (+)= op(A) op(B)`; op transposes if the flag is set.
#[derive(Clone, Copy, Debug)]
pub struct MatMul<'a> {
    /// [m, k], or [k, m] if `a_trans`.
    pub a: &'a Tensor,
    /// Transposes A.
    pub a_trans: bool,
    /// [k, n], or [n, k] if `b_trans`.
    pub b: &'a Tensor,
    /// Transposes B.
    pub b_trans: bool,
    /// [m, n].
    pub c: &'a Tensor,
    /// Adds to C instead of overwriting it; continues each element's chain of additions.
    pub accumulate: bool,
}

impl MatMul<'_> {
    /// Sizes (m, n, k).
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn sizes(&self) -> (usize, usize, usize) {
        let [m, k] = if self.a_trans { [self.a.cols(), self.a.rows()] } else { self.a.shape() };
        let [k2, n] = if self.b_trans { [self.b.cols(), self.b.rows()] } else { self.b.shape() };
        let fits = k == k2 && self.c.shape() == [m, n] && self.a.dtype() == self.b.dtype();
        assert!(fits, "matmul: {self:?}");
        (m, n, k)
    }

    /// The same product as one with a packed B; `None` if B is not packed.
    ///
    /// # Panics
    /// If B is packed and this is not `C = A B^T`.
    #[track_caller]
    pub fn packed(&self) -> Option<PackedMatMul<'_>> {
        self.b.packing()?;
        assert!(!self.a_trans && self.b_trans && !self.accumulate, "a product with packed weights: {self:?}");
        Some(PackedMatMul { a: self.a, weight: self.b, c: self.c })
    }

    /// Shapes and types of the call.
    #[track_caller]
    pub fn desc(&self) -> crate::OpDesc {
        let (m, n, k) = self.sizes();
        let (input, output) = (self.a.dtype(), self.c.dtype());
        crate::OpDesc::MatMul { m, n, k, input, output, a_trans: self.a_trans, b_trans: self.b_trans }
    }
}

/// `C = A W^T` with a packed weight.
#[derive(Clone, Copy, Debug)]
pub struct PackedMatMul<'a> {
    /// f32 or bf16 [m, k].
    pub a: &'a Tensor,
    /// [n, k], packed ([`Tensor::packing`]).
    pub weight: &'a Tensor,
    /// f32 or bf16 [m, n].
    pub c: &'a Tensor,
}

impl PackedMatMul<'_> {
    /// The weight's packing.
    ///
    /// # Panics
    /// If it is not packed, or shapes do not fit.
    #[track_caller]
    pub fn packing(&self) -> &crate::Packing {
        let Some(packing) = self.weight.packing() else { panic!("packed_matmul: {self:?}") };
        let fits = self.a.cols() == packing.cols && self.c.shape() == [self.a.rows(), packing.rows()];
        assert!(fits, "packed_matmul: {self:?}");
        packing
    }

    /// Shapes and types of the call.
    #[track_caller]
    pub fn desc(&self) -> crate::OpDesc {
        let packing = self.packing();
        let numbers = packing.is_numbers().then(|| (self.a.dtype(), self.c.dtype()));
        crate::OpDesc::Packed { m: self.a.rows(), n: packing.rows(), k: packing.cols, numbers }
    }
}
