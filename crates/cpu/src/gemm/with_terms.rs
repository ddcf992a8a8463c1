//! A product together with its terms.
#![allow(unsafe_code)]

use super::kernel::ALIGN;
use super::kind::kind;
use super::plan::workspace_of;
use super::terms::{Term, Terms, bytes_of_thread};
use super::{Gemm, drive};
use crate::isa::Isa;
use crate::threads::Threads;

/// Computes `g` and adds the terms; returns false, having done nothing, if a term does not begin and end at a tile of
/// C.
///
/// # Safety
/// See [`super::gemm`], including the terms' operands; `workspace` has [`bytes_with_terms`](super::bytes_with_terms).
pub unsafe fn gemm_and_terms(
    threads: &Threads,
    isa: Isa,
    g: &Gemm,
    terms: &[Term],
    workspace: *mut u8,
) -> bool {
    let kind = kind(isa, g.a.elem, g.b.elem);
    let whole = |term: &Term| {
        let end = term.col + term.n;
        term.col.is_multiple_of(kind.nr) && (end.is_multiple_of(kind.nr) || end == g.n) && end <= g.n
    };
    if !terms.iter().all(whole) {
        return false;
    }
    let own = workspace_of(kind, threads.count(), &g.shape(), g.c.elem);
    let memory = workspace.wrapping_add(own);
    let memory = memory.wrapping_add(memory.align_offset(ALIGN));
    let each = bytes_of_thread(kind, kind.block.0, terms.iter().map(|term| term.k));
    // SAFETY: passed on.
    unsafe { drive::gemm_of(threads, kind, g, Terms { list: terms, memory, each }, workspace) };
    true
}
