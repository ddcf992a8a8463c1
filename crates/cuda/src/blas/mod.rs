//! Matrix products by cuBLASLt.
//!
//! Tensors are row-major, cuBLASLt is column-major: `C = op(A) op(B)` by rows is `C^T = op(B)^T op(A)^T` by columns,
//! where the transposed matrices are the same bytes. Splitting the summed index is not allowed, so one shape has one
//! order of additions; a different number of rows may have a different order, which the library does not rule out.
#![allow(unsafe_code)]

mod fastest;
mod fp8;
mod group_shape;
mod groups;
mod handles;
mod lt;
mod preference;
mod recent;
mod shape;

pub use fp8::{Scales, fp8_units};
pub use group_shape::Groups;
pub use groups::{GroupOperands, GroupedProducts, why_no_groups};
pub use lt::CublasLt;
pub use shape::{Element, Layout, Shape};

use crate::Result;
use crate::driver::Stream;

/// Addresses of the operands of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operands {
    /// Address of A.
    pub a: u64,
    /// Address of B.
    pub b: u64,
    /// Address of C.
    pub c: u64,
    /// Addresses of the scales of A and of B, if the shape has scales.
    pub scales: [u64; 2],
    /// Adds to C.
    pub accumulate: bool,
    /// Address of the scratch.
    pub workspace: u64,
    /// Bytes of the scratch.
    pub workspace_bytes: u64,
}

/// A library that computes matrix products on a stream.
///
/// # Safety
/// Reads and writes only what the shape and the addresses describe, and the workspace.
pub unsafe trait Products: Send + Sync {
    /// True if the library supports a shape within the available scratch.
    fn takes(&self, shape: &Shape, operands: &Operands) -> Result<bool>;
    /// Issues a product for which [`Products::takes`] is true.
    /// # Safety
    /// The operands have the shape, and live until the stream has executed the product.
    unsafe fn product(&self, shape: &Shape, operands: &Operands, stream: Stream) -> Result<()>;
}
