//! Scratch of the backward passes of scans, which go through the stream from its end, some chunks at a time.

use super::sizes::GRANULE;
use crate::profile::OpDesc;
use crate::scan::{SCAN_CHUNK, SCAN_SPAN};

/// Bytes that the chunks of a round take, if a span of rows does not take more.
const ROUND_BYTES: usize = 256 << 20;

/// Most chunks of a round: a block finds its own by counting.
const MOST_PLACES: usize = 1024;

/// Parts of the scratch of a backward pass, each with its offset in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanScratch {
    /// Places of chunks in a round, each with [`SCAN_CHUNK`] rows.
    pub places: usize,
    /// States before chunks and gradients of those after them: f32 [places, heads, state].
    pub entering: u64,
    /// See [`ScanScratch::entering`].
    pub leaving: u64,
    /// Gradients of what a row adds to the state, and what DeltaNet's rows correct: f32 [rows of a round, heads, width].
    pub added: u64,
    /// See [`ScanScratch::added`]; no place of its own for Mamba-2.
    pub rest: u64,
    /// Gradients of a row's q and k by head: f32 [rows of a round, heads, 2, columns].
    pub keys: u64,
    /// The gradient of the state between one round and the next, in turns: f32 [2, heads, state].
    pub carried: u64,
    /// Terms of the gradients of weights: f32 [rows, weights, heads].
    pub terms: u64,
    /// Total size.
    pub bytes: u64,
}

impl ScanScratch {
    /// Scratch of a call; `None` if it is no scan's backward pass.
    pub fn of(op: &OpDesc) -> Option<ScanScratch> {
        let (rows, heads, [n, p], corrects) = match *op {
            OpDesc::Ssd { rows, heads, width, state, backward: true, .. } => {
                (rows, heads, [state, width], false)
            }
            OpDesc::Delta { rows, heads, key, value, backward: true, .. } => {
                (rows, heads, [key, value], true)
            }
            _ => return None,
        };
        let (state, of_rows) = (heads * n * p, heads * (2 * n + p * if corrects { 2 } else { 1 }));
        let place = 4 * (2 * state + SCAN_CHUNK * of_rows);
        // A row may be a document of its own.
        let places = (ROUND_BYTES / place).clamp(SCAN_SPAN / SCAN_CHUNK, MOST_PLACES).min(rows + 1);
        let in_round = places * SCAN_CHUNK;
        let mut bytes = 0;
        let mut part = |count: usize| {
            let start = bytes;
            bytes += (4 * count as u64).next_multiple_of(GRANULE);
            start
        };
        Some(ScanScratch {
            places,
            entering: part(places * state),
            leaving: part(places * state),
            added: part(in_round * heads * p),
            rest: part(if corrects { in_round * heads * p } else { 0 }),
            keys: part(in_round * heads * 2 * n),
            carried: part(2 * state),
            terms: part(rows * heads * if corrects { 2 } else { 3 }),
            bytes,
        })
    }
}
