//! Matrices of a product, their scales, and the product as data.

use std::hash::Hash;

use super::objects::Layout;
use super::values::Kind;
use super::{Outcome, invalid, unsupported};

/// A column-major matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    pub kind: Kind,
    pub rows: usize,
    pub cols: usize,
    pub ld: usize,
}

impl Matrix {
    pub(crate) fn of(name: &str, layout: &Layout) -> Outcome<Matrix> {
        let Layout { kind, rows, cols, ld } = *layout;
        if rows == 0 || cols == 0 {
            return invalid(format!(
                "{name} is {rows} x {cols} (of empty matrices the documents are silent)"
            ));
        }
        if ld < 0 || (ld as u64) < rows {
            return invalid(format!(
                "{name} has {rows} rows and a leading dimension of {ld}: columns overlap"
            ));
        }
        if rows.max(cols) > i32::MAX as u64 {
            return unsupported(format!("{name} is {rows} x {cols}: more than an int32_t has"));
        }
        let Some(kind) = Kind::of(kind) else {
            return unsupported(format!("{name} is of type {kind}, which the rehearsal does not have"));
        };
        Ok(Matrix { kind, rows: rows as usize, cols: cols as usize, ld: ld as usize })
    }

    /// Bytes from the first element to the end of the last.
    pub fn bytes(&self) -> u64 {
        self.column(self.cols - 1) + self.rows as u64 * self.kind.size()
    }

    /// Byte offset of a column.
    pub fn column(&self, index: usize) -> u64 {
        index as u64 * self.ld as u64 * self.kind.size()
    }
}

/// Precision of f32 products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Full f32.
    Full,
    /// Rounded to TF32.
    Tf32,
    F16,
    Bf16,
}

/// Storage of a matrix's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One factor for the matrix.
    Tensor,
    /// One per row of op(A), or column of op(B).
    Outer,
    /// One per 128 elements along the inner dimension.
    Vector,
    /// One per block of 128 by 128.
    Block,
}

/// The factors of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    pub mode: Mode,
    /// Device address; null means one.
    pub address: u64,
}

/// Width and height of a block.
pub const BLOCK: usize = 128;

impl Scale {
    /// Number of factors for a matrix with this many outer rows (of op(A)) or columns (of op(B)).
    pub fn count(&self, outer: usize, inner: usize) -> usize {
        match self.mode {
            Mode::Tensor => 1,
            Mode::Outer => outer,
            Mode::Vector => outer * inner.div_ceil(BLOCK),
            Mode::Block => outer.div_ceil(BLOCK) * inner.div_ceil(BLOCK).next_multiple_of(4),
        }
    }

    /// Index of the factor for an outer index and a block of the inner dimension.
    pub fn index(&self, outer: usize, block: usize, [outers, inner]: [usize; 2]) -> usize {
        match self.mode {
            Mode::Tensor => 0,
            Mode::Outer => outer,
            Mode::Vector => block * outers + outer,
            Mode::Block => outer / BLOCK * inner.div_ceil(BLOCK).next_multiple_of(4) + block,
        }
    }
}

/// A product.
#[derive(Clone, Debug)]
pub struct Problem {
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    pub transposed: [bool; 2],
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub precision: Precision,
    /// True if alpha and beta are in device memory.
    pub scalars_on_device: bool,
    pub scale_a: Scale,
    pub scale_b: Scale,
    /// Address of C's factor, or null.
    pub scale_c: u64,
    pub scale_d: u64,
    /// Address for the largest magnitude of D, or null.
    pub largest: u64,
    /// Identifies products that can share an algorithm.
    pub key: u64,
}
