//! Sums over rows, over a vector, of squares; and a check that all elements are finite.

use fathom_tensor::{DType, SUM_CHUNK, Tensor};

use super::SCRATCH_BYTES;
use super::launch::{Args, Launch, Scratch, expect};
use super::table::sums;

/// Columns of a chunk that one block sums.
pub(super) const COLUMNS: usize = 128;

/// Splits rows into rounds of as many chunks as fit in scratch, `width` f32 per chunk: first row and number of chunks
/// of each.
pub(super) fn rounds(rows: usize, width: usize) -> impl Iterator<Item = (usize, usize)> {
    let chunks = rows.div_ceil(SUM_CHUNK);
    let most = (SCRATCH_BYTES as usize / 4 / width.max(1)).clamp(1, 65_535);
    assert!(width * 4 <= SCRATCH_BYTES as usize, "{width} columns are more than scratch has room for");
    (0..chunks).step_by(most).map(move |chunk| (chunk * SUM_CHUNK, most.min(chunks - chunk)))
}

/// `to[at .. at + cols] +=` the sums of chunks, which begin at `from` and are `stride` f32 apart.
pub(super) fn add_chunks(to: u64, from: u64, cols: usize, chunks: usize, stride: usize) -> Launch {
    let args = Args::new().address(to).address(from).long(cols).int(chunks).long(stride);
    Launch::new(sums::add_chunks, cols.div_ceil(256), args)
}

/// `dbias += sum over rows of dy`, in ascending chunks of [`SUM_CHUNK`] rows.
#[track_caller]
pub fn bias_backward(dy: &Tensor, dbias: &Tensor, scratch: Scratch) -> Vec<Launch> {
    let [rows, cols] = dy.shape();
    expect("bias_backward", "dbias", dbias, [1, cols]);
    assert!(dbias.dtype() == DType::F32, "bias_backward: dbias is {dbias:?}, the gradient is f32");
    let to = super::launch::start_mut(dbias);
    let round = |(first, chunks): (usize, usize)| {
        let args = Args::new().mat(dy).address(scratch.0).long(first).long(rows).long(cols);
        let part = Launch::on(sums::column_chunks, [cols.div_ceil(COLUMNS), chunks], 0, args);
        [part, add_chunks(to, scratch.0, cols, chunks, cols)]
    };
    rounds(rows, cols).flat_map(round).collect()
}

/// `out += sum(x)` in chunks of [`SUM_CHUNK`] columns, ascending.
#[track_caller]
pub fn sum(x: &Tensor, out: &Tensor) -> Launch {
    let args = Args::new().plain(x, DType::F32).plain_out(out, DType::F32).long(x.len());
    Launch::new(sums::sum, usize::from(!x.is_empty()), args)
}

/// `out += sum(x^2)`, by one block.
#[track_caller]
pub fn sum_squares(x: &Tensor, out: &Tensor) -> Launch {
    expect("sum_squares", "out", out, [1, 1]);
    squares(x, x.len().max(1), out)
}

/// `out[i] += sum(x^2)` of at most `slot` elements starting at `i slot`, one block each.
#[track_caller]
pub fn sum_squares_slots(x: &Tensor, slot: usize, out: &Tensor) -> Launch {
    expect("sum_squares_slots", "out", out, [1, x.len().div_ceil(slot)]);
    squares(x, slot, out)
}

#[track_caller]
fn squares(x: &Tensor, slot: usize, out: &Tensor) -> Launch {
    let args = Args::new().plain(x, DType::F32).plain_out(out, DType::F32).long(x.len()).long(slot);
    Launch::new(sums::squares, x.len().div_ceil(slot), args)
}
