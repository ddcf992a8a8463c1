//! Products of rows with the packed weights of their experts.
//!
//! Slots are sorted by expert. Experts that have [`ROWS`] slots together form a wave: its rows are quantized in place,
//! a contiguous group of integers for each expert, and multiplied by the kernels for other packed weights, with the
//! tasks of all its experts together, so that a token's few experts keep all threads busy. Results go to the columns of
//! their slots. A row's bits depend only on its elements and its expert's weight.
#![allow(unsafe_code)]

use std::ops::Range;

use fathom_tensor::BlockFormat;
use fathom_tensor::ggml::Kind;
use fathom_tensor::grouped::Codes;

use super::format::{self, GROUP, OCTET, by_format};
use super::octets;
use super::rows::{APART, Rows};
use super::{
    ALIGN, COLUMNS, FEW, Lines, ROWS, Run, SERIAL, Slots, TASKS, Tiles, columns, cut, quantise_row,
    tile_bytes,
};
use crate::elementwise::Place;
use crate::grouped::{SortedSlots, clear_empty};
use crate::isa::Isa;
use crate::mat::{Mat, MatMut};

#[cfg(test)]
mod tests;

/// `C = A W_e^T` for each slot, where e is its expert.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// i32 `[tokens, slots]`; negative for slots without an expert.
    pub index: &'a [i32],
    /// Slots per token.
    pub slots: usize,
    /// Number of experts.
    pub experts: usize,
    /// The summed size: whole blocks.
    pub k: usize,
    /// Columns of a slot in the result.
    pub out: usize,
    /// f32 or bf16 `[tokens, slots x k]`.
    pub a: Mat,
    /// True if A is `[tokens, k]`: a token's slots share it.
    pub shared: bool,
    /// The weights' rows, `[experts x out, k]`. If rows are interleaved, runs and experts begin at multiples of eight
    /// rows.
    pub runs: &'a [Run],
    /// f32 or bf16 `[tokens, slots x out]`, overwritten.
    pub c: MatMut,
}

/// Bytes of a wave's quantized rows: an upper bound over all partitions, since fewer rows may take more each, with
/// alignment.
fn wave_bytes(isa: Isa, rows: usize, k: usize) -> usize {
    let each = |rows: usize| Rows::bytes(isa, rows, k).next_multiple_of(ALIGN).div_ceil(rows);
    rows * each(1).max(each(APART + 1)).next_multiple_of(ALIGN)
}

/// Bytes of the order of slots.
fn order_bytes(rows: usize) -> usize {
    (size_of::<i32>() * rows).next_multiple_of(ALIGN)
}

/// Bytes of scratch memory of a product of this many slots.
pub fn experts_workspace_bytes(isa: Isa, threads: usize, rows: usize, k: usize) -> usize {
    if rows == 0 {
        return 0;
    }
    let wave = rows.min(ROWS);
    order_bytes(rows) + wave_bytes(isa, wave, k) + threads * tile_bytes(isa, wave) + ALIGN
}

/// Slots of one expert that are multiplied together.
struct Part {
    /// The expert's rows.
    runs: Vec<Run>,
    /// Range in the order.
    slots: Range<usize>,
    rows: Rows,
    /// Columns per task.
    step: usize,
    /// Index of its first task.
    first_task: usize,
}

/// Computes a product.
///
/// # Safety
/// Operands are as [`Experts`] describes, `scratch` is writable for [`experts_workspace_bytes`] and used by nothing
/// else, and the processor has `place.isa`.
///
/// # Panics
/// If an expert does not exist, or begins inside a group of eight interleaved rows.
pub unsafe fn experts(place: Place<'_>, op: &Experts<'_>, scratch: *mut u8) {
    if op.index.is_empty() {
        return;
    }
    let start = scratch.wrapping_add(scratch.align_offset(ALIGN));
    // SAFETY: the caller's promise.
    let order = unsafe {
        clear_empty(op.index, (op.slots, op.out), &op.c);
        std::slice::from_raw_parts_mut(start.cast::<i32>(), op.index.len())
    };
    let memory = start.wrapping_add(order_bytes(op.index.len()));
    let sorted = SortedSlots::new(op.index, op.experts, order);
    let (mut wave, mut held) = (Vec::new(), 0);
    for expert in 0..op.experts {
        let slots = sorted.range(expert);
        for first in slots.clone().step_by(ROWS) {
            let slots = first..slots.end.min(first + ROWS);
            if held + slots.len() > ROWS {
                // SAFETY: passed on; the memory behind the order is for waves.
                unsafe { compute(place, op, (sorted.order, &wave), memory) };
                (wave, held) = (Vec::new(), 0);
            }
            held += slots.len();
            wave.push((expert, slots));
        }
    }
    // SAFETY: as above.
    unsafe { compute(place, op, (sorted.order, &wave), memory) };
}

/// Experts with some of their slots, consecutive in the order.
type Wave = [(usize, Range<usize>)];

/// # Safety
/// See [`experts`]; `memory` is behind the order.
unsafe fn compute(place: Place<'_>, op: &Experts<'_>, (order, wave): (&[i32], &Wave), memory: *mut u8) {
    let count: usize = wave.iter().map(|(_, slots)| slots.len()).sum();
    if count == 0 {
        return;
    }
    let (mut at, mut tasks, mut parts) = (memory, 0, Vec::with_capacity(wave.len()));
    let even = (wave.len() * op.out).div_ceil(place.threads.count() * TASKS).next_multiple_of(2 * OCTET);
    for (expert, slots) in wave {
        let runs = rows_of(op.runs, op.k, expert * op.out..(expert + 1) * op.out);
        let few = slots.len() <= FEW || place.isa == Isa::Portable;
        let step = if few { even } else { COLUMNS };
        let rows = Rows::at(at, place.isa, slots.len(), op.k);
        at = at.wrapping_add(Rows::bytes(place.isa, slots.len(), op.k).next_multiple_of(ALIGN));
        let own: usize = runs.iter().map(|run| run.rows.div_ceil(step)).sum();
        parts.push(Part { runs, slots: slots.clone(), rows, step, first_task: tasks });
        tasks += own;
    }
    let slots = Slots { order, each: op.slots, cols: op.out };
    let tiles = memory.wrapping_add(wave_bytes(place.isa, op.index.len().min(ROWS), op.k));
    // SAFETY: the caller's promise; rows take at most a wave's bytes, and tiles are behind them.
    unsafe {
        quantise(place, op, (&parts, slots), count);
        multiply(place, op, (&parts, slots), (tasks, tiles));
    }
}

/// The matrix from an element of a row on.
fn row_at(a: &Mat, row: usize, col: usize) -> Mat {
    Mat { ptr: a.ptr.wrapping_add((row * a.stride + col) * a.elem.bytes()), ..*a }
}

/// # Safety
/// See [`compute`].
unsafe fn quantise(place: Place<'_>, op: &Experts<'_>, (parts, slots): (&[Part], Slots<'_>), count: usize) {
    let step = (SERIAL / op.k.max(1)).clamp(1, count.max(1));
    let first = parts.first().map_or(0, |part| part.slots.start);
    let (a, k, shared) = (op.a, op.k, op.shared);
    place.threads.run(count.div_ceil(step), &|task, _| {
        for at in first + task * step..first + count.min((task + 1) * step) {
            let part = &parts[parts.partition_point(|part| part.slots.start <= at) - 1];
            let (token, slot) = slots.at(at);
            let from = row_at(&a, token, if shared { 0 } else { slot * k });
            let to = at - part.slots.start;
            // SAFETY: the caller's promise; each row belongs to one task.
            unsafe { quantise_row(place.isa, (&from, 0), part.rows, to) };
        }
    });
}

/// # Safety
/// See [`compute`]; `tiles` has a tile for each thread.
unsafe fn multiply(
    place: Place<'_>,
    op: &Experts<'_>,
    (parts, slots): (&[Part], Slots<'_>),
    (tasks, tiles): (usize, *mut u8),
) {
    let (c, tiles, bytes) = (op.c, Tiles(tiles), tile_bytes(place.isa, op.index.len().min(ROWS)));
    place.threads.run(tasks, &|task, thread| {
        let part = &parts[parts.partition_point(|part| part.first_task <= task) - 1];
        let task = cut(&part.runs, part.step, task - part.first_task);
        let (count, rows) = (part.slots.len(), part.rows);
        let lines = Lines { c, first: part.slots.start, slots: Some(slots) };
        let tile = tiles.get().wrapping_add(thread * bytes);
        // SAFETY: the caller's promise; each task has its own columns, each thread its own tile.
        unsafe {
            let tile = std::slice::from_raw_parts_mut(
                tile.cast::<f32>(),
                tile_bytes(place.isa, count) / size_of::<f32>(),
            );
            by_format!(task.run.format, F => columns::<F>(place.isa, &task, (count, rows), tile, &lines));
        }
    });
}

/// A range of rows of runs.
///
/// # Panics
/// If it begins or ends inside a group of eight interleaved rows.
fn rows_of(runs: &[Run], k: usize, rows: Range<usize>) -> Vec<Run> {
    let (mut at, mut found) = (0, Vec::new());
    for run in runs {
        let (from, to) = (rows.start.max(at), rows.end.min(at + run.rows));
        if from < to {
            let (first, count) = (from - at, to - from);
            let whole = first.is_multiple_of(OCTET) && count.is_multiple_of(OCTET);
            let apart = !matches!(run.format, BlockFormat::Octets(_));
            assert!(whole || apart, "experts: rows {rows:?} of {runs:?}");
            let bytes = run.bytes.wrapping_add(first * run.format.row_bytes(k));
            found.push(Run { rows: count, bytes, ..*run });
        }
        at += run.rows;
    }
    found
}
