//! Lookup of rows in a packed table.
#![allow(unsafe_code)]

use fathom_tensor::BlockFormat;
use fathom_tensor::ggml::dequantise;
use fathom_tensor::ggml::octets::{OCTET, dequantise_row};
use half::bf16;

use super::Run;
use crate::elementwise::Place;
use crate::mat::{Elem, MatMut};

/// Elements of the largest block.
const MOST: usize = 256;

/// `out[t] (+)= scale * table[ids[t]]`, for a table of runs of packed rows.
#[derive(Clone, Copy, Debug)]
pub struct Embed<'a> {
    /// Index of the table row for each row of `out`.
    pub ids: &'a [i32],
    /// Columns: whole blocks.
    pub k: usize,
    /// The table.
    pub runs: &'a [Run],
    /// Multiplies each row.
    pub scale: f32,
    /// f32 or bf16 `[ids, k]`.
    pub out: MatMut,
    /// Adds to `out`.
    pub accumulate: bool,
    /// The id of the table's first row; ids without a row give zeros. `None`: ids count from 0, and all must have rows.
    pub first: Option<usize>,
}

/// Computes `op.out`.
///
/// # Safety
/// The table has the bytes of its runs, `out` its rows.
///
/// # Panics
/// If an id is not a row of the table.
pub unsafe fn embed(place: Place<'_>, op: &Embed<'_>) {
    let vocab: usize = op.runs.iter().map(|run| run.rows).sum();
    let first = op.first.unwrap_or(0);
    let row_of = |id: i32| usize::try_from(id).ok()?.checked_sub(first).filter(|row| *row < vocab);
    if let (None, Some(at)) = (op.first, op.ids.iter().position(|id| row_of(*id).is_none())) {
        panic!("embed: id {} at {at} is not below {vocab}", op.ids[at]);
    }
    place.threads.run(op.ids.len(), &|row, _| {
        let found = row_of(op.ids[row]).map(|at| find(op.runs, at));
        let mut block = [0.0; MOST];
        for start in (0..op.k).step_by(MOST) {
            let block = &mut block[..MOST.min(op.k - start)];
            // SAFETY: the caller's promise: the row is one of the run's.
            unsafe {
                match found {
                    Some((run, at)) => {
                        let wide = run.format.row_bytes(op.k);
                        let rows = |first, count| {
                            std::slice::from_raw_parts(run.bytes.add(first * wide), count * wide)
                        };
                        let row = rows(at, 1);
                        match run.format {
                            BlockFormat::Octets(kind) => {
                                let rows = rows(at / OCTET * OCTET, OCTET);
                                dequantise_row(kind, rows, (at % OCTET, start), block);
                            }
                            BlockFormat::Ggml(kind) => {
                                dequantise(kind, &row[kind.bytes(start)..][..kind.bytes(block.len())], block);
                            }
                            BlockFormat::Grouped(of) => of.unpack(row, (op.k, start), block),
                            other => panic!("embed: no rows of {}", other.name()),
                        }
                    }
                    None => block.fill(0.0),
                }
                let to = op.out.ptr.add((row * op.out.stride + start) * op.out.elem.bytes());
                match op.out.elem {
                    Elem::F32 => put(op, block, to.cast::<f32>(), |x| x, |x| x),
                    Elem::Bf16 => put(op, block, to.cast::<bf16>(), bf16::to_f32, bf16::from_f32),
                }
            }
        }
    });
}

/// The run of a row, and the row's index within it.
fn find(runs: &[Run], mut row: usize) -> (&Run, usize) {
    for run in runs {
        if row < run.rows {
            return (run, row);
        }
        row -= run.rows;
    }
    panic!("no row {row} of {runs:?}");
}

/// Writes or adds elements.
///
/// # Safety
/// The block's elements can be read and written at `to`.
unsafe fn put<T: Copy>(
    op: &Embed<'_>,
    block: &[f32],
    to: *mut T,
    wide: impl Fn(T) -> f32,
    narrow: impl Fn(f32) -> T,
) {
    for (at, x) in block.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let held = if op.accumulate { wide(to.add(at).read()) } else { 0.0 };
            to.add(at).write(narrow(op.scale * x + held));
        }
    }
}
