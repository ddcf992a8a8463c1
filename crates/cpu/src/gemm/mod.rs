//! Matrix products: `C[m,n] (+)= op(A)[m,k] * op(B)[k,n]` over f32 and bf16 operands, f32 sums.
//!
//! One order of addition: an element of C is one chain over ascending k. It starts from zero, or from C's value with
//! `accumulate`, and takes one product at a time (a pair with `vdpbf16ps`, a tile step of 32 with AMX). There is no
//! split over k and no second partial sum, so the bits do not depend on threads, blocking, m, or strides; and a product
//! over k1 followed by an accumulating product over k2 into an f32 C equals the product over k1 + k2 if k1 is a
//! multiple of [`fathom_tensor::SUM_CHUNK`]. A bf16 C is rounded once, at the end. The bf16 units take denormal
//! operands and sums as zero.
//!
//! Operands are packed into panels just in time, by the thread that uses them; [`pack_b`] keeps a weight packed.
//! Kernels allocate nothing: the caller provides [`workspace_bytes`] of memory.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod drive;
#[cfg(target_arch = "x86_64")]
mod few512;
#[cfg(target_arch = "x86_64")]
mod few_avx2;
mod kernel;
mod kind;
#[cfg(target_arch = "x86_64")]
mod lanes512;
mod operands;
#[cfg(target_arch = "x86_64")]
mod pack512;
#[cfg(target_arch = "x86_64")]
mod pack_avx2;
mod plan;
mod portable;
mod prefetch;
#[cfg(target_arch = "x86_64")]
mod slim512;
mod terms;
#[cfg(test)]
mod tests;
mod with_terms;

pub use crate::mat::{Elem, Mat, MatMut};
pub use drive::{gemm, pack_b, packed_bytes, unit};
pub use plan::{most_workspace_bytes, workspace_bytes};
pub use terms::{TERMS, Term, bytes_with_terms};
pub use with_terms::gemm_and_terms;

/// The extents and storage of a product, which determine all memory requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Storage of A.
    pub a: Elem,
    /// Storage of B before any packing.
    pub b: Elem,
    /// True if B was packed by [`pack_b`].
    pub b_packed: bool,
}

/// Storage layout of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[k,n]`.
    Rows,
    /// `[n,k]`: a weight W of `y = x W^T`.
    Columns,
    /// Output of [`pack_b`] for this k, n and pair of storage types; the stride is ignored.
    Panels,
    /// bf16, `[n/8][k/2][8][2]`: a weight with rows interleaved by eight ([`fathom_tensor::ggml::octets`]). n is a
    /// multiple of eight, k is even and the stride. Not supported by kernels with bf16 units.
    Octets,
}

impl Layout {
    /// `[k,n]`, or `[n,k]` with `trans`.
    pub fn of(trans: bool) -> Layout {
        if trans { Layout::Columns } else { Layout::Rows }
    }
}

/// One product: `C[m,n] (+)= op(A)[m,k] * op(B)[k,n]`.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Stored `[m,k]`, or `[k,m]` with `a_trans`.
    pub a: Mat,
    /// True if A is stored transposed, `[k,m]`.
    pub a_trans: bool,
    /// Stored according to `b_layout`.
    pub b: Mat,
    /// Layout of B.
    pub b_layout: Layout,
    /// The result.
    pub c: MatMut,
    /// Adds to C instead of replacing it.
    pub accumulate: bool,
}

impl Gemm {
    /// The extents and storage of this product.
    pub fn shape(&self) -> Shape {
        let b_packed = self.b_layout == Layout::Panels;
        Shape { m: self.m, n: self.n, k: self.k, a: self.a.elem, b: self.b.elem, b_packed }
    }
}
