//! The gradient of the state through a chunk, from the last row to the first; see [`super::reverse`] for the formulas.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::super::chunk::{self, PANEL, multiply};
use super::super::decays::Decays;
use super::super::family::Family;
use super::super::{CHUNK, STRIP};
use super::ROWS;
use super::inverse;
use super::layout::BackwardLayout;
use super::pass::{Beta, Pass, Unit};
use crate::attention::simd::Simd;

/// Gradients of a unit's chunks.
pub struct Reverse<'a> {
    pub unit: &'a Unit<'a>,
    pub layout: BackwardLayout,
    pub pass: Pass<'a>,
}

impl Reverse<'_> {
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut f32 {
        self.unit.base.wrapping_add(offset).cast()
    }

    /// The state before a chunk of the unit.
    #[inline(always)]
    pub fn state(&self, chunk: usize, number: usize) -> *mut f32 {
        let sizes = &self.unit.op.of.sizes;
        self.at(self.layout.states).wrapping_add((chunk * sizes.each() + number) * sizes.square())
    }

    /// The rows of w of a chunk.
    #[inline(always)]
    pub fn w(&self, chunk: usize, number: usize) -> *mut f32 {
        let sizes = &self.unit.op.of.sizes;
        self.at(self.layout.ws).wrapping_add((chunk * sizes.each() + number) * ROWS * sizes.wide())
    }

    /// The gradient of the state after the rows that are processed.
    #[inline(always)]
    pub fn gradient(&self, number: usize) -> *mut f32 {
        self.at(self.layout.gradients).wrapping_add(number * self.unit.op.of.sizes.square())
    }

    /// The same, between a unit and that before it.
    #[inline(always)]
    pub fn carried(&self, head: usize) -> *mut f32 {
        let base: *mut f32 = self.unit.shared.wrapping_add(self.unit.layout.carried).cast();
        base.wrapping_add(head * self.unit.op.of.sizes.square())
    }

    /// Prepares q and k of a chunk, and what is summed over its value heads.
    #[inline(always)]
    pub unsafe fn begin<F: Family>(&self, rows: &Range<usize>, scales: &mut [[f32; CHUNK]; 2]) {
        let (layout, tall, count) = (&self.layout, self.unit.op.of.sizes.tall(), chunk::padded(rows));
        self.pass.keys::<F>(rows, scales);
        let (q, k) = (self.at(layout.forward.q), self.at(layout.forward.k));
        chunk::across::<F>(q, count, tall, self.at(layout.q_across));
        chunk::turned::<F>(self.at(layout.q_across), count, tall, self.at(layout.q_turned));
        chunk::along::<F>(q, count, tall, (CHUNK, self.at(layout.q_along)));
        chunk::along::<F>(k, count, tall, (CHUNK, self.at(layout.k_along)));
        for block in 0..count / STRIP {
            let first = block * STRIP;
            let b = self.at(layout.q_across).add(first * tall).cast_const();
            let c = self.at(layout.kq).add(first * (CHUNK + 1));
            let a = (k.add(first * tall).cast_const(), tall);
            let panels = count / STRIP - block;
            multiply::<F>(a, (b, tall * STRIP), tall, (c, CHUNK, false), (STRIP, panels));
        }
        for to in [layout.of_qk, layout.of_kk] {
            std::ptr::write_bytes(self.at(to), 0, count * CHUNK);
        }
        for to in [layout.dq, layout.dk] {
            std::ptr::write_bytes(self.at(to), 0, count * tall);
        }
    }

    /// One value head: the gradient of the state before the chunk, from that of the state after it if there is one.
    #[inline(always)]
    pub unsafe fn carry<F: Family>(&self, rows: &Range<usize>, (head, number): (usize, usize), known: bool) {
        let (of, count, gradient) = (&self.unit.op.of, chunk::padded(rows), self.gradient(number));
        let (mut decays, mut beta) = (Decays::ZERO, Beta::ZERO);
        decays.read::<F>(&of.steps, rows.clone(), head);
        beta.read::<F>(of, rows, head);
        self.read::<F>(rows, head, &decays, known.then_some(gradient.cast_const()));
        self.solve::<F>(count, (&decays, &beta), known);
        self.fold::<F>(count, (&decays, &beta), (gradient, known));
    }

    /// Reads a value head's rows of the result's gradient; with the gradient of the state after the chunk, its part of that of w to x.
    #[inline(always)]
    pub unsafe fn read<F: Family>(
        &self,
        rows: &Range<usize>,
        head: usize,
        decays: &Decays,
        gradient: Option<*const f32>,
    ) {
        let (op, layout, sizes) = (self.unit.op, &self.layout, &self.unit.op.of.sizes);
        let (count, wide, tall, value) = (chunk::padded(rows), sizes.wide(), sizes.tall(), sizes.value);
        let (d_out, x) = (self.at(layout.d_out), self.at(layout.x));
        chunk::rows::<F>(&op.dout, rows, head * value..(head + 1) * value, wide, d_out);
        chunk::along::<F>(d_out, count, wide, (CHUNK, self.at(layout.d_out_along)));
        if let Some(gradient) = gradient {
            let along = self.at(layout.forward.state_along);
            chunk::along::<F>(gradient, tall, wide, (tall, along));
            let a = (self.at(layout.forward.k).cast_const(), tall);
            multiply::<F>(a, (along, tall * STRIP), tall, (x, wide, false), (count, wide / STRIP));
            chunk::rows_times::<F>(x, count, wide, &decays.leave, x);
        }
    }

    /// X, from the gradient of w, of which x has a part if `add`.
    #[inline(always)]
    pub unsafe fn solve<F: Family>(&self, count: usize, (decays, beta): (&Decays, &Beta), add: bool) {
        self.of_w::<F>(count, decays, add);
        let (strip, along) = (self.at(self.layout.strip), self.at(self.layout.x_along));
        let x = self.at(self.layout.x);
        inverse::solve_turned::<F>(&self.pass, count, (decays, beta), (strip, along), x);
    }

    /// The gradient of the state before the chunk, in place of that after it if it is known.
    #[inline(always)]
    pub unsafe fn fold<F: Family>(
        &self,
        count: usize,
        (decays, beta): (&Decays, &Beta),
        (gradient, known): (*mut f32, bool),
    ) {
        let (layout, sizes) = (&self.layout, &self.unit.op.of.sizes);
        let (wide, tall) = (sizes.wide(), sizes.tall());
        if known {
            chunk::times::<F>(gradient, tall * wide, decays.whole);
        }
        let along = self.at(layout.scaled);
        chunk::along_times::<F>(self.at(layout.d_out), count, wide, &decays.enter, along);
        let a = (self.at(layout.q_turned).cast_const(), CHUNK);
        multiply::<F>(a, (along, PANEL), count, (gradient, wide, known), (tall, wide / STRIP));
        let mut factors = [0.0; CHUNK];
        for at in 0..count {
            factors[at] = -beta.step[at] * decays.enter[at];
        }
        chunk::along_times::<F>(self.at(layout.x), count, wide, &factors, along);
        let a = (self.at(layout.forward.k_turned).cast_const(), CHUNK);
        multiply::<F>(a, (along, PANEL), count, (gradient, wide, true), (tall, wide / STRIP));
    }

    /// The gradient of w, where its rows were read by later ones: to x, added if that has some.
    #[inline(always)]
    unsafe fn of_w<F: Family>(&self, count: usize, decays: &Decays, add: bool) {
        let (layout, wide) = (&self.layout, self.unit.op.of.sizes.wide());
        let (strip, blocks) = (self.at(layout.strip), count / STRIP);
        for block in 0..blocks {
            let first = block * STRIP;
            for at in 0..STRIP {
                let scores = self.at(layout.kq).add((first + at) * CHUNK);
                for later in block..blocks {
                    let decay = decays.until::<F>(first + at, later);
                    let weight = F::S::mul(F::S::load(scores.add(later * STRIP)), decay);
                    F::S::store(strip.add(at * CHUNK + later * STRIP), weight);
                }
            }
            let a = (strip.add(first).cast_const(), CHUNK);
            let b = (self.at(layout.d_out_along).add(first * STRIP).cast_const(), PANEL);
            let c = (self.at(layout.x).add(first * wide), wide, add);
            multiply::<F>(a, b, count - first, c, (STRIP, wide / STRIP));
        }
    }
}
