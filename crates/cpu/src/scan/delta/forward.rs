//! The forward pass.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use fathom_tensor::{SCAN_SPAN, SCAN_STEPS, state_slot};

use super::super::chunk::{self, PANEL, multiply};
use super::super::decays::Decays;
use super::super::family::{self, Family, FamilyTask};
use super::super::forward::order;
use super::super::{CHUNK, RunStates, STRIP};
use super::layout::ForwardLayout;
use super::pass::{Beta, Pass};
use super::{DeltaOperands, chunks, step};
use crate::attention::pack::put;
use crate::attention::simd::Simd;
use crate::attention::workspace::{SyncOperands, aligned};
use crate::isa::Isa;
use crate::mat::MatMut;
use crate::threads::Threads;

/// One forward pass.
#[derive(Clone, Copy)]
pub struct DeltaForward<'a> {
    /// Operands.
    pub of: DeltaOperands<'a>,
    /// f32 `[heads, key * value]` for each run, the state before it, replaced by that after it; or empty.
    pub states: &'a [*mut f32],
    /// States before runs, without states in generation.
    pub before: RunStates<'a>,
    /// `[rows, heads * value]`, stored like u.
    pub out: MatMut,
    /// Room for the states at every 2,048 rows of documents, each `[heads, key * value]`.
    pub kept: *mut f32,
}

/// A task, with its thread's memory.
struct Task<'a> {
    op: &'a DeltaForward<'a>,
    run: usize,
    head: usize,
    base: *mut u8,
}

/// Computes the result, and the states.
///
/// # Safety
/// Runs the forward pass; the same as [`super::super::forward::forward`] over this operation's workspace.
///
/// # Panics
/// If storage types differ, or a document begins elsewhere and there are no states.
pub unsafe fn delta_forward(threads: &Threads, isa: Isa, op: &DeltaForward<'_>, workspace: *mut u8) {
    let (runs, sizes) = (op.of.runs, &op.of.sizes);
    assert!(op.of.u.elem == op.out.elem, "delta: u and the result are stored in different types");
    assert!(op.states.is_empty() || op.states.len() == runs.len(), "delta: states of {} runs", runs.len());
    let begin = !op.states.is_empty() || runs.iter().all(|run| run.offset == 0);
    assert!(begin, "delta: a document that begins on another rank needs its state: {runs:?}");
    let bytes = ForwardLayout::new(sizes).bytes;
    let (heads, shared) = (sizes.key_heads, SyncOperands::new((op, order(runs), aligned(workspace))));
    threads.run(heads * runs.len(), &|task, thread| {
        let (op, order, base) = shared.get();
        let (run, head) = (order[task / heads], task % heads);
        let task = Task { op, run, head, base: base.wrapping_add(thread * bytes) };
        // SAFETY: tasks write columns of rows of their own, threads have memory of their own.
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
/// See [`delta_forward`].
#[inline(always)]
unsafe fn task<F: Family>(task: &Task<'_>) {
    let (op, run) = (task.op, &task.op.of.runs[task.run]);
    let (sizes, states) = (&op.of.sizes, op.states.get(task.run));
    let pass = Pass { of: &op.of, layout: ForwardLayout::new(sizes), base: task.base, key_head: task.head };
    let (each, size, square) = (sizes.each(), sizes.state(), sizes.square());
    let heads = task.head * each..(task.head + 1) * each;
    let state = |number: usize| pass.at(pass.layout.states).wrapping_add(number * square);
    if let Some(states) = states.filter(|_| run.rows.len() <= SCAN_STEPS) {
        for row in run.rows.clone() {
            step::row::<F>(&pass, row, heads.clone(), *states, &op.out);
        }
        return;
    }
    let before = states.copied().or(op.before.of(task.run));
    if let Some(before) = before {
        for (number, head) in heads.clone().enumerate() {
            copy_state(sizes, state(number), before.add(head * size), false);
        }
    }
    for rows in chunks(run) {
        let (from, last) = (rows.start - run.rows.start, rows.end == run.rows.end);
        if from > 0 && from % SCAN_SPAN == 0 && states.is_none() {
            let slot = op.kept.add(state_slot(rows.start) * sizes.heads * size);
            for (number, head) in heads.clone().enumerate() {
                copy_state(sizes, state(number), slot.add(head * size), true);
            }
        }
        pass.keys::<F>(&rows, &mut [[0.0; CHUNK]; 2]);
        for (number, head) in heads.clone().enumerate() {
            let known = from > 0 || before.is_some();
            let next = !last || states.is_some();
            self::head::<F>(&pass, &rows, head, (state(number), known, next), &op.out);
        }
    }
    if let Some(states) = states {
        for (number, head) in heads.enumerate() {
            copy_state(sizes, state(number), states.add(head * size), true);
        }
    }
}

/// Copies a head's state between its padded form and rows without gaps.
#[inline(always)]
pub unsafe fn copy_state(sizes: &super::DeltaSizes, padded: *mut f32, plain: *mut f32, out: bool) {
    let sizes =
        super::super::Sizes { heads: 1, width: sizes.value, groups: 1, state: sizes.key, task_heads: 1 };
    super::super::forward::copy_state(&sizes, padded, plain, out);
}

/// One value head of a chunk: its rows of the result, and its state if it is needed any more.
#[inline(always)]
unsafe fn head<F: Family>(
    pass: &Pass<'_>,
    rows: &Range<usize>,
    head: usize,
    (state, known, next): (*mut f32, bool, bool),
    to: &MatMut,
) {
    let (of, layout, sizes) = (pass.of, &pass.layout, &pass.of.sizes);
    let (count, wide, tall, value) = (chunk::padded(rows), sizes.wide(), sizes.tall(), sizes.value);
    let (mut decays, mut beta) = (Decays::ZERO, Beta::ZERO);
    decays.read::<F>(&of.steps, rows.clone(), head);
    beta.read::<F>(of, rows, head);
    let (w, out) = (pass.at(layout.w), pass.at(layout.out));
    pass.solve::<F>(rows, head, (&decays, &beta), known.then_some(state.cast_const()), w);
    if known {
        let a = (pass.at(layout.q).cast_const(), tall);
        let b = (pass.at(layout.state_along).cast_const(), tall * STRIP);
        multiply::<F>(a, b, tall, (out, wide, false), (count, wide / STRIP));
        chunk::rows_times::<F>(out, count, wide, &decays.enter, out);
    }
    let (strip, along) = (pass.at(layout.strip), pass.at(layout.w_along).cast_const());
    for block in 0..count / STRIP {
        for at in 0..STRIP {
            let row = block * STRIP + at;
            let scores = pass.at(layout.qk).add(row * CHUNK);
            for earlier in 0..block + 1 {
                let weight =
                    F::S::mul(F::S::load(scores.add(earlier * STRIP)), decays.since::<F>(row, earlier));
                F::S::store(strip.add(at * CHUNK + earlier * STRIP), weight);
            }
        }
        let c = (out.add(block * STRIP * wide), wide, known);
        let a = (strip.cast_const(), CHUNK);
        multiply::<F>(a, (along, PANEL), (block + 1) * STRIP, c, (STRIP, wide / STRIP));
    }
    for (at, row) in rows.clone().enumerate() {
        let to_row = to.ptr.add((row * to.stride + head * value) * to.elem.bytes());
        for col in (0..value).step_by(STRIP) {
            put::<F::S>(to_row, to.elem, col, value, F::S::load(out.add(at * wide + col)));
        }
    }
    if next {
        advance::<F>(pass, count, &decays, (state, known));
    }
}

/// The state after a chunk: `whole S + K^T (leave w)`, of w in panels.
#[inline(always)]
pub unsafe fn advance<F: Family>(
    pass: &Pass<'_>,
    count: usize,
    decays: &Decays,
    (state, known): (*mut f32, bool),
) {
    let (layout, sizes) = (&pass.layout, &pass.of.sizes);
    let (wide, tall, last) = (sizes.wide(), sizes.tall(), pass.at(layout.last));
    chunk::panels_times::<F>(pass.at(layout.w_along), count, wide, &decays.leave, last);
    if known {
        chunk::times::<F>(state, tall * wide, decays.whole);
    }
    let a = (pass.at(layout.k_turned).cast_const(), CHUNK);
    multiply::<F>(a, (last, PANEL), count, (state, wide, known), (tall, wide / STRIP));
}
