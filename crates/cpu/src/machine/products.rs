//! Products with terms.
#![allow(unsafe_code)]

use fathom_tensor::{MatMul, ProductTerm, Tensor};

use super::cpu::Cpu;
use super::operands::{mat, mat_mut, scratch};
use crate::gemm;

/// Converts a product to the kernels' form.
#[track_caller]
pub fn call(op: &MatMul<'_>) -> gemm::Gemm {
    let (m, n, k) = op.sizes();
    gemm::Gemm {
        m,
        n,
        k,
        a: mat(op.a),
        a_trans: op.a_trans,
        b: mat(op.b),
        b_layout: gemm::Layout::of(op.b_trans),
        c: mat_mut(op.c),
        accumulate: op.accumulate,
    }
}

/// Computes the product and its terms in one pass; returns false, having done nothing, if that is not supported.
///
/// # Panics
/// If shapes do not fit.
#[track_caller]
pub fn with_terms(cpu: &Cpu, op: &MatMul<'_>, terms: &[ProductTerm<'_>], ws: &Tensor) -> bool {
    let call = call(op);
    let sums: Vec<usize> = terms.iter().map(|term| term.sizes().1).collect();
    let needed = gemm::bytes_with_terms(cpu.isa, cpu.threads.count(), &call.shape(), call.c.elem, &sums);
    let Some(needed) = needed else { return false };
    let term = |term: &ProductTerm<'_>| {
        let (n, k) = term.sizes();
        let fits = term.a.shape() == [call.m, k]
            && term.first + n <= call.n
            && term.a.dtype() == op.a.dtype()
            && term.b.dtype() == op.a.dtype();
        assert!(fits, "matmul: {term:?} of {op:?}");
        let b_layout = gemm::Layout::of(term.b_trans);
        gemm::Term { col: term.first, n, k, a: mat(term.a), b: mat(term.b), b_layout }
    };
    let terms: Vec<gemm::Term> = terms.iter().map(term).collect();
    assert!(ws.bytes() >= needed as u64, "matmul: scratch {ws:?} is too small for {op:?} with terms");
    // SAFETY: see the module of `Cpu`; `ws` has the bytes given by the profile for this shape.
    unsafe { gemm::gemm_and_terms(&cpu.threads, cpu.isa, &call, &terms, scratch(ws)) }
}
