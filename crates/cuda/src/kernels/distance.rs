//! Distances of rows from target rows.

use fathom_tensor::{DType, Distance, RowDistance};

use super::launch::{Args, Launch, expect};
use super::table::distance as entries;

/// Distances and their gradient.
#[track_caller]
pub fn row_distance(op: &RowDistance<'_>) -> Launch {
    let [rows, cols] = op.x.shape();
    expect("row_distance", "target", op.target, [rows, cols]);
    expect("row_distance", "dx", op.dx, [rows, cols]);
    for (name, x) in [("labels", op.labels), ("weights", op.weights), ("loss", op.loss)] {
        expect("row_distance", name, x, [1, rows]);
    }
    let args =
        Args::new().mat(op.x).mat(op.target).plain(op.labels, DType::I32).plain(op.weights, DType::F32);
    let args = args.plain_out(op.loss, DType::F32).out(op.dx).long(cols).float(op.factor);
    Launch::new(entries::row_distance, rows, args.flag(op.distance == Distance::Cosine))
}
