//! The parts of one backward pass: its operands, the spans of documents in waves, and the memory of states.

use std::ops::Range;

use fathom_tensor::{DocumentRun, SCAN_SPAN};

use super::layout::{SPAN, SharedLayout};
use super::{CHUNK, Operands, RunStates, chunks};
use crate::mat::{Mat, MatMut};

/// One backward pass: the gradients that are wanted.
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    /// Operands of the forward pass.
    pub of: Operands<'a>,
    /// The states that the forward pass began with, and the gradients of those after runs.
    pub borders: [RunStates<'a>; 2],
    /// The gradients of the states before runs; then nothing else is computed.
    pub begins: RunStates<'a>,
    /// The states that the forward pass wrote.
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
    pub run: usize,
    pub rows: Range<usize>,
    /// The first slot of its chunks' states in a wave.
    pub slot: usize,
}

/// A wave, with the memory that tasks share.
pub struct Pass<'a> {
    pub op: &'a Backward<'a>,
    pub layout: SharedLayout,
    pub shared: *mut u8,
    /// The first of the wave's rows.
    pub first: usize,
    /// The first block of those that are processed together.
    pub block: usize,
    /// Its spans.
    pub wave: &'a [Span],
}

impl Span {
    /// Its chunks.
    pub fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        chunks(&DocumentRun { rows: self.rows.clone(), document: 0, offset: 0 })
    }

    /// Slots that its states need: one for each border of chunks inside the run. A wave has at most [`SPAN`] of them.
    fn slots(&self, run: &DocumentRun) -> usize {
        self.rows.len().div_ceil(CHUNK) - usize::from(self.rows == run.rows)
    }
}

/// Spans in waves of neighbours, from the last to the first. At most one span of a wave is continued by another.
pub fn waves(runs: &[DocumentRun]) -> Vec<Vec<Span>> {
    let mut waves: Vec<Vec<Span>> = Vec::new();
    for (index, run) in runs.iter().enumerate().rev() {
        let starts: Vec<usize> = run.rows.clone().step_by(SCAN_SPAN).collect();
        for start in starts.into_iter().rev() {
            let rows = start..run.rows.end.min(start + SCAN_SPAN);
            match waves.last_mut() {
                Some(wave) if wave[0].rows.end - rows.start <= SCAN_SPAN => {
                    let slot = wave.last().map_or(0, |last| last.slot + last.slots(&runs[last.run]));
                    wave.push(Span { run: index, rows, slot });
                }
                _ => waves.push(vec![Span { run: index, rows, slot: 0 }]),
            }
        }
    }
    waves
}

impl Pass<'_> {
    /// The state before a chunk, or the gradient of that after one, by the chunk's slot.
    fn slot(&self, offset: usize, (slot, head): (usize, usize)) -> *mut f32 {
        let sizes = &self.op.of.sizes;
        let number = head - sizes.block(self.block).1.start;
        let base: *mut f32 = self.shared.wrapping_add(offset).cast();
        base.wrapping_add((number * SPAN + slot) * sizes.square())
    }

    /// The state before a run, or the gradient of that after it.
    fn border(&self, which: usize, run: usize, head: usize) -> Option<*mut f32> {
        let place = self.op.borders[which].place(run)?;
        Some(self.layout.border(&self.op.of.sizes, self.shared, [which, place, head]))
    }

    /// The state before the chunk of this number; the first of a run has that of the border.
    pub fn state(&self, span: &Span, chunk: usize, head: usize) -> Option<*mut f32> {
        let begins = span.rows.start == self.op.of.runs[span.run].rows.start;
        if begins && chunk == 0 {
            return self.border(0, span.run, head);
        }
        Some(self.slot(self.layout.states, (span.slot + chunk - usize::from(begins), head)))
    }

    /// The gradient of the state after the chunk of this number; the last of a run has that of the border.
    pub fn gradient(&self, span: &Span, (chunk, end): (usize, usize), head: usize) -> Option<*mut f32> {
        if end == self.op.of.runs[span.run].rows.end {
            return self.border(1, span.run, head);
        }
        Some(self.slot(self.layout.gradients, (span.slot + chunk, head)))
    }

    /// The gradient of the state between this wave's rows of a document and the rows before them.
    pub fn carried(&self, head: usize) -> *mut f32 {
        let base: *mut f32 = self.shared.wrapping_add(self.layout.carried).cast();
        base.wrapping_add(head * self.op.of.sizes.square())
    }
}
