//! AdamW and the factor of an update.

use fathom_tensor::moments::BLOCK;
use fathom_tensor::{AdamW, DType, MomentScales, StepScale, Tensor};

use super::launch::{Args, Launch, code, expect, start_mut};
use super::table::{optimizer as entries, sums};

/// The factor of an update.
#[track_caller]
pub fn step_scale(op: &StepScale<'_>) -> Launch {
    let args = Args::new().plain(op.sum_squares, DType::F32).plain(op.loss, DType::F32);
    let args = args.plain(op.count, DType::F32).float(op.max_norm).plain_out(op.scale, DType::F32);
    let args = args.plain_out(op.skip, DType::F32).plain_out(op.norm, DType::F32);
    Launch::new(sums::step_scale, 1, args.plain_out(op.updates, DType::I32))
}

/// The update. Moments may be f32, bf16, or e4m3 with scales.
#[track_caller]
pub fn adamw(op: &AdamW<'_>) -> Launch {
    let n = op.param.len();
    let vector = |args: Args, what: &str, tensor: &Tensor| {
        assert!(tensor.is_contiguous() && tensor.len() == n, "adamw: {what} is {tensor:?} of {n} elements");
        args.raw_mat(start_mut(tensor), 0, code(tensor.dtype()))
    };
    for (what, tensor) in [("m", op.m), ("v", op.v.unwrap_or(op.m)), ("grad", op.grad)] {
        expect("adamw", what, tensor, op.param.shape());
    }
    let wanted = n.div_ceil(BLOCK);
    let coded = op.m.dtype() == DType::F8E4M3;
    let fits =
        op.scales.is_some_and(|scales| scales.m.len() == wanted && scales.v.is_some() == op.v.is_some());
    assert!(fits || !coded, "adamw: moments in e4m3 need {wanted} scales each, not {:?}", op.scales);
    let args = vector(Args::new(), "param", op.param);
    let args = match op.master {
        Some(master) => vector(args, "master", master),
        None => args.raw_mat(0, 0, 0),
    };
    let args = vector(args, "m", op.m);
    let args = match op.v {
        Some(v) => vector(args, "v", v),
        None => args.raw_mat(0, 0, 0),
    };
    // Only read, so it may be shared.
    assert!(op.grad.is_contiguous(), "adamw: grad is {:?}", op.grad);
    let args = args.raw_mat(op.grad.address(), 0, code(op.grad.dtype()));
    let args = args.plain(op.scale, DType::F32).plain(op.skip, DType::F32).plain(op.updates, DType::I32);
    let args = match op.scales.filter(|_| coded) {
        Some(MomentScales { m, v }) => args.plain_out(m, DType::F32).plain_out(v.unwrap_or(m), DType::F32),
        None => args.address(0).address(0),
    };
    let args = args.int_bits(op.key.cast_signed()).long(op.first);
    let args = args.long(n).float(op.lr).float(op.beta1).float(op.beta2).float(op.eps).float(op.weight_decay);
    Launch::new(entries::adamw, n.div_ceil(2048), args)
}
