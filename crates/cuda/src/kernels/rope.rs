//! Rotary position embedding.

use fathom_tensor::{DType, Rope, RopeTable};

use super::launch::{Args, Launch, Sheet, expect};
use super::table::rope as entries;

/// Cosines and sines.
#[track_caller]
pub fn rope_table(op: &RopeTable<'_>) -> Launch {
    let (rows, half) = (op.positions.cols(), op.inv_freq.cols());
    expect("rope_table", "out", op.out, [rows, 2 * half]);
    assert!(op.out.dtype() == DType::F32, "rope_table: the table is f32, not {:?}", op.out);
    let args = Args::new().plain(op.positions, DType::I32).plain(op.inv_freq, DType::F32).out(op.out);
    let args = args.long(rows).int(half).float(op.factor);
    Launch::new(entries::rope_table, (rows * half).div_ceil(256), args)
}

/// Rotation.
#[track_caller]
pub fn rope(op: &Rope<'_>) -> Launch {
    expect("rope", "out", op.out, op.x.shape());
    let (rows, rot, dim) = (op.x.rows(), op.table.cols(), op.head_dim);
    let fits =
        op.table.rows() == rows && rot <= dim && rot.is_multiple_of(2) && op.x.cols().is_multiple_of(dim);
    assert!(fits && op.table.dtype() == DType::F32, "rope: {op:?}");
    let heads = op.x.cols() / dim;
    let turned = if op.interleaved { rot } else { rot / 2 };
    let units = turned.div_ceil(8) + (dim - rot).div_ceil(8);
    let sheet = Sheet::new(rows, heads * units * 8);
    let flags = usize::from(op.interleaved) | usize::from(op.inverse) << 1 | usize::from(op.accumulate) << 2;
    let args = Args::new().mat(op.x).out(op.out).mat(op.table).long(rows).int(heads).int(dim).int(rot);
    Launch::new(entries::rope, sheet.blocks(), args.int(units).int(flags).sheet(sheet))
}
