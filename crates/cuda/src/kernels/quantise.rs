//! Narrow storage with scales. A stored number times its scale is the value.

use fathom_tensor::{DType, Tensor};

use super::launch::{Args, Launch, Scratch, Sheet, expect, start_mut};
use super::table::quantise as entries;

/// Neighbours that share a scale in the micro-scaling formats.
pub const MICRO_BLOCK: usize = 32;
/// Neighbours that share one otherwise: of a row, or rows and columns of a tile.
const BLOCK: usize = 128;

/// Element formats of micro-scaling (OCP MX 1.0, table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Micro {
    /// MXFP8.
    E5M2,
    /// MXFP8.
    E4M3,
    /// MXFP6.
    E3M2,
    /// MXFP6.
    E2M3,
    /// MXFP4.
    E2M1,
}

impl Micro {
    /// Bits of mantissa; exponents of the least normal and of the largest number; the largest number.
    fn shape(self) -> (i32, i32, i32, f32) {
        match self {
            Micro::E5M2 => (2, -14, 15, 57_344.0),
            Micro::E4M3 => (3, -6, 8, 448.0),
            Micro::E3M2 => (2, -2, 4, 28.0),
            Micro::E2M3 => (3, 0, 2, 7.5),
            Micro::E2M1 => (1, 0, 2, 6.0),
        }
    }
}

/// The largest number of an 8-bit float.
#[track_caller]
fn largest(dtype: DType) -> f32 {
    match dtype {
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57_344.0,
        other => panic!("quantise: {other:?} has no largest number that a scale is made for"),
    }
}

/// `scale` f32 [1, 1] that makes the largest element of x the largest of `dtype`; 1 for zeros.
#[track_caller]
pub fn scale_of(x: &Tensor, dtype: DType, scale: &Tensor, scratch: Scratch) -> [Launch; 2] {
    let [rows, cols] = x.shape();
    let part = rows.div_ceil(1024).max(1);
    let blocks = rows.div_ceil(part);
    let args = Args::new().mat(x).address(scratch.0).long(rows).long(cols).long(part);
    let all = Args::new().address(scratch.0).plain_out(scale, DType::F32).int(blocks).float(largest(dtype));
    [Launch::new(entries::sizes, blocks, args), Launch::new(entries::scale_of_sizes, 1, all)]
}

/// `out = x / scale`, scale f32 [1, 1]: per tensor, the scale current or of earlier steps.
#[track_caller]
pub fn quantise(x: &Tensor, scale: &Tensor, out: &Tensor) -> Launch {
    expect("quantise", "out", out, x.shape());
    let sheet = Sheet::of(&[x, out]);
    let args = Args::new().mat(x).out(out).plain(scale, DType::F32).long(sheet.rows).long(sheet.cols);
    Launch::new(entries::quantise, sheet.blocks(), args.sheet(sheet))
}

/// Each 128 neighbours of a row with a scale of their own: `scales` f32 [rows, cols / 128].
#[track_caller]
pub fn quantise_rows(x: &Tensor, out: &Tensor, scales: &Tensor) -> Launch {
    let [rows, cols] = x.shape();
    expect("quantise_rows", "out", out, [rows, cols]);
    expect("quantise_rows", "scales", scales, [rows, cols.div_ceil(BLOCK)]);
    // Whole blocks, so that neighbours of a block are neighbours in a warp.
    let sheet = Sheet::new(rows, cols.next_multiple_of(BLOCK));
    let args = Args::new().mat(x).out(out).out(scales).long(rows).long(cols).sheet(sheet);
    Launch::new(entries::quantise_rows, sheet.blocks(), args.float(largest(out.dtype())))
}

/// Tiles of 128 x 128 with a scale each: `scales` f32 [rows / 128, cols / 128].
#[track_caller]
pub fn quantise_tiles(x: &Tensor, out: &Tensor, scales: &Tensor) -> Launch {
    let [rows, cols] = x.shape();
    let [down, across] = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
    expect("quantise_tiles", "out", out, [rows, cols]);
    expect("quantise_tiles", "scales", scales, [down, across]);
    let args = Args::new().mat(x).out(out).out(scales).long(rows).long(cols).int(across);
    Launch::new(entries::quantise_tiles, down * across, args.float(largest(out.dtype())))
}

/// `out = x scales`, a scale for each `high` rows by `wide` columns.
#[track_caller]
pub fn dequantise(x: &Tensor, scales: &Tensor, [high, wide]: [usize; 2], out: &Tensor) -> Launch {
    let [rows, cols] = x.shape();
    expect("dequantise", "out", out, [rows, cols]);
    expect("dequantise", "scales", scales, [rows.div_ceil(high), cols.div_ceil(wide)]);
    assert!(wide.is_multiple_of(8), "dequantise: blocks of {wide} columns");
    let sheet = Sheet::new(rows, cols);
    let args = Args::new().mat(x).mat(scales).out(out).long(rows).long(cols).int(high).int(wide);
    Launch::new(entries::dequantise, sheet.blocks(), args.sheet(sheet))
}

/// Each 32 neighbours of a row with a power of two: with `scales` u8 [rows, cols / 32] `out` holds the elements, without the
/// values that they stand for.
#[track_caller]
fn micro(x: &Tensor, format: Micro, out: &Tensor, scales: Option<&Tensor>) -> Launch {
    let [rows, cols] = x.shape();
    expect("micro scaling", "out", out, [rows, cols]);
    let sheet = Sheet::new(rows, cols.next_multiple_of(MICRO_BLOCK));
    let (address, stride) = scales.map_or((0, 0), |scales| {
        expect("micro scaling", "scales", scales, [rows, cols.div_ceil(MICRO_BLOCK)]);
        assert!(scales.dtype() == DType::U8, "micro scaling: scales are bytes, not {scales:?}");
        (start_mut(scales), scales.stride())
    });
    let (mantissa, low, high, most) = format.shape();
    let args = Args::new().mat(x).out(out).address(address).long(stride).long(rows).long(cols).sheet(sheet);
    let args = args.int_bits(mantissa).int_bits(low).int_bits(high).float(most);
    Launch::new(entries::micro_scale, sheet.blocks(), args)
}

/// What a product of micro-scaled operands would see: `out` any float type, in place if wanted.
#[track_caller]
pub fn micro_round(x: &Tensor, format: Micro, out: &Tensor) -> Launch {
    micro(x, format, out, None)
}

/// MXFP8: elements in the 8-bit type of `out`, scales E8M0 in bytes [rows, cols / 32].
#[track_caller]
pub fn micro_scale(x: &Tensor, out: &Tensor, scales: &Tensor) -> Launch {
    let format = match out.dtype() {
        DType::F8E4M3 => Micro::E4M3,
        DType::F8E5M2 => Micro::E5M2,
        other => panic!("micro scaling: no elements are stored as {other:?}"),
    };
    micro(x, format, out, Some(scales))
}
