//! Activation functions.

use fathom_tensor::{Activate, ActivateBackward, Activation, Tensor};

use super::launch::{Args, Launch, Sheet, expect};
use super::table::activate as entries;

fn number(kind: Activation) -> usize {
    match kind {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::Relu => 3,
        Activation::Relu2 => 4,
        Activation::Tanh => 5,
        Activation::Sigmoid => 6,
        Activation::ClampedSwiglu => panic!("activate: the clamped SwiGLU is gated, by pairs"),
    }
}

/// Splits x into gate and up if gated, else x alone.
#[track_caller]
fn halves(op: &str, x: &Tensor, gated: bool, [rows, cols]: [usize; 2]) -> (Tensor, Option<Tensor>) {
    expect(op, "x", x, [rows, if gated { 2 * cols } else { cols }]);
    (x.view_cols(0..cols), gated.then(|| x.view_cols(cols..2 * cols)))
}

/// Activation function.
#[track_caller]
pub fn activate(op: &Activate<'_>) -> Launch {
    let [rows, cols] = op.out.shape();
    if op.kind == Activation::ClampedSwiglu && op.gated {
        expect("activate", "x", op.x, [rows, 2 * cols]);
        let sheet = Sheet::new(rows, 2 * cols);
        let args = Args::new().mat(op.x).out(op.out).long(rows).long(cols).sheet(sheet);
        return Launch::new(entries::clamped, sheet.blocks(), args);
    }
    let (gate, up) = halves("activate", op.x, op.gated, [rows, cols]);
    let sheet = Sheet::of(&[&gate, op.out]);
    let args = Args::new().mat(&gate).mat_if(up.as_ref()).out(op.out).long(sheet.rows).long(sheet.cols);
    Launch::new(entries::activate, sheet.blocks(), args.sheet(sheet).int(number(op.kind)))
}

/// Gradient of the activation function.
#[track_caller]
pub fn activate_backward(op: &ActivateBackward<'_>) -> Launch {
    let [rows, cols] = op.dy.shape();
    expect("activate_backward", "dx", op.dx, op.x.shape());
    if op.kind == Activation::ClampedSwiglu && op.gated {
        expect("activate_backward", "x", op.x, [rows, 2 * cols]);
        let sheet = Sheet::new(rows, 2 * cols);
        let args = Args::new().mat(op.x).mat(op.dy).out(op.dx).long(rows).long(cols).sheet(sheet);
        return Launch::new(entries::clamped_backward, sheet.blocks(), args);
    }
    let (gate, up) = halves("activate_backward", op.x, op.gated, [rows, cols]);
    let (dgate, dup) = halves("activate_backward", op.dx, op.gated, [rows, cols]);
    let sheet = Sheet::of(&[&gate, op.dy, &dgate]);
    let args = Args::new().mat(&gate).mat_if(up.as_ref()).mat(op.dy).out(&dgate).out_if(dup.as_ref());
    let args = args.long(sheet.rows).long(sheet.cols).sheet(sheet).int(number(op.kind));
    Launch::new(entries::activate_backward, sheet.blocks(), args)
}
