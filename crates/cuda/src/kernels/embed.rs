//! Lookup in a table of rows, and its gradient.

use fathom_tensor::{DType, Embed, Tensor};

use super::launch::{Args, Launch, Sheet, expect};
use super::table::embed as entries;

/// Table lookup. An id without a row gives NaN if `first` is not given.
#[track_caller]
pub fn embed(op: &Embed<'_>) -> Launch {
    let [vocab, cols] = op.table.shape();
    let rows = op.ids.cols();
    expect("embed", "out", op.out, [rows, cols]);
    let sheet = Sheet::new(rows, cols);
    let args =
        Args::new().plain(op.ids, DType::I32).mat(op.table).out(op.out).long(rows).long(cols).long(vocab);
    let args = args.long(op.first.unwrap_or(0)).flag(op.first.is_some()).flag(op.accumulate).float(op.scale);
    Launch::new(entries::embed, sheet.blocks(), args.sheet(sheet))
}

/// Rows within which equal ids are grouped: one bit per row in shared memory.
const WINDOW: usize = 4096;

/// `dtable[ids] += scale x dy`, ascending rows: windows run one after another, with one block per id in each.
#[track_caller]
pub fn embed_backward(
    ids: &Tensor,
    dy: &Tensor,
    scale: f32,
    dtable: &Tensor,
    first: Option<usize>,
) -> Vec<Launch> {
    let (rows, [vocab, cols]) = (ids.cols(), dtable.shape());
    expect("embed_backward", "dy", dy, [rows, cols]);
    assert!(dtable.dtype() == DType::F32, "embed_backward: the table's gradient is f32, not {dtable:?}");
    let window = |start: usize| {
        let count = WINDOW.min(rows - start);
        let args = Args::new().plain(ids, DType::I32).mat(dy).out(dtable).long(start).int(count);
        let args = args.long(cols).long(vocab).long(first.unwrap_or(0)).float(scale);
        Launch::new(entries::embed_backward, count, args)
    };
    (0..rows).step_by(WINDOW).map(window).collect()
}
