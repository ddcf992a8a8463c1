//! Quantization of operands as the contract's [`Narrow`] specifies, and largest magnitudes: rounded numbers for
//! products without matrix units ([`narrowed`]), codes and scales for products with them ([`coded`]).

use fathom_tensor::{Blocks, DType, MatMul, Narrow, NarrowMatMul, NarrowOperand, ScaleRule, Tensor, gpu};

use super::launch::{Args, Launch, Scratch, expect, start_mut};
use super::table::narrow as entries;

/// Rows and columns of a patch handled by one block of threads: whole blocks of every shape.
const PATCH: usize = 128;

/// Appends a format's parameters as kernels take them.
pub(super) fn small(args: Args, how: Narrow) -> Args {
    let (element, covers) = (how.element, i32::from(how.rule == ScaleRule::Covers));
    let pair = |low: i32, high: i32| u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32;
    let most = element.most().to_bits().cast_signed();
    args.structure(&[pair(element.mantissa(), element.low()), pair(element.high(), covers), pair(most, 0)])
}

/// `out = nearest(x / scale) x scale`, by blocks of x, whose summed index runs along its columns or not; or with one
/// scale for the whole tensor, computed from `largest` f32 [1, 1]. `out` may not be x.
#[track_caller]
pub fn narrow(
    x: &Tensor,
    how: Narrow,
    along_columns: bool,
    largest: Option<&Tensor>,
    out: &Tensor,
) -> Launch {
    let [rows, cols] = x.shape();
    expect("narrow", "out", out, [rows, cols]);
    let block = how.block(along_columns);
    assert!(block.is_some() != largest.is_some(), "narrow: {how:?} with a largest element {largest:?}");
    let [high, wide] = block.unwrap_or([PATCH; 2]);
    assert!(PATCH.is_multiple_of(high) && PATCH.is_multiple_of(wide), "narrow: blocks of {high} x {wide}");
    let (down, across) = (rows.div_ceil(PATCH), cols.div_ceil(PATCH));
    let args = Args::new().mat(x).out(out).plain_if(largest, DType::F32).long(rows).long(cols);
    let args = small(args.int(across).int(high).int(wide), how);
    Launch::new(entries::narrow, down * across, args)
}

/// `out = max(out, |x|)` over finite elements: all of them for f32 [1, 1], by column for f32 [1, cols].
#[track_caller]
pub fn largest(x: &Tensor, out: &Tensor, scratch: Scratch) -> Vec<Launch> {
    let [rows, cols] = x.shape();
    if out.len() != 1 {
        expect("largest", "out", out, [1, cols]);
        let args = Args::new().mat(x).plain_out(out, DType::F32).long(rows).long(cols);
        return vec![Launch::new(entries::largest_by_column, cols.div_ceil(256), args)];
    }
    let part = rows.div_ceil(1024).max(1);
    let blocks = rows.div_ceil(part);
    let args = Args::new().mat(x).address(scratch.0).long(rows).long(cols).long(part);
    let all = Args::new().address(scratch.0).plain_out(out, DType::F32).int(blocks);
    vec![Launch::new(entries::sizes, blocks, args), Launch::new(entries::largest_of_sizes, 1, all)]
}

/// Rounds an operand into scratch; `cell` f32 [1, 1] holds its own largest element.
fn operand(
    operand: &NarrowOperand<'_>,
    [x, out, cell]: [&Tensor; 3],
    along_columns: bool,
    scratch: Scratch,
) -> Vec<Launch> {
    let mut launches = Vec::new();
    let mut most = None;
    if operand.how.block(along_columns).is_none() {
        let mut seen = |into: &Tensor| launches.extend(largest(x, into, scratch));
        most = match &operand.delayed {
            Some(delayed) => {
                delayed.now.iter().for_each(|now| seen(now));
                Some(delayed.before.clone())
            }
            None => {
                launches.push(super::zero(cell));
                launches.extend(largest(x, cell, scratch));
                Some(cell.clone())
            }
        };
    }
    launches.push(narrow(x, operand.how, along_columns, most.as_ref(), out));
    launches
}

/// An operand as units for 8-bit elements take it.
#[derive(Clone, Debug)]
pub struct Fp8Operand {
    /// Elements [lines, summed], with their summed index along the columns, zero-padded to a multiple of 16.
    pub codes: Tensor,
    /// Scales in cuBLAS' layout: f32 per tensor, per line of 128 or per tile of 128; bytes per line of 32.
    pub scales: Tensor,
}

/// Layout code of scales in `encode`, elements from one line (or block of lines) to the next, and number of scales.
///
/// # Panics
/// If no unit supports such blocks.
#[track_caller]
fn scales_layout(how: Narrow, [lines, summed]: [usize; 2]) -> (usize, usize, usize) {
    let blocks = |of: usize| summed.div_ceil(of);
    match how.blocks {
        Blocks::Tensor => (0, 0, 1),
        Blocks::Line(128) => (1, lines, lines * blocks(128)),
        Blocks::Tile(128) => {
            let pitch = blocks(128).next_multiple_of(4);
            (2, pitch, lines.div_ceil(128) * pitch)
        }
        Blocks::Line(32) => {
            let pitch = blocks(32).next_multiple_of(4);
            (3, pitch, lines.next_multiple_of(128) * pitch)
        }
        other => panic!("narrow: no unit has scales of {other:?}"),
    }
}

/// The operand's codes and scales, as views of scratch at two offsets.
#[track_caller]
fn place(how: Narrow, x: &Tensor, along_columns: bool, ws: &Tensor, [at, cells]: [u64; 2]) -> Fp8Operand {
    let Some(dtype) = how.element.dtype() else { panic!("narrow: {how:?} has no 8-bit type") };
    let [lines, summed] = if along_columns { x.shape() } else { [x.cols(), x.rows()] };
    let (layout, _, count) = scales_layout(how, [lines, summed]);
    let kind = if layout == 3 { DType::U8 } else { DType::F32 };
    let codes = ws.part(at, lines, summed.next_multiple_of(16), dtype);
    Fp8Operand { codes, scales: ws.part(cells + CELL, 1, count, kind) }
}

/// Offset of an operand's scales, after the cell of its own largest element.
const CELL: u64 = 256;

/// Computes an operand's codes and scales; `cell` f32 [1, 1] holds its own largest element.
fn encode(
    operand: &NarrowOperand<'_>,
    [x, cell]: [&Tensor; 2],
    along_columns: bool,
    to: &Fp8Operand,
    scratch: Scratch,
) -> Vec<Launch> {
    let [rows, cols] = x.shape();
    let [lines, summed] = if along_columns { [rows, cols] } else { [cols, rows] };
    let (layout, pitch, _) = scales_layout(operand.how, [lines, summed]);
    let (mut launches, mut now, mut most) = (Vec::new(), 0, None);
    match (&operand.delayed, layout) {
        (Some(delayed), 0) => {
            now = delayed.now.map_or(0, start_mut);
            most = Some(delayed.before);
        }
        (None, 0) => {
            launches.push(super::zero(cell));
            launches.extend(largest(x, cell, scratch));
            most = Some(cell);
        }
        (_, 1) => {}
        // Zeroes the places of blocks that do not exist.
        _ => launches.push(super::zero(&to.scales)),
    }
    let [high, wide] = operand.how.block(along_columns).unwrap_or([PATCH; 2]);
    let (down, across) = (rows.div_ceil(PATCH), cols.div_ceil(PATCH));
    let args = Args::new().mat(x).address(start_mut(&to.codes)).long(to.codes.cols());
    let args = args.address(start_mut(&to.scales)).long(pitch).plain_if(most, DType::F32).address(now);
    let args = args.long(rows).long(cols).int(across).flag(!along_columns).int(layout);
    let power = |of: usize| of.trailing_zeros() as usize;
    assert!(high.is_power_of_two() && wide.is_power_of_two(), "encode: blocks of {high} x {wide}");
    let args = args.int(power(high)).int(power(wide));
    launches.push(Launch::new(entries::encode, down * across, small(args, operand.how)));
    launches
}

/// A product on matrix units: launches that make A [m, k] and B [n, k] in scratch, both operands, and scratch for their
/// product.
///
/// # Panics
/// If no unit supports such operands.
#[track_caller]
pub fn coded(op: &NarrowMatMul<'_>, ws: &Tensor, scratch: Scratch) -> (Vec<Launch>, [Fp8Operand; 2], Tensor) {
    let Some(parts) = gpu::NarrowScratch::of(&op.desc()) else { panic!("narrow matmul: {op:?}") };
    let MatMul { a, a_trans, b, b_trans, .. } = op.product;
    let [at_a, at_b, cells_a, cells_b, own] = parts.offsets();
    let mut launches = Vec::new();
    let operands = [(&op.a, a, !a_trans, [at_a, cells_a]), (&op.b, b, b_trans, [at_b, cells_b])];
    let coded = operands.map(|(operand, x, along_columns, places)| {
        let to = place(operand.how, x, along_columns, ws, places);
        let cell = ws.part(places[1], 1, 1, DType::F32);
        launches.extend(encode(operand, [x, &cell], along_columns, &to, scratch));
        to
    });
    let own = ws.part(own, 1, (ws.bytes() - own) as usize, DType::U8);
    (launches, coded, own)
}

/// A product of narrow operands without matrix units: launches that round both operands into scratch, those two, and
/// scratch for their product.
#[track_caller]
pub fn narrowed(op: &NarrowMatMul<'_>, ws: &Tensor, scratch: Scratch) -> (Vec<Launch>, [Tensor; 3]) {
    let Some(parts) = gpu::NarrowScratch::of(&op.desc()) else { panic!("narrow matmul: {op:?}") };
    let MatMul { a, a_trans, b, b_trans, .. } = op.product;
    let [at_a, at_b, cell_a, cell_b, own] = parts.offsets();
    let in_scratch = |x: &Tensor, at: u64| ws.part(at, x.rows(), x.cols(), x.dtype());
    let (a_out, b_out) = (in_scratch(a, at_a), in_scratch(b, at_b));
    let [a_cell, b_cell] = [cell_a, cell_b].map(|at| ws.part(at, 1, 1, DType::F32));
    let mut launches = operand(&op.a, [a, &a_out, &a_cell], !a_trans, scratch);
    launches.extend(operand(&op.b, [b, &b_out, &b_cell], b_trans, scratch));
    let own = ws.part(own, 1, (ws.bytes() - own) as usize, DType::U8);
    (launches, [a_out, b_out, own])
}

/// Like [`narrowed`], with the product by a kernel.
#[track_caller]
pub fn narrow_matmul(op: &NarrowMatMul<'_>, ws: &Tensor, scratch: Scratch) -> Vec<Launch> {
    let (mut launches, [a, b, _]) = narrowed(op, ws, scratch);
    launches.push(super::matmul(&MatMul { a: &a, b: &b, ..op.product }));
    launches
}
