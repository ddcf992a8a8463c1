//! Copies, conversions, sums, multiples.

use fathom_tensor::Tensor;

use super::launch::{Args, Launch, Sheet, expect, start_mut};
use super::table::plain;

/// `dst = src`, converting between float types.
#[track_caller]
pub fn copy(src: &Tensor, dst: &Tensor) -> Launch {
    expect("copy", "dst", dst, src.shape());
    if src.dtype() != dst.dtype() {
        let sheet = Sheet::of(&[src, dst]);
        let args = Args::new().mat(src).out(dst).long(sheet.rows).long(sheet.cols).sheet(sheet);
        return Launch::new(plain::copy, sheet.blocks(), args);
    }
    let size = src.dtype().bytes();
    let whole = Sheet::of(&[src, dst]);
    let sheet = Sheet::new(whole.rows, whole.cols * size);
    let args = Args::new().address(src.address()).long(src.stride() * size).address(start_mut(dst));
    let args = args.long(dst.stride() * size).long(sheet.rows).long(sheet.cols).sheet(sheet);
    Launch::new(plain::copy_bytes, sheet.blocks(), args)
}

/// Sets all bits to zero.
#[track_caller]
pub fn zero(dst: &Tensor) -> Launch {
    let (whole, size) = (Sheet::of(&[dst]), dst.dtype().bytes());
    let sheet = Sheet::new(whole.rows, whole.cols * size);
    let args = Args::new().address(start_mut(dst)).long(dst.stride() * size);
    Launch::new(plain::zero_bytes, sheet.blocks(), args.long(sheet.rows).long(sheet.cols).sheet(sheet))
}

/// # Panics
/// If an operand shares the result's address but not its layout.
#[track_caller]
fn check_in_place(op: &str, operand: &Tensor, out: &Tensor) {
    let apart = operand.address() != out.address();
    let same = operand.dtype() == out.dtype() && operand.stride() == out.stride();
    assert!(apart || same, "{op}: {operand:?} in place of {out:?}");
}

/// `out = a + b`; `out` may be `a` or `b`.
#[track_caller]
pub fn add(a: &Tensor, b: &Tensor, out: &Tensor) -> Launch {
    expect("add", "b", b, a.shape());
    expect("add", "out", out, a.shape());
    check_in_place("add", a, out);
    check_in_place("add", b, out);
    let sheet = Sheet::of(&[a, b, out]);
    let args = Args::new().mat(a).mat(b).out(out).long(sheet.rows).long(sheet.cols).sheet(sheet);
    Launch::new(plain::add, sheet.blocks(), args)
}

/// `x += bias` on each row.
#[track_caller]
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Launch {
    expect("add_bias", "bias", bias, [1, x.cols()]);
    let sheet = Sheet::new(x.rows(), x.cols());
    // A stride of zero makes the single row serve every row.
    let args = Args::new().mat(x).raw_mat(bias.address(), 0, super::launch::code(bias.dtype())).out(x);
    Launch::new(plain::add, sheet.blocks(), args.long(sheet.rows).long(sheet.cols).sheet(sheet))
}

/// `out = a b`; a single row `b` is used for all rows of `a`; `out` may be `a`.
#[track_caller]
pub fn multiply(a: &Tensor, b: &Tensor, out: &Tensor) -> Launch {
    let rows = if b.rows() > 1 { a.rows() } else { 1 };
    expect("multiply", "b", b, [rows, a.cols()]);
    expect("multiply", "out", out, a.shape());
    check_in_place("multiply", a, out);
    let row = b.rows() < a.rows();
    let sheet = if row { Sheet::new(a.rows(), a.cols()) } else { Sheet::of(&[a, b, out]) };
    let stride = if row { 0 } else { b.stride() };
    let args = Args::new().mat(a).raw_mat(b.address(), stride, super::launch::code(b.dtype())).out(out);
    Launch::new(plain::multiply, sheet.blocks(), args.long(sheet.rows).long(sheet.cols).sheet(sheet))
}

/// `out = 1 / sqrt(x)`; `out` may be `x`.
#[track_caller]
pub fn rsqrt(x: &Tensor, out: &Tensor) -> Launch {
    expect("rsqrt", "out", out, x.shape());
    check_in_place("rsqrt", x, out);
    let sheet = Sheet::of(&[x, out]);
    let args = Args::new().mat(x).out(out).long(sheet.rows).long(sheet.cols).sheet(sheet);
    Launch::new(plain::reciprocal_root, sheet.blocks(), args)
}

/// `out = factor x`; `out` may be `x`.
#[track_caller]
pub fn scale(x: &Tensor, factor: f32, out: &Tensor) -> Launch {
    expect("scale", "out", out, x.shape());
    check_in_place("scale", x, out);
    let sheet = Sheet::of(&[x, out]);
    let args = Args::new().mat(x).out(out).long(sheet.rows).long(sheet.cols).sheet(sheet).float(factor);
    Launch::new(plain::scale, sheet.blocks(), args)
}

/// `x = cap tanh(x / cap)`.
#[track_caller]
pub fn softcap(x: &Tensor, cap: f32) -> Launch {
    let sheet = Sheet::of(&[x]);
    let args = Args::new().out(x).long(sheet.rows).long(sheet.cols).sheet(sheet).float(cap);
    Launch::new(plain::softcap, sheet.blocks(), args)
}

/// `out [c, r] = x [r, c]`, converting between float types.
#[track_caller]
pub fn transpose(x: &Tensor, out: &Tensor) -> Launch {
    let [rows, cols] = x.shape();
    expect("transpose", "out", out, [cols, rows]);
    let across = cols.div_ceil(32);
    let args = Args::new().mat(x).out(out).long(rows).long(cols).int(across);
    Launch::new(plain::transpose, rows.div_ceil(32) * across, args)
}
