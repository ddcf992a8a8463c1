//! Maps from the states before runs to those after them, for ranks that share documents, and their use.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use super::super::chunk;
use super::super::decays::Decays;
use super::super::family::{self, Family, FamilyTask};
use super::super::{CHUNK, RunStates, STRIP};
use super::forward::advance;
use super::layout::ForwardLayout;
use super::pass::{Beta, Pass};
use super::{DeltaOperands, DeltaSizes, chunks};
use crate::attention::workspace::{SyncOperands, aligned};
use crate::elementwise::level::madd;
use crate::isa::Isa;
use crate::threads::Threads;

/// The maps of some runs: `S -> M S + ends`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaEnds<'a> {
    /// Operands, whose states have `key` further columns.
    pub of: DeltaOperands<'a>,
    /// f32 `[heads, key * value]`: the states after runs that begin with zero; overwritten.
    pub ends: RunStates<'a>,
    /// f32 `[heads, key * key]`, of the same runs: M; overwritten.
    pub matrices: RunStates<'a>,
}

/// A task, with its thread's memory.
struct Task<'a> {
    op: &'a DeltaEnds<'a>,
    run: usize,
    head: usize,
    base: *mut u8,
}

/// Computes the maps.
///
/// # Safety
/// The operands cover the runs and outputs overlap nothing; the workspace has the bytes of the forward pass with these sizes; the
/// processor has `isa`.
pub unsafe fn delta_ends(threads: &Threads, isa: Isa, op: &DeltaEnds<'_>, workspace: *mut u8) {
    let runs: Vec<usize> = (0..op.of.runs.len()).filter(|run| op.ends.place(*run).is_some()).collect();
    let (heads, bytes) = (op.of.sizes.key_heads, ForwardLayout::new(&op.of.sizes).bytes);
    let shared = SyncOperands::new((op, &runs, aligned(workspace)));
    threads.run(heads * runs.len(), &|task, thread| {
        let (op, runs, base) = *shared.get();
        let (run, head) = (runs[task / heads], task % heads);
        let task = Task { op, run, head, base: base.wrapping_add(thread * bytes) };
        // SAFETY: tasks write heads of places of their own, threads have memory of their own.
        unsafe { family::run(isa, &task) }
    });
}

impl FamilyTask for Task<'_> {
    #[inline(always)]
    unsafe fn run<F: Family>(&self) {
        // SAFETY: passed on.
        unsafe { self::task::<F>(self) }
    }
}

/// One task.
///
/// # Safety
/// See [`delta_ends`].
#[inline(always)]
unsafe fn task<F: Family>(task: &Task<'_>) {
    let (of, sizes, run) = (&task.op.of, &task.op.of.sizes, task.run);
    let (Some(end), Some(matrix)) = (task.op.ends.of(run), task.op.matrices.of(run)) else { return };
    let pass = Pass { of, layout: ForwardLayout::new(sizes), base: task.base, key_head: task.head };
    let (each, wide, key) = (sizes.each(), sizes.wide(), sizes.key);
    // The columns of v, and those of M.
    let parts = [(end, sizes.value, 0), (matrix, key, wide - key.next_multiple_of(STRIP))];
    let heads = task.head * each..(task.head + 1) * each;
    let state = |number: usize| pass.at(pass.layout.states).wrapping_add(number * sizes.square());
    for number in 0..each {
        std::ptr::write_bytes(state(number), 0, sizes.square());
        (0..key).for_each(|row| *state(number).add(row * wide + parts[1].2 + row) = 1.0);
    }
    for rows in chunks(&of.runs[run]) {
        pass.keys::<F>(&rows, &mut [[0.0; CHUNK]; 2]);
        for (number, head) in heads.clone().enumerate() {
            let (mut decays, mut beta) = (Decays::ZERO, Beta::ZERO);
            decays.read::<F>(&of.steps, rows.clone(), head);
            beta.read::<F>(of, &rows, head);
            let (state, w) = (state(number), pass.at(pass.layout.w));
            pass.solve::<F>(&rows, head, (&decays, &beta), Some(state.cast_const()), w);
            advance::<F>(&pass, chunk::padded(&rows), &decays, (state, true));
        }
    }
    for (number, head) in heads.enumerate() {
        for (to, cols, first) in parts {
            for row in 0..key {
                let from = state(number).add(row * wide + first);
                std::ptr::copy_nonoverlapping(from, to.add((head * key + row) * cols), cols);
            }
        }
    }
}

/// States after runs from those before them: f32 `[heads, key * value]`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaAdvance<'a> {
    /// Extents.
    pub sizes: DeltaSizes,
    /// `[heads, key * key]`: M of each head.
    pub matrices: &'a [f32],
    /// Whether its transpose is applied.
    pub transposed: bool,
    /// The states.
    pub before: &'a [f32],
    /// The states after a run that begins with zero, which are added.
    pub added: &'a [f32],
    /// The result.
    pub after: *mut f32,
}

/// A head of them.
struct Head<'a> {
    op: &'a DeltaAdvance<'a>,
    head: usize,
}

/// `after = M before + added` of each head.
///
/// # Safety
/// `after` has as many elements as the states, and overlaps nothing; the processor has `isa`.
pub unsafe fn delta_advance(threads: &Threads, isa: Isa, op: &DeltaAdvance<'_>) {
    let shared = SyncOperands::new(op);
    threads.run(op.sizes.heads, &|head, _| {
        // SAFETY: heads are disjoint.
        unsafe { family::run(isa, &Head { op: shared.get(), head }) }
    });
}

impl FamilyTask for Head<'_> {
    #[inline(always)]
    unsafe fn run<F: Family>(&self) {
        let Head { op: DeltaAdvance { sizes, matrices, transposed, before, added, after }, head } = self;
        let (key, value) = (sizes.key, sizes.value);
        let states = head * key * value..(head + 1) * key * value;
        let matrix = &matrices[head * key * key..(head + 1) * key * key];
        // SAFETY: the caller's.
        let after = unsafe { std::slice::from_raw_parts_mut(after.add(states.start), key * value) };
        after.copy_from_slice(&added[states.clone()]);
        for (row, after) in after.chunks_exact_mut(value).enumerate() {
            for (col, before) in before[states.clone()].chunks_exact(value).enumerate() {
                let factor = matrix[if *transposed { col * key + row } else { row * key + col }];
                after.iter_mut().zip(before).for_each(|(to, x)| *to = madd::<F::L>(factor, *x, *to));
            }
        }
    }
}
