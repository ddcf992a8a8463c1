//! Operands of a product, as the packing reads them.
#![allow(unsafe_code)]

use super::kernel::Source;
use super::{Gemm, Layout};
use crate::mat::Mat;

/// A pointer shared by tasks, each of which writes its own part.
#[derive(Clone, Copy)]
pub(super) struct SyncOperands<T>(pub T);

// SAFETY: every task accesses only its own part of the memory.
unsafe impl<T> Sync for SyncOperands<T> {}

impl<T: Copy> SyncOperands<T> {
    pub(super) fn get(&self) -> T {
        self.0
    }
}

pub(super) fn source_a(g: &Gemm) -> Source {
    let Mat { ptr, elem, stride } = g.a;
    Source { ptr, elem, stride, k_contiguous: !g.a_trans, octets: false, outer: g.m, k: g.k }
}

pub(super) fn source_b(b: &Mat, layout: Layout, k: usize, n: usize) -> Source {
    let (octets, k_contiguous) = (layout == Layout::Octets, layout != Layout::Rows);
    Source { ptr: b.ptr, elem: b.elem, stride: b.stride, k_contiguous, octets, outer: n, k }
}
