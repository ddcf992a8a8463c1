//! Norms with a gate.

use fathom_tensor::{DType, GatedNorm, GatedNormBackward, GatedNormOperands};

use super::launch::{Args, Launch, Scratch, expect, start_mut, team, teams};
use super::sums::{add_chunks, rounds};
use super::table::gated as entries;

/// Columns of the weight, or 1 without one.
#[track_caller]
fn check(op: &str, of: &GatedNormOperands<'_>) -> usize {
    let [_, cols] = of.y.shape();
    expect(op, "z", of.z, of.y.shape());
    assert!(of.width > 0 && cols.is_multiple_of(of.width), "{op}: groups of {} in {:?}", of.width, of.y);
    let weights = of.weight.map_or(of.width, |weight| weight.cols());
    of.weight.iter().for_each(|weight| expect(op, "weight", weight, [1, weights]));
    assert!(weights == cols || weights == of.width, "{op}: {weights} weights of {:?}", of.y);
    weights
}

/// The norm.
#[track_caller]
pub fn gated_norm(op: &GatedNorm<'_>) -> Launch {
    let (of, weights) = (&op.of, check("gated_norm", &op.of));
    expect("gated_norm", "out", op.out, of.y.shape());
    let (rows, groups, team) = (of.y.rows(), of.y.cols() / of.width, team(of.width));
    let args = Args::new().mat(of.y).mat(of.z).mat_if(of.weight).out(op.out).long(rows).long(weights);
    let args = args.int(groups).int(of.width).int(team).flag(of.gate_first).float(of.eps);
    Launch::new(entries::gated_norm, teams(rows * groups, team), args)
}

/// The gradients, that of the weight in ascending chunks of 128 rows.
#[track_caller]
pub fn gated_norm_backward(op: &GatedNormBackward<'_>, scratch: Scratch) -> Vec<Launch> {
    let (of, weights) = (&op.of, check("gated_norm_backward", &op.of));
    let (rows, groups, team) = (of.y.rows(), of.y.cols() / of.width, team(of.width));
    for tensor in [Some(op.dout), op.dy, op.dz].into_iter().flatten() {
        expect("gated_norm_backward", "a gradient", tensor, of.y.shape());
    }
    let args = Args::new().mat(of.y).mat(of.z).mat_if(of.weight).mat(op.dout).out_if(op.dy).out_if(op.dz);
    let args = args.long(rows).long(weights).int(groups).int(of.width).int(team);
    let args = args.flag(of.gate_first).float(of.eps);
    let mut launches = Vec::new();
    if op.dy.or(op.dz).is_some() {
        launches.push(Launch::new(entries::gated_norm_backward, teams(rows * groups, team), args));
    }
    let Some(dweight) = op.dweight.filter(|_| of.weight.is_some()) else { return launches };
    expect("gated_norm_backward", "dweight", dweight, [1, weights]);
    assert!(dweight.dtype() == DType::F32, "gated_norm_backward: weight gradients are f32, not {dweight:?}");
    let to = start_mut(dweight);
    for (first, chunks) in rounds(rows, weights) {
        let args = Args::new().mat(of.y).mat(of.z).mat(op.dout).address(scratch.0).long(first).long(rows);
        let args = args.long(weights).int(groups).int(of.width).flag(of.gate_first).float(of.eps);
        launches.push(Launch::new(entries::gated_norm_chunks, chunks, args));
        launches.push(add_chunks(to, scratch.0, weights, chunks, weights));
    }
    launches
}
