//! The backward pass, from the last rows to the first, in waves of at most 2,048 rows. A task is a block of heads of one
//! unit: the rows of a document between two states that were kept, from which those between its chunks are rebuilt.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use fathom_tensor::{DocumentRun, SCAN_SPAN};

use super::chunk::{self, columns};
use super::decays::Decays;
use super::family::{Family, by_family};
use super::layout::{BackwardLayout, SharedLayout};
use super::reverse::Reverse;
use super::{Operands, Sizes, chunks, forward};
use crate::attention::pack::{put, row_f32};
use crate::attention::simd::portable::Portable;
use crate::attention::simd::{LANES, Simd};
use crate::attention::workspace::{SyncOperands, aligned};
use crate::elementwise::{self, Place};
use crate::isa::Isa;
use crate::mat::{Elem, Mat, MatMut};
use crate::threads::Threads;

/// One backward pass: the gradients that are wanted.
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    /// What was read.
    pub of: Operands<'a>,
    /// As the forward pass wrote it.
    pub kept: *const f32,
    /// `[rows, heads * width]`, stored like u.
    pub dy: Mat,
    /// Like u, overwritten.
    pub du: Option<MatMut>,
    /// Like dt, overwritten.
    pub ddt: Option<MatMut>,
    /// f32 `[1, heads]`, of a_log, dt_bias and d; added to.
    pub dweights: [Option<MatMut>; 3],
}

/// Rows of a run between two kept states.
#[derive(Clone, Debug)]
pub struct Span {
    run: usize,
    rows: Range<usize>,
}

/// A task, with its memory.
pub struct Unit<'a> {
    pub op: &'a Backward<'a>,
    pub block: usize,
    pub span: &'a Span,
    /// The first of the wave's rows.
    pub first: usize,
    /// Memory of all threads, and this one's.
    pub shared: *mut u8,
    pub base: *mut u8,
    pub layout: SharedLayout,
}

/// Bytes of workspace that [`backward`] needs.
pub fn bytes_backward(threads: usize, sizes: &Sizes, rows: usize) -> usize {
    SharedLayout::new(sizes, rows, threads).bytes
}

/// Units in waves of neighbours, from the last to the first. At most one unit of a wave is continued by another.
fn waves(runs: &[DocumentRun]) -> Vec<Vec<Span>> {
    let mut waves: Vec<Vec<Span>> = Vec::new();
    for (index, run) in runs.iter().enumerate().rev() {
        let starts: Vec<usize> = run.rows.clone().step_by(SCAN_SPAN).collect();
        for start in starts.into_iter().rev() {
            let span = Span { run: index, rows: start..run.rows.end.min(start + SCAN_SPAN) };
            match waves.last_mut() {
                Some(wave) if wave[0].rows.end - span.rows.start <= SCAN_SPAN => wave.push(span),
                _ => waves.push(vec![span]),
            }
        }
    }
    waves
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
    assert!(stored && op.ddt.is_none_or(|ddt| ddt.elem == of.dt.elem), "ssd_backward: storage types differ");
    assert!(of.runs.iter().all(|run| run.offset == 0), "ssd_backward: a document begins on another rank");
    let layout = SharedLayout::new(sizes, of.rows(), threads.count());
    let (blocks, shared, own) = (sizes.blocks(), aligned(workspace), BackwardLayout::new(sizes).bytes);
    for wave in waves(of.runs) {
        let first = wave.last().map_or(0, |span| span.rows.start);
        let operands = SyncOperands::new((op, &wave, shared));
        threads.run(blocks * wave.len(), &|task, thread| {
            let (op, wave, shared) = *operands.get();
            let base = shared.wrapping_add(layout.threads + thread * own);
            let span = &wave[task / blocks];
            let unit = Unit { op, block: task % blocks, span, first, shared, base, layout };
            // SAFETY: tasks write columns of rows of their own, threads have memory of their own.
            unsafe { by_family!(isa, backward(&unit)) }
        });
        if sizes.blocks_of_group() > 1 && op.du.is_some() {
            let rows = first..wave[0].rows.end;
            let parts = rows.len().div_ceil(PART);
            threads.run(parts, &|part, _| {
                let (op, _, shared) = *operands.get();
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

/// One task.
///
/// # Safety
/// See [`backward`].
#[inline(always)]
pub unsafe fn unit<F: Family>(unit: &Unit<'_>) {
    let (op, span) = (unit.op, unit.span);
    let (of, sizes, run) = (&op.of, &op.of.sizes, &op.of.runs[span.run]);
    let (group, heads) = sizes.block(unit.block);
    let reverse = Reverse { unit, layout: BackwardLayout::new(sizes), group };
    let within = DocumentRun { rows: span.rows.clone(), document: 0, offset: 0 };
    let all: Vec<Range<usize>> = chunks(&within).collect();
    let (begins, ends) = (span.rows.start == run.rows.start, span.rows.end == run.rows.end);
    let square = sizes.square();
    for (number, head) in heads.clone().enumerate().filter(|_| !ends) {
        std::ptr::copy_nonoverlapping(reverse.carried(head), reverse.gradient(number), square);
    }
    if let Some(slot) = forward::kept(run, span.rows.start) {
        let size = sizes.state * sizes.width;
        for (number, head) in heads.clone().enumerate() {
            let from = op.kept.add((slot * sizes.heads + head) * size).cast_mut();
            forward::copy_state(sizes, reverse.state(0, number), from, false);
        }
    }
    for (index, chunk) in all.iter().enumerate().take(all.len() - 1) {
        let at = &reverse.layout.group;
        let turned = [reverse.at(at.b_across), reverse.at(at.b_turned)];
        chunk::turned_rows::<F>(of, chunk, columns(sizes, group)[0].clone(), turned);
        for (number, head) in heads.clone().enumerate() {
            rebuild::<F>(&reverse, chunk, head, (index, number, begins && index == 0));
        }
    }
    for (index, chunk) in all.iter().enumerate().rev() {
        reverse.begin::<F>(chunk);
        for (number, head) in heads.clone().enumerate() {
            let known = [!(begins && index == 0), chunk.end < run.rows.end];
            reverse.head::<F>(chunk, (head, number), index, known);
        }
        reverse.end::<F>(chunk);
    }
    for (number, head) in heads.enumerate().filter(|_| !begins) {
        std::ptr::copy_nonoverlapping(reverse.gradient(number), reverse.carried(head), square);
    }
}

/// The state after a chunk, from that before it, as the forward pass computed it.
#[inline(always)]
unsafe fn rebuild<F: Family>(
    reverse: &Reverse<'_>,
    chunk: &Range<usize>,
    head: usize,
    (index, number, begins): (usize, usize, bool),
) {
    let (of, layout) = (&reverse.unit.op.of, &reverse.layout);
    let (sizes, count) = (&of.sizes, chunk::padded(chunk));
    let (wide, width) = (sizes.wide(), sizes.width);
    let mut decays = Decays::ZERO;
    decays.read::<F>(of, chunk.clone(), head);
    let (x, last) = (reverse.at(layout.x), reverse.at(layout.last));
    chunk::rows::<F>(&of.u, chunk, head * width..(head + 1) * width, wide, x);
    chunk::along_times::<F>(x, count, wide, &decays.delta, last);
    chunk::panels_times::<F>(last, count, wide, &decays.leave, last);
    let (before, after) = (reverse.state(index, number), reverse.state(index + 1, number));
    if !begins {
        std::ptr::copy_nonoverlapping(before, after, sizes.square());
    }
    let turned = reverse.at(layout.group.b_turned);
    chunk::advance::<F>(sizes, count, &decays, [turned, last], (after, !begins));
}
