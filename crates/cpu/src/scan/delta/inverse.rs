//! Products with the inverse of `T = 1 + tril(beta_i (k_i . k_j) G_ij, -1)`, and with that of its transpose, by strips:
//! what is known of earlier strips by a product, within a strip row by row.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::super::chunk::{self, PANEL, multiply};
use super::super::decays::Decays;
use super::super::family::Family;
use super::super::{CHUNK, STRIP};
use super::pass::{Beta, Pass};
use crate::attention::simd::Simd;

impl Pass<'_> {
    /// Rows of w: `T^-1 beta (v - e^L K S)`, as rows and as panels.
    #[inline(always)]
    pub unsafe fn solve<F: Family>(
        &self,
        rows: &Range<usize>,
        head: usize,
        (decays, beta): (&Decays, &Beta),
        state: Option<*const f32>,
        w: *mut f32,
    ) {
        let (sizes, layout, count) = (&self.of.sizes, &self.layout, chunk::padded(rows));
        let (wide, tall, out) = (sizes.wide(), sizes.tall(), self.at(layout.out));
        chunk::rows::<F>(&self.of.u, rows, sizes.v(head), wide, w);
        if let Some(state) = state {
            let along = self.at(layout.state_along);
            chunk::along::<F>(state, tall, wide, (tall, along));
            let a = (self.at(layout.k).cast_const(), tall);
            let c = (out, wide, false);
            multiply::<F>(a, (along, tall * STRIP), tall, c, (count, wide / STRIP));
        }
        for row in 0..count {
            let (beta, decay) = (F::S::splat(beta.step[row]), F::S::splat(-decays.enter[row]));
            for at in (row * wide..(row + 1) * wide).step_by(STRIP) {
                let mut v = F::S::load(w.add(at));
                if state.is_some() {
                    v = F::S::fma(decay, F::S::load(out.add(at)), v);
                }
                F::S::store(w.add(at), F::S::mul(beta, v));
            }
        }
        self::solve::<F>(self, count, (decays, beta), w);
    }
}

/// `w <- T^-1 w`, rows and panels.
#[inline(always)]
unsafe fn solve<F: Family>(pass: &Pass<'_>, count: usize, (decays, beta): (&Decays, &Beta), w: *mut f32) {
    let (layout, wide) = (&pass.layout, pass.of.sizes.wide());
    let (strip, along) = (pass.at(layout.strip), pass.at(layout.w_along));
    for block in 0..count / STRIP {
        let first = block * STRIP;
        for at in 0..STRIP {
            let row = first + at;
            let factor = F::S::splat(-beta.step[row]);
            let scores = pass.at(layout.kk).add(row * CHUNK);
            for earlier in 0..block + 1 {
                let score = F::S::mul(F::S::load(scores.add(earlier * STRIP)), factor);
                let weight = F::S::mul(score, decays.since::<F>(row, earlier));
                F::S::store(strip.add(at * CHUNK + earlier * STRIP), weight);
            }
        }
        let rows = w.add(first * wide);
        if block > 0 {
            let (a, c) = ((strip.cast_const(), CHUNK), (rows, wide, true));
            multiply::<F>(a, (along, PANEL), first, c, (STRIP, wide / STRIP));
        }
        for at in 1..STRIP {
            for earlier in 0..at {
                let factor = *strip.add(at * CHUNK + first + earlier);
                add_row::<F>(rows.add(at * wide), rows.add(earlier * wide), wide, factor);
            }
        }
        put_strip::<F>(rows, first, wide, along);
    }
}

/// `to += factor from`.
#[inline(always)]
unsafe fn add_row<F: Family>(to: *mut f32, from: *const f32, cols: usize, factor: f32) {
    let factor = F::S::splat(factor);
    for at in (0..cols).step_by(STRIP) {
        F::S::store(to.add(at), F::S::fma(factor, F::S::load(from.add(at)), F::S::load(to.add(at))));
    }
}

/// A strip's rows into their place in panels.
#[inline(always)]
unsafe fn put_strip<F: Family>(rows: *const f32, first: usize, cols: usize, along: *mut f32) {
    chunk::along::<F>(rows, STRIP, cols, (CHUNK, along.add(first * STRIP)));
}

/// `x <- T^-T x`, rows and panels; `strip` has room for one.
#[inline(always)]
pub unsafe fn solve_turned<F: Family>(
    pass: &Pass<'_>,
    count: usize,
    (decays, beta): (&Decays, &Beta),
    (strip, along): (*mut f32, *mut f32),
    x: *mut f32,
) {
    let (layout, wide, blocks) = (&pass.layout, pass.of.sizes.wide(), count / STRIP);
    for block in (0..blocks).rev() {
        let first = block * STRIP;
        for at in 0..STRIP {
            let row = first + at;
            for later in block..blocks {
                let i = later * STRIP;
                // Products of rows of k below the diagonal, read down a column.
                let mut scores = [0.0f32; STRIP];
                for (score, i) in scores.iter_mut().zip(i..) {
                    *score = *pass.at(layout.kk).add(i * CHUNK + row);
                }
                let score = F::S::mul(F::S::load(scores.as_ptr()), F::S::load(beta.step.as_ptr().add(i)));
                let weight = F::S::mul(score, decays.until::<F>(row, later));
                F::S::store(strip.add(at * CHUNK + i), F::S::mul(weight, F::S::splat(-1.0)));
            }
        }
        let rows = x.add(first * wide);
        let next = first + STRIP;
        if next < count {
            let (a, b) =
                ((strip.add(next).cast_const(), CHUNK), (along.add(next * STRIP).cast_const(), PANEL));
            multiply::<F>(a, b, count - next, (rows, wide, true), (STRIP, wide / STRIP));
        }
        for at in (0..STRIP - 1).rev() {
            for later in at + 1..STRIP {
                let factor = *strip.add(at * CHUNK + first + later);
                add_row::<F>(rows.add(at * wide), rows.add(later * wide), wide, factor);
            }
        }
        put_strip::<F>(rows, first, wide, along);
    }
}
