//! Operands of low-precision matrix products.

use crate::narrow::Narrow;
use crate::{MatMul, OpDesc, Tensor};

/// Largest magnitudes of an operand that is scaled by those of earlier steps; both f32 [1, 1].
#[derive(Clone, Copy, Debug)]
pub struct AmaxHistory<'a> {
    /// Largest magnitude in earlier steps; 0 if there were none, which gives a scale of 1.
    pub before: &'a Tensor,
    /// Largest magnitude in this step so far, updated with the operand's; not tracked if `None`.
    pub now: Option<&'a Tensor>,
}

/// One operand.
#[derive(Clone, Copy, Debug)]
pub struct NarrowOperand<'a> {
    /// Storage of the operand.
    pub how: Narrow,
    /// Source of a whole tensor's scale; `None` takes it from the tensor's own elements.
    pub delayed: Option<AmaxHistory<'a>>,
}

/// A product of operands that are rounded to fewer bits first: `C (+)= op(narrow(A)) op(narrow(B))`, summed in f32 as
/// usual.
///
/// Non-finite elements stay so, and do not count towards a block's largest.
#[derive(Clone, Copy, Debug)]
pub struct NarrowMatMul<'a> {
    /// The product, its operands in bf16 or f32.
    pub product: MatMul<'a>,
    /// Storage of A.
    pub a: NarrowOperand<'a>,
    /// Storage of B.
    pub b: NarrowOperand<'a>,
}

impl NarrowMatMul<'_> {
    /// Shapes and types of the call.
    #[track_caller]
    pub fn desc(&self) -> OpDesc {
        let (m, n, k) = self.product.sizes();
        let MatMul { a, a_trans, b_trans, c, .. } = self.product;
        let (input, output, how) = (a.dtype(), c.dtype(), [self.a.how, self.b.how]);
        OpDesc::Narrow { m, n, k, input, output, a_trans, b_trans, how }
    }
}
