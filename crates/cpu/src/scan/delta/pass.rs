//! The parts of a pass over a key head: its products of keys, the step sizes of its value heads, and the task of a backward pass.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::super::chunk::{self, multiply};
use super::super::decays::element;
use super::super::family::Family;
use super::super::pass::Span;
use super::super::{CHUNK, RunStates, STRIP};
use super::layout::{ForwardLayout, SharedLayout};
use super::{DeltaOperands, normalised};
use crate::elementwise::math::sigmoid;
use crate::mat::{Mat, MatMut};

/// One backward pass: the gradients that are wanted.
#[derive(Clone, Copy)]
pub struct DeltaBackward<'a> {
    /// Operands of the forward pass.
    pub of: DeltaOperands<'a>,
    /// The states that the forward pass began with, and the gradients of those after runs.
    pub borders: [RunStates<'a>; 2],
    /// The gradients of the states before runs; then nothing else is computed.
    pub begins: RunStates<'a>,
    /// The states that the forward pass wrote.
    pub kept: *const f32,
    /// `[rows, heads * value]`, stored like u.
    pub dout: Mat,
    /// Like u, overwritten.
    pub du: Option<MatMut>,
    /// Like a, overwritten.
    pub da: Option<MatMut>,
    /// Like b, overwritten.
    pub db: Option<MatMut>,
    /// f32 `[1, heads]`, of a_log and dt_bias; added to.
    pub dweights: [Option<MatMut>; 2],
}

/// A task, with its memory.
pub struct Unit<'a> {
    pub op: &'a DeltaBackward<'a>,
    pub key_head: usize,
    pub span: &'a Span,
    /// Memory of all threads, and this one's.
    pub shared: *mut u8,
    pub base: *mut u8,
    pub layout: SharedLayout,
}

/// Products that the value heads of a key head share.
pub struct Pass<'a> {
    pub of: &'a DeltaOperands<'a>,
    pub layout: ForwardLayout,
    pub base: *mut u8,
    pub key_head: usize,
}

/// Step sizes of a value head's rows, and their derivatives.
pub struct Beta {
    pub step: [f32; CHUNK],
    pub slope: [f32; CHUNK],
}

impl Beta {
    pub const ZERO: Beta = Beta { step: [0.0; CHUNK], slope: [0.0; CHUNK] };

    #[inline(always)]
    pub unsafe fn read<F: Family>(&mut self, of: &DeltaOperands<'_>, rows: &Range<usize>, head: usize) {
        for (at, row) in rows.clone().enumerate() {
            let s = sigmoid::<F::L>(element(&of.b, row, head));
            self.step[at] = of.beta * s;
            self.slope[at] = of.beta * s * (1.0 - s);
        }
        self.step[rows.len()..].fill(0.0);
        self.slope[rows.len()..].fill(0.0);
    }
}

impl Pass<'_> {
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut f32 {
        self.base.wrapping_add(offset).cast()
    }

    /// Prepares q and k of a chunk; returns what they were multiplied by.
    #[inline(always)]
    pub unsafe fn keys<F: Family>(&self, rows: &Range<usize>, scales: &mut [[f32; CHUNK]; 2]) {
        let (sizes, layout) = (&self.of.sizes, &self.layout);
        let (tall, count) = (sizes.tall(), chunk::padded(rows));
        let (q, k) = (self.at(layout.q), self.at(layout.k));
        let [of_q, of_k] = scales;
        let root = 1.0 / (sizes.key as f32).sqrt();
        normalised::<F>(self.of, rows, sizes.q(self.key_head), (root, of_q), q);
        normalised::<F>(self.of, rows, sizes.k(self.key_head), (1.0, of_k), k);
        chunk::across::<F>(k, count, tall, self.at(layout.k_across));
        chunk::turned::<F>(self.at(layout.k_across), count, tall, self.at(layout.k_turned));
        let across = self.at(layout.k_across).cast_const();
        for strip in 0..count / STRIP {
            let at = strip * STRIP;
            for (from, to) in [(k, layout.kk), (q, layout.qk)] {
                let (a, c) = ((from.add(at * tall).cast_const(), tall), self.at(to).add(at * CHUNK));
                multiply::<F>(a, (across, tall * STRIP), tall, (c, CHUNK, false), (STRIP, strip + 1));
            }
        }
    }
}
