//! What the rows of a run make of the state before it, for ranks that share documents: `S -> decays S + ends`.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::chunk::{self, columns};
use super::decays::Decays;
use super::family::{Family, by_family};
use super::forward::copy_state;
use super::layout::ForwardLayout;
use super::{Operands, RunStates, chunks};
use crate::attention::workspace::{SyncOperands, aligned};
use crate::isa::Isa;
use crate::threads::Threads;

/// The maps of some runs.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// Operands of the scan.
    pub of: Operands<'a>,
    /// The states after runs that begin with zero; overwritten.
    pub ends: RunStates<'a>,
    /// f32 `[places, heads]`, with the elements from one row to the next: the products of decays; overwritten.
    pub decays: (*mut f32, usize),
}

/// A task, with its thread's memory.
pub struct Task<'a> {
    op: &'a Ends<'a>,
    run: usize,
    block: usize,
    base: *mut u8,
}

/// Computes the maps.
///
/// # Safety
/// The operands cover the runs and outputs overlap nothing; the workspace has [`super::bytes_forward`] bytes; the
/// processor has `isa`.
pub unsafe fn ends(threads: &Threads, isa: Isa, op: &Ends<'_>, workspace: *mut u8) {
    let runs: Vec<usize> = (0..op.of.runs.len()).filter(|run| op.ends.place(*run).is_some()).collect();
    let mut sizes = op.of.sizes;
    while sizes.task_heads > 1 && sizes.blocks() * runs.len() < threads.count() {
        sizes.task_heads /= 2;
    }
    let op = &Ends { of: Operands { sizes, ..op.of }, ..*op };
    let layout = ForwardLayout::new(&sizes);
    let (blocks, base) = (sizes.blocks(), aligned(workspace));
    let shared = SyncOperands::new((op, &runs, base));
    threads.run(blocks * runs.len(), &|task, thread| {
        let (op, runs, base) = *shared.get();
        let (run, base) = (runs[task / blocks], base.wrapping_add(thread * layout.bytes));
        let task = Task { op, run, block: task % blocks, base };
        // SAFETY: tasks write heads of places of their own, threads have memory of their own.
        unsafe { by_family!(isa, ends(&task)) }
    });
}

/// One task.
///
/// # Safety
/// See [`ends`].
#[inline(always)]
pub unsafe fn task<F: Family>(task: &Task<'_>) {
    let (op, of, sizes) = (task.op, &task.op.of, &task.op.of.sizes);
    let (Some(place), Some(end)) = (op.ends.place(task.run), op.ends.of(task.run)) else { return };
    let (group, heads) = sizes.block(task.block);
    let layout = ForwardLayout::new(sizes);
    let at = |offset: usize| -> *mut f32 { task.base.wrapping_add(offset).cast() };
    let state = |number: usize| at(layout.states).wrapping_add(number * sizes.square());
    let decay = |head: usize| op.decays.0.wrapping_add(place * op.decays.1 + head);
    let run = &of.runs[task.run];
    heads.clone().for_each(|head| *decay(head) = 1.0);
    for chunk in chunks(run) {
        let [b, _] = columns(sizes, group);
        let turned = at(layout.group.b_turned);
        chunk::turned_rows::<F>(of, &chunk, b, [at(layout.group.b_across), turned]);
        for (number, head) in heads.clone().enumerate() {
            let memory = [at(layout.x), at(layout.last), turned];
            let whole = rows::<F>(of, (&chunk, head), memory, (state(number), chunk.start > run.rows.start));
            *decay(head) *= whole;
        }
    }
    for (number, head) in heads.enumerate() {
        copy_state(sizes, state(number), end.add(head * sizes.state * sizes.width), true);
    }
}

/// One head of a chunk: its state, which is zero unless known. Returns the product of the rows' decays.
#[inline(always)]
unsafe fn rows<F: Family>(
    of: &Operands<'_>,
    (rows, head): (&Range<usize>, usize),
    [x, last, turned]: [*mut f32; 3],
    (state, known): (*mut f32, bool),
) -> f32 {
    let (sizes, count) = (&of.sizes, chunk::padded(rows));
    let (wide, width) = (sizes.wide(), sizes.width);
    let mut decays = Decays::ZERO;
    decays.read::<F>(&of.steps, rows.clone(), head);
    chunk::rows::<F>(&of.u, rows, head * width..(head + 1) * width, wide, x);
    chunk::along_times::<F>(x, count, wide, &decays.delta, last);
    chunk::panels_times::<F>(last, count, wide, &decays.leave, last);
    chunk::advance::<F>(sizes, count, &decays, [turned, last], (state, known));
    decays.whole
}

/// `state = decays state + added` of `[heads, count]`, with a decay for each head.
///
/// # Safety
/// The pointers have as many elements, and the state overlaps nothing.
pub unsafe fn advance(
    threads: &Threads,
    [heads, count]: [usize; 2],
    state: *mut f32,
    decays: &[f32],
    added: *const f32,
) {
    let operands = SyncOperands::new((state, added));
    threads.run(heads, &|head, _| {
        let (state, added) = *operands.get();
        // SAFETY: heads are disjoint.
        let (state, added) = unsafe {
            (
                std::slice::from_raw_parts_mut(state.add(head * count), count),
                std::slice::from_raw_parts(added.add(head * count), count),
            )
        };
        for (state, added) in state.iter_mut().zip(added) {
            *state = decays[head] * *state + added;
        }
    });
}
