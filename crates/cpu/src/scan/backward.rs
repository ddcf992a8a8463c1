//! The backward pass, from the last rows to the first, in waves of at most 2,048 rows: spans of documents, from one kept
//! state to the next. First a task is a head of a span: it rebuilds the states between chunks, forwards, and folds the
//! gradients of these, backwards. Then a task is a block of heads of one chunk, which has all it needs.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use fathom_tensor::SCAN_SPAN;

use super::chunk::{self, columns};
use super::decays::Decays;
use super::family::{self, Family, FamilyTask};
use super::layout::{BackwardLayout, SharedLayout};
use super::pass::{Backward, Pass, Span, waves};
use super::reverse::Reverse;
use super::{CHUNK, Sizes, forward};
use crate::attention::pack::{put, row_f32};
use crate::attention::simd::portable::Portable;
use crate::attention::simd::{LANES, Simd};
use crate::attention::workspace::{SyncOperands, aligned};
use crate::elementwise::{self, Place};
use crate::isa::Isa;
use crate::mat::{Elem, Mat};
use crate::threads::Threads;

/// A block of heads of a chunk, or a head of a span, with its thread's memory.
struct Task<'a> {
    pass: &'a Pass<'a>,
    span: &'a Span,
    rows: Range<usize>,
    block: usize,
    base: *mut u8,
}

/// A task whose block is a head, over a whole span.
struct Sweep<'a>(Task<'a>);

impl FamilyTask for Sweep<'_> {
    #[inline(always)]
    unsafe fn run<F: Family>(&self) {
        // SAFETY: passed on.
        unsafe { sweep::<F>(&self.0) }
    }
}

impl FamilyTask for Task<'_> {
    #[inline(always)]
    unsafe fn run<F: Family>(&self) {
        // SAFETY: passed on.
        unsafe { chunk_task::<F>(self) }
    }
}

/// Bytes of workspace that [`backward`] needs.
pub fn bytes_backward(threads: usize, sizes: &Sizes, [rows, places]: [usize; 2]) -> usize {
    SharedLayout::new(sizes, [rows, places], threads).bytes
}

/// Computes the gradients.
///
/// # Safety
/// The operands cover the runs and outputs overlap nothing; the workspace has [`bytes_backward`] bytes; the processor
/// has `isa`.
///
/// # Panics
/// If storage types differ, or a document begins elsewhere.
pub unsafe fn backward(threads: &Threads, isa: Isa, op: &Backward<'_>, workspace: *mut u8) {
    let (of, sizes) = (&op.of, &op.of.sizes);
    let stored = op.dy.elem == of.u.elem && op.du.is_none_or(|du| du.elem == of.u.elem);
    assert!(
        stored && op.ddt.is_none_or(|ddt| ddt.elem == of.steps.raw.elem),
        "ssd_backward: storage types differ"
    );
    assert!(of.runs.iter().all(|run| run.offset == 0), "ssd_backward: a document begins on another rank");
    let places =
        [op.borders[0], op.borders[1], op.begins].into_iter().flat_map(|of| of.places.iter().flatten());
    let places = places.max().map_or(0, |last| last + 1);
    let layout = SharedLayout::new(sizes, [of.rows(), places], threads.count());
    let shared = aligned(workspace);
    let operands = SyncOperands::new((op, shared));
    threads.run(if places > 0 { sizes.heads } else { 0 }, &|head, _| {
        let (op, shared) = *operands.get();
        // SAFETY: heads have places of their own.
        unsafe { read_borders(op, shared, &layout, head) }
    });
    for wave in waves(of.runs) {
        let first = wave.last().map_or(0, |span| span.rows.start);
        for block in (0..sizes.blocks()).step_by(layout.together) {
            let pass = Pass { op, layout, shared, first, block, wave: &wave };
            // SAFETY: passed on.
            unsafe { pass.run(threads, isa) }
        }
        if sizes.blocks_of_group() > 1 && op.du.is_some() {
            let rows = first..wave[0].rows.end;
            let parts = rows.len().div_ceil(PART);
            threads.run(parts, &|part, _| {
                let (op, shared) = *operands.get();
                let from = rows.start + part * PART;
                // SAFETY: parts are rows of their own, whose gradients by blocks were written above.
                unsafe { add_blocks(op, shared, &layout, (first, from..rows.end.min(from + PART))) }
            });
        }
    }
    let place = Place { threads, isa };
    for (index, sums) in op.dweights.iter().enumerate() {
        if let Some(sums) = sums {
            let ptr = shared.wrapping_add(layout.terms + 4 * index * sizes.heads);
            let terms = Mat { ptr, elem: Elem::F32, stride: 3 * sizes.heads };
            // SAFETY: all terms were written above.
            unsafe { elementwise::bias_backward(place, of.rows(), sizes.heads, terms, *sums) }
        }
    }
}

/// Pads a head's states at borders of runs.
unsafe fn read_borders(op: &Backward<'_>, shared: *mut u8, layout: &SharedLayout, head: usize) {
    let sizes = &op.of.sizes;
    for (which, states) in op.borders.iter().enumerate() {
        for run in 0..states.places.len() {
            if let (Some(place), Some(from)) = (states.place(run), states.of(run)) {
                let from = from.add(head * sizes.state * sizes.width);
                forward::copy_state(sizes, layout.border(sizes, shared, [which, place, head]), from, false);
            }
        }
    }
}

/// Rows of a task that adds gradients of blocks.
const PART: usize = 64;

/// Gradients of B and C in some rows: the sums of those by blocks of a group, in order.
unsafe fn add_blocks(
    op: &Backward<'_>,
    shared: *mut u8,
    layout: &SharedLayout,
    (first, rows): (usize, Range<usize>),
) {
    let (sizes, Some(du)) = (&op.of.sizes, op.du) else { return };
    let (n, blocks) = (sizes.state, sizes.blocks_of_group());
    let parts: *const f32 = shared.add(layout.parts).cast();
    for row in rows {
        for group in 0..sizes.groups {
            for (which, cols) in columns(sizes, group).into_iter().enumerate() {
                let to = du.ptr.add((row * du.stride + cols.start) * du.elem.bytes());
                for at in (0..n).step_by(LANES) {
                    let mut sum = Portable::splat(0.0);
                    for block in group * blocks..(group + 1) * blocks {
                        let part = parts.add(((block * SCAN_SPAN + row - first) * 2 + which) * n);
                        sum = Portable::add(sum, row_f32::<Portable>(part.cast(), Elem::F32, at, n));
                    }
                    put::<Portable>(to, du.elem, at, n, sum);
                }
            }
        }
    }
}

impl Pass<'_> {
    /// All tasks of some blocks.
    ///
    /// # Safety
    /// See [`backward`].
    unsafe fn run(&self, threads: &Threads, isa: Isa) {
        let (sizes, own) = (&self.op.of.sizes, BackwardLayout::new(&self.op.of.sizes).bytes);
        let blocks = self.block..sizes.blocks().min(self.block + self.layout.together);
        let heads = sizes.block(blocks.start).1.start..sizes.block(blocks.end - 1).1.end;
        let of_span = |span: usize| self.wave[span].chunks().map(move |rows| (span, rows));
        let all: Vec<(usize, Range<usize>)> = (0..self.wave.len()).flat_map(of_span).collect();
        let operands = SyncOperands::new((self, &all));
        threads.run(heads.len() * self.wave.len(), &|task, thread| {
            let (pass, _) = *operands.get();
            let base = pass.shared.wrapping_add(pass.layout.threads + thread * own);
            let (span, head) = (&pass.wave[task / heads.len()], heads.start + task % heads.len());
            let task = Sweep(Task { pass, span, rows: span.rows.clone(), block: head, base });
            // SAFETY: tasks write states of their own, threads have memory of their own.
            unsafe { family::run(isa, &task) }
        });
        if !self.op.begins.places.is_empty() {
            return;
        }
        threads.run(blocks.len() * all.len(), &|task, thread| {
            let (pass, all) = *operands.get();
            let base = pass.shared.wrapping_add(pass.layout.threads + thread * own);
            let (block, (span, rows)) = (blocks.start + task % blocks.len(), &all[task / blocks.len()]);
            let task = Task { pass, span: &pass.wave[*span], rows: rows.clone(), block, base };
            // SAFETY: tasks write columns of rows of their own, threads have memory of their own.
            unsafe { family::run(isa, &task) }
        });
    }
}

/// One head of a span: the states before its chunks, and the gradients of those after them.
///
/// # Safety
/// See [`backward`].
#[inline(always)]
unsafe fn sweep<F: Family>(task: &Task<'_>) {
    let (pass, span, head) = (task.pass, task.span, task.block);
    let (op, run) = (pass.op, &pass.op.of.runs[span.run]);
    let (sizes, layout) = (&op.of.sizes, BackwardLayout::new(&op.of.sizes));
    let at = |offset: usize| -> *mut f32 { task.base.wrapping_add(offset).cast() };
    let (only, begins_run) = (!op.begins.places.is_empty(), span.rows.start == run.rows.start);
    // Where gradients of states before runs are wanted, nothing else is in their places.
    let wanted =
        op.begins.place(span.run).map(|place| pass.layout.border(sizes, pass.shared, [0, place, head]));
    if only && wanted.is_none() {
        return;
    }
    let group = head / (sizes.heads / sizes.groups);
    let [b, c] = columns(sizes, group);
    let all: Vec<Range<usize>> = span.chunks().collect();
    let (wide, cols) = (sizes.wide(), head * sizes.width..(head + 1) * sizes.width);
    let kept = forward::kept(run, span.rows.start).filter(|_| !only);
    if let (Some(slot), Some(to)) = (kept, pass.state(span, 0, head)) {
        let from = op.kept.add((slot * sizes.heads + head) * sizes.state * sizes.width).cast_mut();
        forward::copy_state(sizes, to, from, false);
    }
    let mut decays = Decays::ZERO;
    for (index, rows) in all.iter().enumerate().take(if only { 0 } else { all.len() - 1 }) {
        let Some(after) = pass.state(span, index + 1, head) else { continue };
        let (count, turned) = (chunk::padded(rows), at(layout.group.b_turned));
        chunk::turned_rows::<F>(&op.of, rows, b.clone(), [at(layout.group.b_across), turned]);
        decays.read::<F>(&op.of.steps, rows.clone(), head);
        let (x, last) = (at(layout.x), at(layout.last));
        chunk::rows::<F>(&op.of.u, rows, cols.clone(), wide, x);
        chunk::along_times::<F>(x, count, wide, &decays.delta, last);
        chunk::panels_times::<F>(last, count, wide, &decays.leave, last);
        let before = pass.state(span, index, head);
        if let Some(before) = before {
            std::ptr::copy_nonoverlapping(before, after, sizes.square());
        }
        chunk::advance::<F>(sizes, count, &decays, [turned, last], (after, before.is_some()));
    }
    let goes_on = span.rows.end < run.rows.end;
    if let Some(to) = pass.gradient(span, (all.len() - 1, span.rows.end), head).filter(|_| goes_on) {
        std::ptr::copy_nonoverlapping(pass.carried(head), to, sizes.square());
    }
    for (index, rows) in all.iter().enumerate().rev() {
        let to = match index.checked_sub(1) {
            Some(before) => pass.gradient(span, (before, rows.start), head),
            None if span.rows.start > run.rows.start => Some(pass.carried(head)),
            None => wanted,
        };
        let Some(to) = to else { continue };
        let (count, turned) = (chunk::padded(rows), at(layout.c_turned));
        chunk::turned_rows::<F>(&op.of, rows, c.clone(), [at(layout.c_across), turned]);
        decays.read::<F>(&op.of.steps, rows.clone(), head);
        let (dy, first) = (at(layout.dy), at(layout.dy_first_along));
        chunk::rows::<F>(&op.dy, rows, cols.clone(), wide, dy);
        chunk::along_times::<F>(dy, count, wide, &decays.enter, first);
        let after = pass.gradient(span, (index, rows.end), head);
        if let Some(after) = after {
            std::ptr::copy_nonoverlapping(after, to, sizes.square());
        }
        chunk::advance::<F>(sizes, count, &decays, [turned, first], (to, after.is_some()));
    }
    if let (Some(begins), Some(padded)) = (op.begins.of(span.run), wanted.filter(|_| begins_run)) {
        forward::copy_state(sizes, padded, begins.add(head * sizes.state * sizes.width), true);
    }
}

/// A block of heads of one chunk.
///
/// # Safety
/// See [`backward`].
#[inline(always)]
unsafe fn chunk_task<F: Family>(task: &Task<'_>) {
    let (pass, span, rows) = (task.pass, task.span, &task.rows);
    let (group, heads) = pass.op.of.sizes.block(task.block);
    let layout = BackwardLayout::new(&pass.op.of.sizes);
    let reverse = Reverse { pass, layout, base: task.base, block: task.block, group };
    let index = (rows.start - span.rows.start) / CHUNK;
    reverse.begin::<F>(rows);
    for head in heads {
        let (state, gradient) = (pass.state(span, index, head), pass.gradient(span, (index, rows.end), head));
        let cast = |pointer: Option<*mut f32>| pointer.map(|pointer| pointer.cast_const());
        reverse.head::<F>(rows, head, [cast(state), cast(gradient)]);
    }
    reverse.end::<F>(rows);
}
