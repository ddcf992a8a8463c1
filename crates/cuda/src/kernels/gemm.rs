//! Matrix products without a library, for shapes and types that libraries refuse.

use fathom_tensor::{DType, MatMul};

use super::launch::{Args, Launch, pick};
use super::table::{gemm_bf16, gemm_f16, gemm_f32};

/// Columns per tile.
pub(super) fn width(dtype: DType) -> usize {
    if dtype == DType::F32 { 64 } else { 128 }
}

/// Matrix product; A and B are f32, bf16 or f16, C is any of them.
#[track_caller]
pub fn matmul(op: &MatMul<'_>) -> Launch {
    let (m, n, k) = op.sizes();
    let entry = pick(op.a.dtype(), [gemm_f32::gemm_f32, gemm_bf16::gemm_bf16, gemm_f16::gemm_f16]);
    assert!(op.c.dtype().bytes() >= 2 && op.c.dtype().is_float(), "matmul: the result is {:?}", op.c);
    let side = width(op.a.dtype());
    let across = n.div_ceil(side);
    let args = Args::new().mat(op.a).mat(op.b).out(op.c).long(m).long(n).long(k);
    let args = args.flag(op.a_trans).flag(op.b_trans).flag(op.accumulate).int(across);
    Launch::new(entry, m.div_ceil(side) * across, args)
}
