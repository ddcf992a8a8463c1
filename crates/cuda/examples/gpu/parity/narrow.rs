//! Products of narrow operands: by matrix units if the device has them, compared with the CPU's emulation.

use fathom_tensor::{
    AmaxHistory, Blocks, Category, DType, Element, MatMul, Narrow, NarrowMatMul, NarrowOperand, ScaleRule,
    Tensor,
};

use super::{Bed, Case, Outputs};

/// Elements and scales are equal, but sums of matrix units keep fewer bits than f32: on Hopper about 14 of the largest
/// addend.
const BOUNDS: [f64; 2] = [2e-3, 1e-2];

pub const CASES: &[Case] = &[
    Case { name: "FP8 by tensor, current", bounds: BOUNDS, run: |bed| of(bed, Blocks::Tensor, false) },
    Case { name: "FP8 by tensor, delayed", bounds: BOUNDS, run: |bed| of(bed, Blocks::Tensor, true) },
    Case { name: "FP8 by blocks of 128", bounds: BOUNDS, run: |bed| of(bed, Blocks::Line(128), false) },
    Case { name: "MXFP8", bounds: BOUNDS, run: |bed| of(bed, Blocks::Line(32), false) },
];

/// Tokens, columns of x, and columns of y: multiples of 16, at most one of them a whole number of blocks.
const SIZES: [usize; 3] = [208, 384, 336];

/// The three products of a linear layer.
fn of(bed: &Bed, blocks: Blocks, late: bool) -> Outputs {
    let [tokens, wide, out] = SIZES;
    let (x, w, dy) = (bed.data(1, [tokens, wide]), bed.data(2, [out, wide]), bed.data(3, [tokens, out]));
    let rule = if blocks == Blocks::Line(32) { ScaleRule::Floor } else { ScaleRule::Covers };
    let one = |value: f32| bed.device.from_f32(1, 1, &[value], Category::Data);
    let seen: Vec<[Tensor; 2]> = [0.6, 1.1, 0.3].map(|before| [one(before), one(0.0)]).to_vec();
    let operand = |at: usize, element, blocks| {
        let [before, now] = &seen[at];
        let delayed = late.then_some(AmaxHistory { before, now: Some(now) });
        NarrowOperand { how: Narrow { element, blocks, rule }, delayed }
    };
    let of_weight = if blocks == Blocks::Line(128) { Blocks::Tile(128) } else { blocks };
    let of_gradient = if blocks == Blocks::Tensor { Element::E5M2 } else { Element::E4M3 };
    let (ox, ow) = (operand(0, Element::E4M3, blocks), operand(1, Element::E4M3, of_weight));
    let ody = operand(2, of_gradient, blocks);
    let (y, dx) = (bed.empty([tokens, out], bed.dtype), bed.empty([tokens, wide], bed.dtype));
    let dw = bed.random(7, [out, wide], DType::F32);
    let of = |a, a_trans, b, b_trans, c, accumulate| MatMul { a, a_trans, b, b_trans, c, accumulate };
    for (product, a, b) in [
        (of(&x, false, &w, true, &y, false), ox, ow),
        (of(&dy, false, &w, false, &dx, false), ody, ow),
        (of(&dy, true, &x, false, &dw, true), ody, ox),
    ] {
        let op = NarrowMatMul { product, a, b };
        bed.machine().narrow_matmul(&op, &bed.scratch(&op.desc()));
    }
    let now = |at: usize| seen[at][1].clone();
    vec![("y", y), ("dx", dx), ("dw", dw), ("largest x", now(0)), ("largest dy", now(2))]
}
