//! The forward pass: a task is a block of heads of one document, chunk after chunk.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use fathom_tensor::{DocumentRun, SCAN_SPAN, SCAN_STEPS, state_slot};

use super::chunk::{self, PANEL, columns};
use super::decays::Decays;
use super::family::{self, Family, FamilyTask};
use super::layout::ForwardLayout;
use super::{CHUNK, Operands, RunStates, STRIP, Sizes, chunks, step};
use crate::attention::pack::put;
use crate::attention::product::Product;
use crate::attention::simd::Simd;
use crate::attention::unit::Unit;
use crate::attention::workspace::{SyncOperands, aligned, padded};
use crate::isa::Isa;
use crate::mat::MatMut;
use crate::threads::Threads;

/// One forward pass.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// Operands.
    pub of: Operands<'a>,
    /// f32 `[heads, state * width]` for each run, the state before it, replaced by that after it; or empty.
    pub states: &'a [*mut f32],
    /// States before runs, without states in generation.
    pub before: RunStates<'a>,
    /// `[rows, heads * width]`, stored like u.
    pub y: MatMut,
    /// Room for the states at every 2,048 rows of documents, each `[heads, state * width]`.
    pub kept: *mut f32,
}

/// A task, with its thread's memory.
pub struct Task<'a> {
    op: &'a Forward<'a>,
    run: usize,
    block: usize,
    base: *mut u8,
}

/// Bytes of workspace that [`forward`] needs.
pub fn bytes_forward(threads: usize, sizes: &Sizes) -> usize {
    padded(threads * ForwardLayout::new(sizes).bytes)
}

/// Computes y, and the states.
///
/// # Safety
/// The operands cover the runs and outputs overlap nothing; `kept` has room for a state of every 2,048 rows, without
/// states in generation; the workspace has [`bytes_forward`] bytes; the processor has `isa`.
///
/// # Panics
/// If storage types differ, or a document begins elsewhere and there are no states.
pub unsafe fn forward(threads: &Threads, isa: Isa, op: &Forward<'_>, workspace: *mut u8) {
    let runs = op.of.runs;
    assert!(op.of.u.elem == op.y.elem, "ssd: u and y are stored in different types");
    assert!(op.states.is_empty() || op.states.len() == runs.len(), "ssd: states of {} runs", runs.len());
    let begin = !op.states.is_empty() || runs.iter().all(|run| run.offset == 0);
    assert!(begin, "ssd: a document that begins on another rank needs its state: {runs:?}");
    let mut sizes = op.of.sizes;
    // Results do not depend on which heads a task has: smaller tasks, if there are too few for the threads.
    while sizes.task_heads > 1 && sizes.blocks() * runs.len() < threads.count() {
        sizes.task_heads /= 2;
    }
    let op = &Forward { of: Operands { sizes, ..op.of }, ..*op };
    let layout = ForwardLayout::new(&op.of.sizes);
    let order = order(runs);
    let (blocks, base) = (op.of.sizes.blocks(), aligned(workspace));
    let shared = SyncOperands::new((op, order, base));
    threads.run(blocks * runs.len(), &|task, thread| {
        let (op, order, base) = shared.get();
        let run = order[task / blocks];
        let task = Task { op, run, block: task % blocks, base: base.wrapping_add(thread * layout.bytes) };
        // SAFETY: tasks write columns of rows of their own, threads have memory of their own.
        unsafe { family::run(isa, &task) }
    });
}

/// Runs, the longest first, so that no thread begins one when the others end.
pub fn order(runs: &[DocumentRun]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|run| std::cmp::Reverse(runs[*run].rows.len()));
    order
}

/// Operands that the heads of a task share.
struct Pass<'a> {
    of: &'a Operands<'a>,
    layout: ForwardLayout,
    base: *mut u8,
}

impl Pass<'_> {
    #[inline(always)]
    fn at(&self, offset: usize) -> *mut f32 {
        self.base.wrapping_add(offset).cast()
    }

    /// The padded state of a head, by its number in the block.
    #[inline(always)]
    fn state(&self, number: usize) -> *mut f32 {
        self.at(self.layout.states).wrapping_add(number * self.of.sizes.square())
    }
}

/// Copies a head's state between its padded form and rows without gaps.
#[inline(always)]
pub unsafe fn copy_state(sizes: &Sizes, padded: *mut f32, plain: *mut f32, out: bool) {
    let (wide, width) = (sizes.wide(), sizes.width);
    for n in 0..sizes.state {
        let (row, to) = (padded.add(n * wide), plain.add(n * width));
        if out {
            std::ptr::copy_nonoverlapping(row, to, width);
        } else {
            std::ptr::copy_nonoverlapping(to, row, width);
            std::ptr::write_bytes(row.add(width), 0, wide - width);
        }
    }
    if !out {
        std::ptr::write_bytes(padded.add(sizes.state * wide), 0, (sizes.tall() - sizes.state) * wide);
    }
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
/// See [`forward`].
#[inline(always)]
unsafe fn task<F: Family>(task: &Task<'_>) {
    let (op, run) = (task.op, &task.op.of.runs[task.run]);
    let (sizes, states) = (&op.of.sizes, op.states.get(task.run));
    let (group, heads) = sizes.block(task.block);
    let size = sizes.state * sizes.width;
    let pass = Pass { of: &op.of, layout: ForwardLayout::new(sizes), base: task.base };
    if let Some(states) = states.filter(|_| run.rows.len() <= SCAN_STEPS) {
        for row in run.rows.clone() {
            let memory = (*states, pass.at(pass.layout.x));
            step::row::<F>(&op.of, (row, group, heads.clone()), memory, &op.y);
        }
        return;
    }
    let before = states.copied().or(op.before.of(task.run));
    if let Some(before) = before {
        for (number, head) in heads.clone().enumerate() {
            copy_state(sizes, pass.state(number), before.add(head * size), false);
        }
    }
    for chunk in chunks(run) {
        let (from, last) = (chunk.start - run.rows.start, chunk.end == run.rows.end);
        if from > 0 && from % SCAN_SPAN == 0 && states.is_none() {
            let slot = op.kept.add(state_slot(chunk.start) * sizes.heads * size);
            for (number, head) in heads.clone().enumerate() {
                copy_state(sizes, pass.state(number), slot.add(head * size), true);
            }
        }
        scores::<F>(&pass, &chunk, group);
        for (number, head) in heads.clone().enumerate() {
            let known = from > 0 || before.is_some();
            self::head::<F>(
                &pass,
                &chunk,
                head,
                (pass.state(number), known, last && states.is_none()),
                &op.y,
            );
        }
    }
    if let Some(states) = states {
        for (number, head) in heads.enumerate() {
            copy_state(sizes, pass.state(number), states.add(head * size), true);
        }
    }
}

/// Prepares B and C of a chunk, and the products of their rows on and below the diagonal.
#[inline(always)]
unsafe fn scores<F: Family>(pass: &Pass<'_>, chunk: &Range<usize>, group: usize) {
    let (sizes, layout) = (&pass.of.sizes, &pass.layout.group);
    chunk::group::<F>(pass.of, chunk, group, (layout, pass.base));
    let tall = sizes.tall();
    for strip in 0..chunk::padded(chunk) / STRIP {
        F::U::product(&Product {
            a: pass.at(layout.c_rows).add(strip * STRIP * tall).cast(),
            lda: tall,
            b: pass.at(layout.b_across).cast(),
            ldb: tall * STRIP,
            depth: tall,
            c: pass.at(layout.scores).add(strip * STRIP * CHUNK),
            ldc: CHUNK,
            rows: STRIP,
            panels: strip + 1,
            add: false,
        });
    }
}

/// One head of a chunk: its rows of y, and its state, which is zero unless known, and not needed any more after the
/// last chunk.
#[inline(always)]
unsafe fn head<F: Family>(
    pass: &Pass<'_>,
    chunk: &Range<usize>,
    head: usize,
    (state, known, last): (*mut f32, bool, bool),
    out: &MatMut,
) {
    let (of, layout, sizes) = (pass.of, &pass.layout, &pass.of.sizes);
    let (count, wide, width) = (chunk::padded(chunk), sizes.wide(), sizes.width);
    let mut decays = Decays::ZERO;
    decays.read::<F>(&of.steps, chunk.clone(), head);
    let (x, y, steps) = (pass.at(layout.x), pass.at(layout.y), pass.at(layout.steps));
    chunk::rows::<F>(&of.u, chunk, head * width..(head + 1) * width, wide, x);
    chunk::along_times::<F>(x, count, wide, &decays.delta, steps);
    if known {
        from_state::<F>(pass, count, state, &decays);
    }
    for strip in 0..count / STRIP {
        let weights = pass.at(layout.weights);
        for at in 0..STRIP {
            let row = strip * STRIP + at;
            let scores = pass.at(layout.group.scores).add(row * CHUNK);
            for earlier in 0..strip + 1 {
                let score = F::S::load(scores.add(earlier * STRIP));
                let weight = F::S::mul(score, decays.since::<F>(row, earlier));
                F::S::store(weights.add(at * CHUNK + earlier * STRIP), weight);
            }
        }
        F::U::product(&Product {
            a: weights.cast(),
            lda: CHUNK,
            b: steps.cast(),
            ldb: PANEL,
            depth: (strip + 1) * STRIP,
            c: y.add(strip * STRIP * wide),
            ldc: wide,
            rows: STRIP,
            panels: wide / STRIP,
            add: known,
        });
    }
    let factor = F::S::splat(of.d[head]);
    for (at, row) in chunk.clone().enumerate() {
        let to = out.ptr.add((row * out.stride + head * width) * out.elem.bytes());
        for col in (0..width).step_by(STRIP) {
            let (x, y) = (F::S::load(x.add(at * wide + col)), F::S::load(y.add(at * wide + col)));
            put::<F::S>(to, out.elem, col, width, F::S::fma(factor, x, y));
        }
    }
    if !last {
        let ends = pass.at(layout.last);
        chunk::panels_times::<F>(steps, count, wide, &decays.leave, ends);
        let turned = pass.at(layout.group.b_turned);
        chunk::advance::<F>(sizes, count, &decays, [turned, ends], (state, known));
    }
}

/// Adds the state's part to the rows of y.
#[inline(always)]
unsafe fn from_state<F: Family>(pass: &Pass<'_>, count: usize, state: *const f32, decays: &Decays) {
    let (layout, sizes) = (&pass.layout, &pass.of.sizes);
    let (wide, tall, y) = (sizes.wide(), sizes.tall(), pass.at(layout.y));
    let panels = pass.at(layout.state_panels);
    chunk::along::<F>(state, tall, wide, (tall, panels));
    F::U::product(&Product {
        a: pass.at(layout.group.c_rows).cast(),
        lda: tall,
        b: panels.cast(),
        ldb: tall * STRIP,
        depth: tall,
        c: y,
        ldc: wide,
        rows: count,
        panels: wide / STRIP,
        add: false,
    });
    chunk::rows_times::<F>(y, count, wide, &decays.enter, y);
}

/// The slot that keeps the state before a row of a run, if there is one.
pub fn kept(run: &DocumentRun, row: usize) -> Option<usize> {
    (row > run.rows.start).then(|| state_slot(row))
}

/// Maps from the states before some runs to those after them, for ranks that share documents: `S -> decays S + ends`.
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
pub struct EndsTask<'a> {
    op: &'a Ends<'a>,
    run: usize,
    block: usize,
    base: *mut u8,
}

/// Computes the maps.
///
/// # Safety
/// The operands cover the runs and outputs overlap nothing; the workspace has [`bytes_forward`] bytes; the
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
        let task = EndsTask { op, run, block: task % blocks, base };
        // SAFETY: tasks write heads of places of their own, threads have memory of their own.
        unsafe { family::run(isa, &task) }
    });
}

impl FamilyTask for EndsTask<'_> {
    #[inline(always)]
    unsafe fn run<F: Family>(&self) {
        // SAFETY: passed on.
        unsafe { ends_task::<F>(self) }
    }
}

/// One task.
///
/// # Safety
/// See [`ends`].
#[inline(always)]
unsafe fn ends_task<F: Family>(task: &EndsTask<'_>) {
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
            let whole = carry::<F>(of, (&chunk, head), memory, (state(number), chunk.start > run.rows.start));
            *decay(head) *= whole;
        }
    }
    for (number, head) in heads.enumerate() {
        copy_state(sizes, state(number), end.add(head * sizes.state * sizes.width), true);
    }
}

/// One head of a chunk: its state, which is zero unless known. Returns the product of the rows' decays.
#[inline(always)]
unsafe fn carry<F: Family>(
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
