//! Matrix products by cuBLASLt.
//!
//! Tensors have rows, cuBLASLt has columns: `C = op(A) op(B)` by rows is `C^T = op(B)^T op(A)^T` by columns, where the
//! transposed matrices are the same bytes. Products split over the summed index are not allowed, so one shape has one order
//! of additions; another number of rows may have another, which the library does not promise to avoid.
#![allow(unsafe_code)]

mod fastest;
mod fp8;
mod groups;
mod lt;
mod preference;
mod recent;
mod shape;

pub use fp8::{Scales, fp8_units};
pub use groups::{GroupOperands, GroupedProducts, Groups, why_no_groups};
pub use lt::CublasLt;
pub use shape::{Element, Layout, Shape};

use crate::Result;
use crate::driver::Stream;

/// Where the operands of a product are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operands {
    /// Of A.
    pub a: u64,
    /// Of B.
    pub b: u64,
    /// Of C.
    pub c: u64,
    /// Of what elements of A and of B are multiplied by, where the shape says that they are.
    pub scales: [u64; 2],
    /// Adds to C.
    pub accumulate: bool,
    /// Scratch.
    pub workspace: u64,
    /// Its bytes.
    pub workspace_bytes: u64,
}

/// Something that multiplies matrices on a stream.
///
/// # Safety
/// It reads and writes what the shape and the addresses say, and the workspace.
pub unsafe trait Products: Send + Sync {
    /// Whether the library has something for a shape that needs no more scratch than there is.
    ///
    /// # Errors
    /// If the library fails.
    fn takes(&self, shape: &Shape, operands: &Operands) -> Result<bool>;
    /// Issues a product that [`Products::takes`].
    ///
    /// # Errors
    /// If the library fails.
    ///
    /// # Safety
    /// The operands have the shape, and live until the stream has passed.
    unsafe fn product(&self, shape: &Shape, operands: &Operands, stream: Stream) -> Result<()>;
}
