//! The backward pass, in waves as that of scans; see [`super::super::backward`].
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use fathom_tensor::DocumentRun;

use super::super::CHUNK;
use super::super::chunk;
use super::super::decays::Decays;
use super::super::family::{self, Family, FamilyTask};
use super::super::forward::kept;
use super::super::pass::waves;
use super::carry::Reverse;
use super::chunks;
use super::forward::{advance, copy_state};
use super::layout::{BackwardLayout, SharedLayout};
use super::pass::{Beta, DeltaBackward, Pass, Unit};
use crate::attention::workspace::{SyncOperands, aligned};
use crate::elementwise::{self, Place};
use crate::isa::Isa;
use crate::mat::{Elem, Mat};
use crate::threads::Threads;

impl FamilyTask for Unit<'_> {
    #[inline(always)]
    unsafe fn run<F: Family>(&self) {
        // SAFETY: passed on.
        unsafe { unit::<F>(self) }
    }
}

/// Computes the gradients.
///
/// # Safety
/// Runs the backward pass; the same as [`super::super::backward::backward`] over this operation's workspace.
///
/// # Panics
/// If storage types differ, or a document begins elsewhere.
pub unsafe fn delta_backward(threads: &Threads, isa: Isa, op: &DeltaBackward<'_>, workspace: *mut u8) {
    let (of, sizes) = (&op.of, &op.of.sizes);
    let stored = op.dout.elem == of.u.elem && op.du.is_none_or(|du| du.elem == of.u.elem);
    assert!(stored, "delta_backward: storage types differ");
    assert!(of.runs.iter().all(|run| run.offset == 0), "delta_backward: a document begins on another rank");
    let rows = of.runs.last().map_or(0, |run| run.rows.end);
    let layout = SharedLayout::new(sizes, rows, threads.count());
    let (heads, shared) = (sizes.key_heads, aligned(workspace));
    let own = BackwardLayout::new(sizes).bytes;
    for wave in waves(of.runs) {
        let operands = SyncOperands::new((op, &wave, shared));
        threads.run(heads * wave.len(), &|task, thread| {
            let (op, wave, shared) = *operands.get();
            let base = shared.wrapping_add(layout.threads + thread * own);
            let (key_head, span) = (task % heads, &wave[task / heads]);
            let unit = Unit { op, key_head, span, shared, base, layout };
            // SAFETY: tasks write columns of rows of their own, threads have memory of their own.
            unsafe { family::run(isa, &unit) }
        });
    }
    for (index, sums) in op.dweights.iter().enumerate() {
        if let Some(sums) = sums {
            let ptr = shared.wrapping_add(layout.terms + 4 * index * sizes.heads);
            let terms = Mat { ptr, elem: Elem::F32, stride: 2 * sizes.heads };
            // SAFETY: all terms were written above.
            unsafe { elementwise::bias_backward(Place { threads, isa }, rows, sizes.heads, terms, *sums) }
        }
    }
}

/// One task.
///
/// # Safety
/// See [`delta_backward`].
#[inline(always)]
unsafe fn unit<F: Family>(unit: &Unit<'_>) {
    let (op, span) = (unit.op, unit.span);
    let (of, sizes, run) = (&op.of, &op.of.sizes, &op.of.runs[span.run]);
    let layout = BackwardLayout::new(sizes);
    let pass = Pass { of, layout: layout.forward, base: unit.base, key_head: unit.key_head };
    let reverse = Reverse { unit, layout, pass };
    let [before, after] = op.borders.map(|states| states.of(span.run));
    let (only, wanted) = (!op.begins.places.is_empty(), op.begins.of(span.run));
    if only && wanted.is_none() {
        return;
    }
    let each = sizes.each();
    let heads = unit.key_head * each..(unit.key_head + 1) * each;
    let within = DocumentRun { rows: span.rows.clone(), document: 0, offset: 0 };
    let all: Vec<Range<usize>> = chunks(&within).collect();
    let (begins, ends) = (span.rows.start == run.rows.start, span.rows.end == run.rows.end);
    for (number, head) in heads.clone().enumerate().filter(|_| !ends) {
        std::ptr::copy_nonoverlapping(reverse.carried(head), reverse.gradient(number), sizes.square());
    }
    let plain = |states: *mut f32, head: usize| states.wrapping_add(head * sizes.state());
    if let Some(after) = after.filter(|_| ends) {
        for (number, head) in heads.clone().enumerate() {
            copy_state(sizes, reverse.gradient(number), plain(after, head), false);
        }
    }
    if let Some(before) = before.filter(|_| begins) {
        for (number, head) in heads.clone().enumerate() {
            copy_state(sizes, reverse.state(0, number), plain(before, head), false);
        }
    }
    if let Some(slot) = kept(run, span.rows.start).filter(|_| !only) {
        for (number, head) in heads.clone().enumerate() {
            let from = op.kept.add((slot * sizes.heads + head) * sizes.state()).cast_mut();
            copy_state(sizes, reverse.state(0, number), from, false);
        }
    }
    let known = |index: usize| !(begins && index == 0) || before.is_some();
    for (index, rows) in all.iter().enumerate().take(if only { 0 } else { all.len() }) {
        reverse.pass.keys::<F>(rows, &mut [[0.0; CHUNK]; 2]);
        for (number, head) in heads.clone().enumerate() {
            let known = known(index);
            rebuild::<F>(&reverse, rows, head, (index, number), (known, index + 1 < all.len()));
        }
    }
    for (index, rows) in all.iter().enumerate().rev() {
        let mut scales = [[0.0; CHUNK]; 2];
        reverse.begin::<F>(rows, &mut scales);
        let followed = rows.end < run.rows.end || after.is_some();
        for (number, head) in heads.clone().enumerate() {
            if only {
                reverse.carry::<F>(rows, (head, number), followed);
            } else {
                reverse.head::<F>(rows, (head, number), index, [known(index), followed]);
            }
        }
        if !only {
            reverse.end::<F>(rows, &scales);
        }
    }
    for (number, head) in heads.enumerate() {
        if !begins {
            std::ptr::copy_nonoverlapping(reverse.gradient(number), reverse.carried(head), sizes.square());
        } else if let Some(wanted) = wanted {
            copy_state(sizes, reverse.gradient(number), plain(wanted, head), true);
        }
    }
}

/// The rows of w of a chunk and the state after it, from that before it, as the forward pass computed them.
#[inline(always)]
unsafe fn rebuild<F: Family>(
    reverse: &Reverse<'_>,
    rows: &Range<usize>,
    head: usize,
    (index, number): (usize, usize),
    (known, next): (bool, bool),
) {
    let (of, pass) = (&reverse.unit.op.of, &reverse.pass);
    let count = chunk::padded(rows);
    let (mut decays, mut beta) = (Decays::ZERO, Beta::ZERO);
    decays.read::<F>(&of.steps, rows.clone(), head);
    beta.read::<F>(of, rows, head);
    let before = reverse.state(index, number);
    let state = known.then_some(before.cast_const());
    pass.solve::<F>(rows, head, (&decays, &beta), state, reverse.w(index, number));
    if next {
        let after = reverse.state(index + 1, number);
        if known {
            std::ptr::copy_nonoverlapping(before, after, of.sizes.square());
        }
        advance::<F>(pass, count, &decays, (after, known));
    }
}
