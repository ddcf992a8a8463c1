//! Gradients of one chunk. With E that of the state after it and S the state before it:
//! `dW = tril(Q K^T G)^T dO + (e^(L_q - L)) (K E)`, `X = T^-T dW`, `dV = beta X`; the pairs have
//! `A = tril(dO W^T) G` and `M = -beta tril(X W^T, -1) G`, so that `dQ = A K + e^L (dO S^T)` and
//! `dK = A^T Q + (M + M^T) K + (e^(L_q - L)) (W E^T) - beta e^L (X S^T)`.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::super::chunk::{self, PANEL, multiply};
use super::super::decays::Decays;
use super::super::family::Family;
use super::super::{CHUNK, STRIP};
use super::carry::Reverse;
use super::pass::Beta;
use crate::attention::pack::put;
use crate::attention::simd::{LANES, Simd};

/// Terms of a value head's gradients by row.
struct Rows {
    /// Gradients of log decays: from pairs of rows around it, from the row's read of the state, from its write.
    within: [f32; CHUNK],
    entered: [f32; CHUNK],
    left: [f32; CHUNK],
    through: f32,
    /// Gradients of step sizes.
    beta: [f32; CHUNK],
}

impl Reverse<'_> {
    /// One value head: the gradients of its columns of v, a and b, and its share of those of q and k. `known` says
    /// whether there is a state before the chunk, and a gradient of that after it.
    #[inline(always)]
    pub unsafe fn head<F: Family>(
        &self,
        rows: &Range<usize>,
        (head, number): (usize, usize),
        index: usize,
        known: [bool; 2],
    ) {
        let (op, layout, sizes) = (self.unit.op, &self.layout, &self.unit.op.of.sizes);
        let (count, wide) = (chunk::padded(rows), sizes.wide());
        let (mut decays, mut beta) = (Decays::ZERO, Beta::ZERO);
        decays.read::<F>(&op.of.steps, rows.clone(), head);
        beta.read::<F>(&op.of, rows, head);
        let factors = (&decays, &beta);
        let zeros = [0.0; CHUNK];
        let mut terms = Rows { within: zeros, entered: zeros, left: zeros, through: 0.0, beta: zeros };
        let (w, d_out, x) = (self.w(index, number), self.at(layout.d_out), self.at(layout.x));
        let (state, gradient) = (self.state(index, number), self.gradient(number));
        self.read::<F>(rows, head, &decays, known[1].then_some(gradient.cast_const()));
        chunk::across::<F>(d_out, count, wide, self.at(layout.d_out_across));
        if known[1] {
            self.after::<F>(count, &decays, (w.cast_const(), gradient.cast_const()), &mut terms);
        }
        self.solve::<F>(count, factors, known[1]);
        chunk::across::<F>(x, count, wide, self.at(layout.x_across));
        self.pairs::<F>(count, factors, w, &mut terms);
        if known[0] {
            self.before::<F>(count, factors, state, &mut terms);
            if known[1] {
                terms.through = decays.whole * chunk::dot::<F>(state, gradient, sizes.square());
            }
        }
        self.write::<F>(rows, head, factors, &mut terms);
        if known[0] {
            self.fold::<F>(count, factors, (gradient, known[1]));
        }
    }

    /// Adds the part of the state's gradient after the chunk to the gradients of w, k and log decays.
    #[inline(always)]
    unsafe fn after<F: Family>(
        &self,
        count: usize,
        decays: &Decays,
        (w, gradient): (*const f32, *const f32),
        terms: &mut Rows,
    ) {
        let (layout, sizes) = (&self.layout, &self.unit.op.of.sizes);
        let (wide, tall, x) = (sizes.wide(), sizes.tall(), self.at(layout.x));
        for row in 0..count {
            terms.left[row] = chunk::dot::<F>(x.add(row * wide), w.add(row * wide), wide);
        }
        let left = self.at(layout.left);
        chunk::rows_times::<F>(w, count, wide, &decays.leave, left);
        chunk::across::<F>(gradient, tall, wide, self.at(layout.across));
        let b = (self.at(layout.across).cast_const(), wide * STRIP);
        let c = (self.at(layout.dk), tall, true);
        multiply::<F>((left, wide), b, wide, c, (count, tall / STRIP));
    }

    /// Pairs of rows: adds to the sums over value heads, to step sizes, and to log decays.
    #[inline(always)]
    unsafe fn pairs<F: Family>(
        &self,
        count: usize,
        (decays, beta): (&Decays, &Beta),
        w: *const f32,
        terms: &mut Rows,
    ) {
        let (layout, wide) = (&self.layout, self.unit.op.of.sizes.wide());
        let (blocks, mut sums) = (count / STRIP, [0.0f32; CHUNK]);
        let products = [self.at(layout.strip), self.at(layout.forward.strip)];
        for block in 0..blocks {
            let first = block * STRIP;
            for (to, from) in products.into_iter().zip([layout.d_out_across, layout.x_across]) {
                let b = (self.at(from).add(first * wide).cast_const(), wide * STRIP);
                let a = (w.add(first * wide), wide);
                multiply::<F>(a, b, wide, (to.add(first), CHUNK, false), (STRIP, blocks - block));
            }
            for at in 0..STRIP {
                let from = products.map(|strip| strip.wrapping_add(at * CHUNK).cast_const());
                let row = first + at;
                let sums = (&mut sums, &mut terms.beta);
                terms.within[row] = self.row::<F>((row, blocks), (decays, beta), from, sums);
            }
        }
    }

    /// Row j of the pairs. Returns the total over `i >= j` of the sums so far.
    #[inline(always)]
    unsafe fn row<F: Family>(
        &self,
        (row, blocks): (usize, usize),
        (decays, beta): (&Decays, &Beta),
        [of_out, of_x]: [*const f32; 2],
        (sums, of_beta): (&mut [f32; CHUNK], &mut [f32; CHUNK]),
    ) -> f32 {
        let layout = &self.layout;
        let [of_qk, of_kk] = [layout.of_qk, layout.of_kk].map(|to| self.at(to).wrapping_add(row * CHUNK));
        let scores = self.at(layout.kq).add(row * CHUNK);
        let (mut before, zero) = (F::S::splat(0.0), F::S::splat(0.0));
        for block in row / STRIP..blocks {
            let at = block * STRIP;
            let decay = decays.until::<F>(row, block);
            let diagonal = block == row / STRIP;
            let later = if diagonal { (0xffff_u32 << (row - at)) as u16 } else { u16::MAX };
            let strictly = if diagonal { (0x1_fffe_u32 << (row - at)) as u16 } else { u16::MAX };
            let a = F::S::mul(F::S::load(of_out.add(at)), decay);
            F::S::store(of_qk.add(at), F::S::add(F::S::load(of_qk.add(at)), a));
            let t = F::S::mul(F::S::mul(F::S::load(of_x.add(at)), decay), F::S::splat(-1.0));
            let t = F::S::select(strictly, t, zero);
            let m = F::S::mul(t, F::S::load(beta.step.as_ptr().add(at)));
            F::S::store(of_kk.add(at), F::S::add(F::S::load(of_kk.add(at)), m));
            // Products of rows of k below the diagonal, read down a column.
            let mut keys = [0.0f32; STRIP];
            for (key, i) in keys.iter_mut().zip(at..) {
                *key = *self.at(layout.forward.kk).add(i * CHUNK + row);
            }
            let keys = F::S::load(keys.as_ptr());
            let to = of_beta.as_mut_ptr().add(at);
            F::S::store(to, F::S::fma(t, keys, F::S::load(to)));
            let sum = F::S::load(sums.as_ptr().add(at));
            before = F::S::add(before, F::S::select(later, sum, zero));
            let sum = F::S::fma(a, F::S::load(scores.add(at)), sum);
            F::S::store(sums.as_mut_ptr().add(at), F::S::fma(m, keys, sum));
        }
        F::S::sum(before)
    }

    /// Adds the part of the state before the chunk to the gradients of q, k, step sizes and log decays.
    #[inline(always)]
    unsafe fn before<F: Family>(
        &self,
        count: usize,
        (decays, beta): (&Decays, &Beta),
        state: *const f32,
        terms: &mut Rows,
    ) {
        let (layout, sizes) = (&self.layout, &self.unit.op.of.sizes);
        let (wide, tall, v) = (sizes.wide(), sizes.tall(), self.at(layout.wide));
        let across = self.at(layout.across);
        chunk::across::<F>(state, tall, wide, across);
        let (q, k) = (self.at(layout.forward.q), self.at(layout.forward.k));
        for (from, rows, to, sign) in [(layout.d_out, q, layout.dq, 1.0f32), (layout.x, k, layout.dk, -1.0)] {
            let (a, c) = ((self.at(from).cast_const(), wide), (v, tall, false));
            multiply::<F>(a, (across, wide * STRIP), wide, c, (count, tall / STRIP));
            for row in 0..count {
                let mut sum = F::S::splat(0.0);
                let of_x = sign < 0.0;
                let step = if of_x { beta.step[row] } else { 1.0 };
                let factor = F::S::splat(sign * step * decays.enter[row]);
                for at in (row * tall..(row + 1) * tall).step_by(LANES) {
                    let part = F::S::load(v.add(at));
                    sum = F::S::fma(part, F::S::load(rows.add(at)), sum);
                    let to = self.at(to).add(at);
                    F::S::store(to, F::S::fma(factor, part, F::S::load(to)));
                }
                let product = sign * decays.enter[row] * F::S::sum(sum);
                terms.entered[row] += step * product;
                terms.beta[row] += if of_x { product } else { 0.0 };
            }
        }
    }

    /// Writes the gradients of a value head's columns of v, a and b, and the terms of those of weights.
    #[inline(always)]
    unsafe fn write<F: Family>(
        &self,
        rows: &Range<usize>,
        head: usize,
        (decays, beta): (&Decays, &Beta),
        terms: &mut Rows,
    ) {
        let (op, layout, sizes) = (self.unit.op, &self.layout, &self.unit.op.of.sizes);
        let (wide, value, x) = (sizes.wide(), sizes.value, self.at(layout.x));
        let v = self.at(layout.dw);
        chunk::rows::<F>(&op.of.u, rows, sizes.v(head), wide, v);
        let weights: *mut f32 = self.unit.shared.add(self.unit.layout.terms).cast();
        let mut entered = [0.0f64; CHUNK];
        let mut sum = 0.0;
        for at in (0..rows.len()).rev() {
            sum += f64::from(terms.entered[at]);
            entered[at] = sum;
        }
        let mut left = 0.0f64;
        for (at, row) in rows.clone().enumerate() {
            let (x, v) = (x.add(at * wide), v.add(at * wide));
            let step = F::S::splat(beta.step[at]);
            if let Some(du) = &op.du {
                let to = du.ptr.add((row * du.stride + sizes.v(head).start) * du.elem.bytes());
                for col in (0..value).step_by(LANES) {
                    put::<F::S>(to, du.elem, col, value, F::S::mul(step, F::S::load(x.add(col))));
                }
            }
            let of_decay = f64::from(terms.within[at]) + entered[at] + left + f64::from(terms.through);
            left += f64::from(terms.left[at]);
            let of_raw = (of_decay * f64::from(decays.rate) * f64::from(decays.slope[at])) as f32;
            let of_beta = (terms.beta[at] + chunk::dot::<F>(x, v, wide)) * beta.slope[at];
            for (to, value) in [(&op.da, of_raw), (&op.db, of_beta)] {
                if let Some(to) = to {
                    let at = to.ptr.add((row * to.stride + head) * to.elem.bytes());
                    put::<F::S>(at, to.elem, 0, 1, F::S::splat(value));
                }
            }
            let to = weights.add(row * 2 * sizes.heads + head);
            *to = (of_decay * f64::from(decays.rate) * f64::from(decays.delta[at])) as f32;
            *to.add(sizes.heads) = of_raw;
        }
    }

    /// After all value heads: the gradients of q and k.
    #[inline(always)]
    pub unsafe fn end<F: Family>(&self, rows: &Range<usize>, scales: &[[f32; CHUNK]; 2]) {
        let (op, layout, sizes) = (self.unit.op, &self.layout, &self.unit.op.of.sizes);
        let (count, tall) = (chunk::padded(rows), sizes.tall());
        let (dq, dk) = (self.at(layout.dq), self.at(layout.dk));
        let (q_along, k_along) = (self.at(layout.q_along), self.at(layout.k_along));
        // Turned pairs sum over later rows, the others over earlier ones.
        for (of, later, early) in [(layout.of_qk, q_along, dq), (layout.of_kk, k_along, dk)] {
            let (turned, pairs) = (self.at(of), self.at(layout.pairs));
            for block in 0..count / STRIP {
                let first = block * STRIP;
                chunk::turn::<F>(turned, pairs, block);
                let a = (turned.add(first * CHUNK + first).cast_const(), CHUNK);
                let b = (later.add(first * STRIP).cast_const(), PANEL);
                let c = (dk.add(first * tall), tall, true);
                multiply::<F>(a, b, count - first, c, (STRIP, tall / STRIP));
                let a = (pairs.add(first * CHUNK).cast_const(), CHUNK);
                let c = (early.add(first * tall), tall, true);
                multiply::<F>(a, (k_along, PANEL), first + STRIP, c, (STRIP, tall / STRIP));
            }
        }
        let Some(du) = &op.du else { return };
        let key_head = self.unit.key_head;
        let root = 1.0 / (sizes.key as f32).sqrt();
        let (q, k) = (self.at(layout.forward.q), self.at(layout.forward.k));
        let [of_q, of_k] = scales;
        for (x, dx, scales, cols, root) in
            [(q, dq, of_q, sizes.q(key_head), root), (k, dk, of_k, sizes.k(key_head), 1.0)]
        {
            for (at, row) in rows.clone().enumerate() {
                let (x, dx) = (x.add(at * tall), dx.add(at * tall));
                // The rows have the root: of the normalised n and its gradient g, `r (g - n (n . g))`.
                let along = F::S::splat(-chunk::dot::<F>(x, dx, tall) / root);
                let (scale, root) = (F::S::splat(scales[at]), F::S::splat(root));
                let to = du.ptr.add((row * du.stride + cols.start) * du.elem.bytes());
                for col in (0..cols.len()).step_by(LANES) {
                    let g = F::S::mul(root, F::S::load(dx.add(col)));
                    let v = F::S::mul(scale, F::S::fma(along, F::S::load(x.add(col)), g));
                    put::<F::S>(to, du.elem, col, cols.len(), v);
                }
            }
        }
    }
}
