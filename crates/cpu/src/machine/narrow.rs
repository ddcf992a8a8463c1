//! Products of narrow operands, emulated: both are rounded into scratch and multiplied there; packing of quantized
//! weights.
#![allow(unsafe_code)]

use fathom_tensor::{MatMul, NarrowMatMul, NarrowOperand, OpDesc, Pack, RoundWeights, Tensor, Unpack};

use super::cpu::Cpu;
use super::operands::{self, elem, expect, f32s, mat, mat_mut, scalar, scratch, set_scalar, start};
use crate::denormals::AsZeros;
use crate::elementwise::{self, Round, Scale};
use crate::isa::Isa;
use crate::mat::{Mat, MatMut};
use crate::{blocks, gemm};

/// Alignment of the parts of scratch.
const ALIGN: usize = 4096;

/// Bytes of the rounded A and B, and of the product's own scratch.
fn parts(isa: Isa, threads: usize, op: &OpDesc) -> [usize; 3] {
    let OpDesc::Narrow { m, n, k, input, output, .. } = *op else { return [0; 3] };
    let (a, c) = (elem(input), elem(output));
    let shape = gemm::Shape { m, n, k, a, b: a, b_packed: false };
    let bytes = |rows: usize| (rows * k * a.bytes()).next_multiple_of(ALIGN);
    [bytes(m), bytes(n), gemm::workspace_bytes(isa, threads, &shape, c)]
}

/// Scratch bytes of a product of narrow operands.
pub fn workspace(isa: Isa, threads: usize, op: &OpDesc) -> usize {
    parts(isa, threads, op).into_iter().sum()
}

/// `out = max(out, |x|)`, for all of x or by column.
pub fn largest(cpu: &Cpu, x: &Tensor, out: &Tensor) {
    let [rows, cols] = x.shape();
    if out.len() == 1 {
        // SAFETY: see the machine's module.
        let most = unsafe { elementwise::largest(cpu.place(), rows, cols, mat(x)) };
        return set_scalar(out, scalar(out).max(most));
    }
    expect("largest", "out", out, [1, cols]);
    // SAFETY: see the machine's module.
    unsafe { elementwise::largest_by_column(cpu.place(), rows, cols, mat(x), mat_mut(out)) }
}

/// Rounds master weights to a four-bit format.
pub fn round_weights(cpu: &Cpu, op: &RoundWeights<'_>) {
    op.check();
    let (largest, x, out) = (op.largest.map_or(0.0, scalar), f32s(op.x), mat_mut(op.out));
    let _zeros = AsZeros::new();
    // SAFETY: see the machine's module; both are one row of equally many elements, as was checked.
    unsafe { elementwise::round_weights(cpu.place(), op.format, x, op.format.factor(largest), out) }
}

/// Rounds an operand into scratch, without gaps between rows.
fn round(cpu: &Cpu, operand: &NarrowOperand<'_>, x: &Tensor, along_columns: bool, to: *mut u8) -> Mat {
    let ([rows, cols], how) = (x.shape(), operand.how);
    let scale = match how.block(along_columns) {
        Some(block) => Scale::Blocks(block),
        None => Scale::Power(how.exponent(reference(cpu, operand, x))),
    };
    let out = MatMut { ptr: to, elem: elem(x.dtype()), stride: cols };
    // SAFETY: see the machine's module; the scratch has room for all elements of x, and is not x.
    unsafe { elementwise::narrow(cpu.place(), &Round { how, rows, cols, scale, x: mat(x), out }) };
    out.as_mat()
}

/// The magnitude from which a whole tensor's scale is computed.
fn reference(cpu: &Cpu, operand: &NarrowOperand<'_>, x: &Tensor) -> f32 {
    let [rows, cols] = x.shape();
    // SAFETY: see the machine's module.
    let own = || unsafe { elementwise::largest(cpu.place(), rows, cols, mat(x)) };
    let Some(delayed) = operand.delayed else { return own() };
    if let Some(now) = delayed.now {
        set_scalar(now, scalar(now).max(own()));
    }
    f32s(delayed.before)[0]
}

/// Computes the product.
pub fn matmul(cpu: &Cpu, op: &NarrowMatMul<'_>, ws: &Tensor) {
    let MatMul { a, a_trans, b, b_trans, c, accumulate } = op.product;
    let (m, n, k) = op.product.sizes();
    let [a_bytes, b_bytes, _] = parts(cpu.isa, cpu.threads.count(), &op.desc());
    let needed = workspace(cpu.isa, cpu.threads.count(), &op.desc()) as u64;
    assert!(ws.bytes() >= needed, "narrow matmul: scratch {ws:?}, {needed} bytes are needed");
    let start = scratch(ws);
    // SAFETY: the scratch has these parts, as was just checked.
    let (b_start, rest) = unsafe { (start.add(a_bytes), start.add(a_bytes + b_bytes)) };
    let a = round(cpu, &op.a, a, !a_trans, start);
    let b = round(cpu, &op.b, b, b_trans, b_start);
    let call =
        gemm::Gemm { m, n, k, a, a_trans, b, b_layout: gemm::Layout::of(b_trans), c: mat_mut(c), accumulate };
    // SAFETY: see the machine's module; the rest of the scratch has the bytes that the product requires.
    unsafe { gemm::gemm(&cpu.threads, cpu.isa, &call, rest) }
}

/// See [`fathom_tensor::Machine::pack`].
pub(super) fn pack(cpu: &Cpu, op: &Pack<'_>) {
    op.check();
    let rows = operands::packed_rows(op.format, operands::start_mut(op.out), op.x, start(op.x));
    // SAFETY: see the parent module; shapes were checked, and the input is only read.
    unsafe { blocks::pack(cpu.place(), &rows) }
}

/// See [`fathom_tensor::Machine::unpack`].
pub(super) fn unpack(cpu: &Cpu, op: &Unpack<'_>) {
    op.check();
    let rows =
        operands::packed_rows(op.format, start(op.packed).cast_mut(), op.out, operands::start_mut(op.out));
    // SAFETY: the same as for packing.
    unsafe { blocks::unpack(cpu.place(), &rows) }
}
