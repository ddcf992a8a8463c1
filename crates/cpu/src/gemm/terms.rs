//! Short products added to some columns of a larger product's result, as for low-rank adapters: they are added while a
//! tile of C is in the first-level cache, not in separate passes over C. The tile is rounded to C's storage before a
//! term is added, so the bits are those of consecutive products.
#![allow(unsafe_code)]

use std::ops::Range;

use super::kernel::{ALIGN, Kind, Lines, PackRange, Panels, SLACK, Source};
use super::kind::kind;
use super::plan::{round_up, workspace_of};
use super::{Elem, Layout, Mat, Shape};
use crate::isa::Isa;

/// Largest number of terms in a product.
pub const TERMS: usize = 3;

/// `a[m,k] b[k,n]`, added to the columns of C from `col` on.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// The first column.
    pub col: usize,
    /// Number of columns.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// `[m,k]`.
    pub a: Mat,
    /// `[k,n]`, or `[n,k]`.
    pub b: Mat,
    /// Layout of B: rows or columns.
    pub b_layout: Layout,
}

/// The terms of a call and their memory behind the product's own, `each` bytes per thread.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub list: &'a [Term],
    pub(super) memory: *mut u8,
    pub(super) each: usize,
}

impl Terms<'_> {
    pub(super) const NONE: Terms<'static> = Terms { list: &[], memory: std::ptr::null_mut(), each: 0 };

    /// The term at a column, and the column's index within the term.
    fn at(&self, col: usize) -> Option<(usize, usize)> {
        let found = |term: &Term| (term.col..term.col + term.n).contains(&col);
        self.list.iter().position(found).map(|index| (index, col - self.list[index].col))
    }
}

/// Bytes per thread: panels of A of every term for all rows of a task, and one panel of B.
pub(super) fn bytes_of_thread(kind: &Kind, rows: usize, sums: impl Iterator<Item = usize>) -> usize {
    let packed = |width: usize, k: usize| round_up(width * round_up(k, kind.unit) * kind.size + SLACK, ALIGN);
    let (mut all, mut most) = (0, 0);
    for k in sums {
        all += packed(rows, k);
        most = most.max(packed(kind.nr, k));
    }
    all + most
}

/// Bytes of workspace that [`gemm_and_terms`](super::gemm_and_terms) needs for terms with these sum lengths; `None` if such a product is not
/// supported.
pub fn bytes_with_terms(isa: Isa, threads: usize, shape: &Shape, c: Elem, sums: &[usize]) -> Option<usize> {
    let kind = kind(isa, shape.a, shape.b);
    kind.round?;
    let fits =
        c == Elem::Bf16 && kind.few.is_none_or(|(rows, _)| shape.m > rows) && shape.n > 0 && shape.k > 0;
    let short = sums.len() <= TERMS && sums.iter().all(|k| (1..=kind.kc).contains(k));
    (fits && short && !shape.b_packed).then(|| {
        let each = bytes_of_thread(kind, kind.block.0, sums.iter().copied());
        round_up(workspace_of(kind, threads, shape, c), ALIGN) + ALIGN + threads * each
    })
}

/// A task's part of the terms, with A packed.
pub(super) struct PackedTerms<'a> {
    kind: &'a Kind,
    terms: Terms<'a>,
    memory: *mut u8,
    rows: Range<usize>,
}

impl<'a> PackedTerms<'a> {
    /// Packs A for a task's rows and columns in its thread's memory; `None` if there are no terms.
    ///
    /// # Safety
    /// The terms' operands are readable; the thread's memory is used by nothing else.
    pub(super) unsafe fn of(
        kind: &'a Kind,
        terms: Terms<'a>,
        [rows, cols]: [Range<usize>; 2],
        m: usize,
        thread: usize,
    ) -> Option<PackedTerms<'a>> {
        if terms.list.is_empty() {
            return None;
        }
        let memory = terms.memory.wrapping_add(thread * terms.each);
        let packed = PackedTerms { kind, terms, memory, rows };
        let panels = packed.rows.len().div_ceil(kind.mr);
        for (index, term) in terms.list.iter().enumerate() {
            if term.col >= cols.end || term.col + term.n <= cols.start {
                continue;
            }
            let Mat { ptr, elem, stride } = term.a;
            let source = Source { ptr, elem, stride, k_contiguous: true, octets: false, outer: m, k: term.k };
            let cut = PackRange { o0: packed.rows.start, panels, k0: 0, k1: term.k };
            // SAFETY: the rows exist, and this part of the memory is for them.
            unsafe { (kind.pack_a)(&source, cut, packed.panels_a(index)) };
        }
        Some(packed)
    }

    fn panels_a(&self, index: usize) -> *mut u8 {
        let before = self.terms.list[..index].iter().map(|term| term.k);
        let rows = self.kind.block.0;
        let bytes: usize = before
            .map(|k| round_up(rows * round_up(k, self.kind.unit) * self.kind.size + SLACK, ALIGN))
            .sum();
        self.memory.wrapping_add(bytes)
    }

    /// Panels of the term at column `col`: those of A from the first rows on, and the one of B.
    ///
    /// # Safety
    /// Earlier results are no longer used.
    pub(super) unsafe fn panel(&self, col: usize) -> Option<TermPanels> {
        let (index, first) = self.terms.at(col)?;
        let term = &self.terms.list[index];
        let b = self.panels_a(self.terms.list.len());
        let Mat { ptr, elem, stride } = term.b;
        let k_contiguous = term.b_layout == Layout::Columns;
        let source = Source { ptr, elem, stride, k_contiguous, octets: false, outer: term.n, k: term.k };
        // SAFETY: the columns exist; the panel has room behind those of A.
        unsafe { (self.kind.pack_b)(&source, PackRange { o0: first, panels: 1, k0: 0, k1: term.k }, b) };
        let steps = term.k.div_ceil(self.kind.unit);
        Some(TermPanels { a: self.panels_a(index), b, steps })
    }
}

/// The term's contribution to one panel of columns.
#[derive(Clone, Copy)]
pub(super) struct TermPanels {
    a: *const u8,
    b: *const u8,
    steps: usize,
}

impl TermPanels {
    /// Adds to the `index`-th tile from the top, which has `rows` rows, after rounding it.
    ///
    /// # Safety
    /// The tile is one of the task's.
    pub(super) unsafe fn add(&self, kind: &Kind, index: usize, tile: *mut f32, rows: usize) {
        let a = self.a.wrapping_add(index * kind.mr * self.steps * kind.unit * kind.size);
        let soon = Lines { ptr: self.b, apart: 0, unit: 0, tile: 0 };
        // SAFETY: the panels hold `steps` units; a tile holds MR x NR sums.
        unsafe {
            if let Some(round) = kind.round {
                round(tile, rows);
            }
            (kind.micro)(self.steps, Panels { a, b: self.b, soon }, tile, rows, false);
        }
    }
}
