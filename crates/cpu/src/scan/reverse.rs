//! Gradients of one chunk, in the form that keeps f32 precision: the gradient of a log decay is a sum of products, all
//! kept apart, instead of a difference of two large sums.
//!
//! With `E` the gradient of the state after the chunk and `M_ij = (dy_i . x_j) G_ij delta_j`:
//! `r_j = sum over i >= j of (C_i . B_j) G_ij dy_i + e^(L_q - L_j) E B_j`, `dx_j = delta_j r_j + D dy_j`,
//! `ddelta_j = r_j . x_j`, `dC_i = sum M_ij B_j + e^(L_i) S^T dy_i`, `dB_j = sum M_ij C_i + e^(L_q - L_j) delta_j E^T x_j`,
//! and the log decay of row k has the sum over `i >= k > j` of `M_ij (C_i . B_j)`, over `i >= k` of
//! `e^(L_i) dy_i^T S C_i`, over `j < k` of `e^(L_q - L_j) delta_j x_j^T E B_j`, and `e^(L_q) <S, E>`.
//!
//! Pairs are computed turned, a row for each j, so that everything sums over contiguous rows.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use fathom_tensor::SCAN_SPAN;

use super::chunk::{self, PANEL, columns};
use super::decays::Decays;
use super::family::Family;
use super::layout::BackwardLayout;
use super::pass::Pass;
use super::{CHUNK, STRIP};
use crate::attention::pack::put;
use crate::attention::product::Product;
use crate::attention::simd::{LANES, Simd};
use crate::attention::unit::Unit as _;
use crate::mat::Elem;

/// Gradients of one chunk.
pub struct Reverse<'a> {
    pub pass: &'a Pass<'a>,
    pub layout: BackwardLayout,
    pub base: *mut u8,
    pub block: usize,
    pub group: usize,
}

/// Terms of a head's gradients by row.
struct Rows {
    /// `(C_i . B_j) M_ij` of all `i >= k > j`, by k.
    within: [f32; CHUNK],
    /// `e^(L_i) dy_i^T S C_i`, by i.
    entered: [f32; CHUNK],
    /// `e^(L_q - L_j) delta_j x_j^T E B_j`, by j.
    left: [f32; CHUNK],
    /// `e^(L_q) <S, E>`.
    through: f32,
}

impl Reverse<'_> {
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut f32 {
        self.base.wrapping_add(offset).cast()
    }

    /// Prepares B and C of a chunk, and what is summed over its heads.
    #[inline(always)]
    pub unsafe fn begin<F: Family>(&self, rows: &Range<usize>) {
        let (of, at, layout) = (&self.pass.op.of, &self.layout.group, &self.layout);
        let (tall, count) = (of.sizes.tall(), chunk::padded(rows));
        let [b, c] = columns(&of.sizes, self.group);
        chunk::rows::<F>(&of.u, rows, c.clone(), tall, self.at(at.c_rows));
        chunk::rows::<F>(&of.u, rows, b, tall, self.at(layout.b_rows));
        chunk::turned_rows::<F>(of, rows, c, [self.at(layout.c_across), self.at(layout.c_turned)]);
        chunk::along::<F>(self.at(layout.b_rows), count, tall, (CHUNK, self.at(layout.b_along)));
        chunk::along::<F>(self.at(at.c_rows), count, tall, (CHUNK, self.at(layout.c_along)));
        for strip in 0..count / STRIP {
            F::U::product(&Product {
                a: self.at(layout.b_rows).add(strip * STRIP * tall).cast(),
                lda: tall,
                b: self.at(layout.c_across).add(strip * STRIP * tall).cast(),
                ldb: tall * STRIP,
                depth: tall,
                c: self.at(at.scores).add(strip * STRIP * (CHUNK + 1)),
                ldc: CHUNK,
                rows: STRIP,
                panels: count / STRIP - strip,
                add: false,
            });
        }
        std::ptr::write_bytes(self.at(layout.turned), 0, count * CHUNK);
        std::ptr::write_bytes(self.at(layout.db), 0, count * tall);
        std::ptr::write_bytes(self.at(layout.dc), 0, count * tall);
    }

    /// One head: the gradients of its columns of x and of dt, and its share of the rest, from the state before the chunk
    /// and the gradient of that after it, if there are any.
    #[inline(always)]
    pub unsafe fn head<F: Family>(
        &self,
        rows: &Range<usize>,
        head: usize,
        [state, gradient]: [Option<*const f32>; 2],
    ) {
        let (op, layout) = (self.pass.op, &self.layout);
        let (of, sizes, count) = (&op.of, &op.of.sizes, chunk::padded(rows));
        let (wide, width) = (sizes.wide(), sizes.width);
        let mut decays = Decays::ZERO;
        decays.read::<F>(&of.steps, rows.clone(), head);
        let (x, dy) = (self.at(layout.x), self.at(layout.dy));
        let cols = head * width..(head + 1) * width;
        chunk::rows::<F>(&of.u, rows, cols.clone(), wide, x);
        chunk::rows::<F>(&op.dy, rows, cols.clone(), wide, dy);
        chunk::rows_times::<F>(dy, count, wide, &decays.enter, self.at(layout.dy_first));
        chunk::along::<F>(dy, count, wide, (CHUNK, self.at(layout.dy_along)));
        chunk::across::<F>(dy, count, wide, self.at(layout.dy_across));
        let mut terms =
            Rows { within: [0.0; CHUNK], entered: [0.0; CHUNK], left: [0.0; CHUNK], through: 0.0 };
        if let Some(gradient) = gradient {
            self.after::<F>(count, &decays, gradient, &mut terms);
        }
        if let Some(state) = state {
            self.before::<F>(count, state, &mut terms);
            if let Some(gradient) = gradient {
                terms.through = decays.whole * chunk::dot::<F>(state, gradient, sizes.square());
            }
        }
        self.pairs::<F>(count, &decays, gradient.is_some(), &mut terms);
        self.write::<F>(rows, head, &decays, &terms);
    }

    /// Adds the part of the state's gradient after the chunk to r, dB and log decays.
    #[inline(always)]
    unsafe fn after<F: Family>(&self, count: usize, decays: &Decays, gradient: *const f32, terms: &mut Rows) {
        let (sizes, layout) = (&self.pass.op.of.sizes, &self.layout);
        let (wide, tall) = (sizes.wide(), sizes.tall());
        let (x, r, last) = (self.at(layout.x), self.at(layout.r), self.at(layout.x_last));
        chunk::along::<F>(gradient, tall, wide, (tall, self.at(layout.along)));
        F::U::product(&Product {
            a: self.at(layout.b_rows).cast(),
            lda: tall,
            b: self.at(layout.along).cast(),
            ldb: tall * STRIP,
            depth: tall,
            c: r,
            ldc: wide,
            rows: count,
            panels: wide / STRIP,
            add: false,
        });
        chunk::rows_times::<F>(r, count, wide, &decays.leave, r);
        for row in 0..count {
            let product = chunk::dot::<F>(x.add(row * wide), r.add(row * wide), wide);
            terms.left[row] = decays.delta[row] * product;
        }
        let mut ends = [0.0f32; CHUNK];
        for ((to, delta), leave) in ends.iter_mut().zip(&decays.delta).zip(&decays.leave) {
            *to = delta * leave;
        }
        chunk::rows_times::<F>(x, count, wide, &ends, last);
        chunk::across::<F>(gradient, tall, wide, self.at(layout.across));
        F::U::product(&Product {
            a: last.cast(),
            lda: wide,
            b: self.at(layout.across).cast(),
            ldb: wide * STRIP,
            depth: wide,
            c: self.at(layout.db),
            ldc: tall,
            rows: count,
            panels: tall / STRIP,
            add: true,
        });
    }

    /// Adds the part of the state before the chunk to dC and log decays.
    #[inline(always)]
    unsafe fn before<F: Family>(&self, count: usize, state: *const f32, terms: &mut Rows) {
        let (sizes, layout) = (&self.pass.op.of.sizes, &self.layout);
        let (wide, tall) = (sizes.wide(), sizes.tall());
        let (v, dc, c) = (self.at(layout.v), self.at(layout.dc), self.at(layout.group.c_rows));
        chunk::across::<F>(state, tall, wide, self.at(layout.across));
        F::U::product(&Product {
            a: self.at(layout.dy_first).cast(),
            lda: wide,
            b: self.at(layout.across).cast(),
            ldb: wide * STRIP,
            depth: wide,
            c: v,
            ldc: tall,
            rows: count,
            panels: tall / STRIP,
            add: false,
        });
        for row in 0..count {
            let mut sum = F::S::splat(0.0);
            for at in (row * tall..(row + 1) * tall).step_by(LANES) {
                let part = F::S::load(v.add(at));
                sum = F::S::fma(part, F::S::load(c.add(at)), sum);
                F::S::store(dc.add(at), F::S::add(F::S::load(dc.add(at)), part));
            }
            terms.entered[row] = F::S::sum(sum);
        }
    }

    /// Pairs of rows of the chunk: adds to r, to the sums over heads, and to log decays.
    #[inline(always)]
    unsafe fn pairs<F: Family>(&self, count: usize, decays: &Decays, add: bool, terms: &mut Rows) {
        let layout = &self.layout;
        let (wide, strips) = (self.pass.op.of.sizes.wide(), count / STRIP);
        let (weights, products) = (self.at(layout.weights), self.at(layout.strip));
        let mut sums = [0.0f32; CHUNK];
        for strip in 0..strips {
            let first = strip * STRIP;
            F::U::product(&Product {
                a: self.at(layout.x).add(first * wide).cast(),
                lda: wide,
                b: self.at(layout.dy_across).add(first * wide).cast(),
                ldb: wide * STRIP,
                depth: wide,
                c: products.add(first),
                ldc: CHUNK,
                rows: STRIP,
                panels: strips - strip,
                add: false,
            });
            for at in 0..STRIP {
                let row = first + at;
                let from = [products.add(at * CHUNK), weights.add(at * CHUNK)];
                terms.within[row] = self.row::<F>(row, strips, decays, from, &mut sums);
            }
            F::U::product(&Product {
                a: weights.add(first).cast(),
                lda: CHUNK,
                b: self.at(layout.dy_along).add(first * STRIP).cast(),
                ldb: PANEL,
                depth: count - first,
                c: self.at(layout.r).add(first * wide),
                ldc: wide,
                rows: STRIP,
                panels: wide / STRIP,
                add,
            });
        }
    }

    /// Row j of the pairs: `(C_i . B_j) G_ij` to the weights, `M_ij` to the sums over heads, and their product to `sums`
    /// by i, whose total over `i >= j` before that is returned.
    #[inline(always)]
    unsafe fn row<F: Family>(
        &self,
        row: usize,
        strips: usize,
        decays: &Decays,
        [products, weights]: [*mut f32; 2],
        sums: &mut [f32; CHUNK],
    ) -> f32 {
        let scores = self.at(self.layout.group.scores).add(row * CHUNK);
        let totals = self.at(self.layout.turned).add(row * CHUNK);
        let delta = F::S::splat(decays.delta[row]);
        let mut before = F::S::splat(0.0);
        for strip in row / STRIP..strips {
            let at = strip * STRIP;
            let (decay, score) = (decays.until::<F>(row, strip), F::S::load(scores.add(at)));
            F::S::store(weights.add(at), F::S::mul(score, decay));
            let pair = F::S::mul(F::S::mul(F::S::load(products.add(at)), decay), delta);
            F::S::store(totals.add(at), F::S::add(F::S::load(totals.add(at)), pair));
            let sum = F::S::load(sums.as_ptr().add(at));
            let later = if strip == row / STRIP { (0xffff_u32 << (row - at)) as u16 } else { u16::MAX };
            before = F::S::add(before, F::S::select(later, sum, F::S::splat(0.0)));
            F::S::store(sums.as_mut_ptr().add(at), F::S::fma(pair, score, sum));
        }
        F::S::sum(before)
    }

    /// Writes the gradients of a head's columns of x and of dt, and the terms of those of weights.
    #[inline(always)]
    unsafe fn write<F: Family>(&self, rows: &Range<usize>, head: usize, decays: &Decays, terms: &Rows) {
        let (op, layout) = (self.pass.op, &self.layout);
        let (sizes, count) = (&op.of.sizes, rows.len());
        let (wide, width) = (sizes.wide(), sizes.width);
        let (x, dy, r) = (self.at(layout.x), self.at(layout.dy), self.at(layout.r));
        let factor = F::S::splat(op.of.d[head]);
        let weights: *mut f32 = self.pass.shared.add(self.pass.layout.terms).cast();
        let mut entered = [0.0f64; CHUNK];
        let mut sum = 0.0;
        for at in (0..count).rev() {
            sum += f64::from(terms.entered[at]);
            entered[at] = sum;
        }
        let mut left = 0.0f64;
        for (at, row) in rows.clone().enumerate() {
            let (x, dy, r) = (x.add(at * wide), dy.add(at * wide), r.add(at * wide));
            let delta = F::S::splat(decays.delta[at]);
            if let Some(du) = &op.du {
                let to = du.ptr.add((row * du.stride + head * width) * du.elem.bytes());
                for col in (0..width).step_by(LANES) {
                    let by_d = F::S::mul(factor, F::S::load(dy.add(col)));
                    put::<F::S>(to, du.elem, col, width, F::S::fma(delta, F::S::load(r.add(col)), by_d));
                }
            }
            let of_decay = f64::from(terms.within[at]) + entered[at] + left + f64::from(terms.through);
            left += f64::from(terms.left[at]);
            let of_delta = f64::from(chunk::dot::<F>(r, x, wide)) + of_decay * f64::from(decays.rate);
            let of_raw = (of_delta * f64::from(decays.slope[at])) as f32;
            if let Some(ddt) = &op.ddt {
                let to = ddt.ptr.add((row * ddt.stride + head) * ddt.elem.bytes());
                put::<F::S>(to, ddt.elem, 0, 1, F::S::splat(of_raw));
            }
            let to = weights.add(row * 3 * sizes.heads + head);
            *to = (of_decay * f64::from(decays.rate) * f64::from(decays.delta[at])) as f32;
            *to.add(sizes.heads) = of_raw;
            *to.add(2 * sizes.heads) = chunk::dot::<F>(dy, x, wide);
        }
    }

    /// After all heads: the gradients of B and C.
    #[inline(always)]
    pub unsafe fn end<F: Family>(&self, rows: &Range<usize>) {
        let (op, layout) = (self.pass.op, &self.layout);
        let (sizes, count) = (&op.of.sizes, chunk::padded(rows));
        let (tall, n, strips) = (sizes.tall(), sizes.state, count / STRIP);
        let (turned, pairs) = (self.at(layout.turned), self.at(layout.pairs));
        for strip in 0..strips {
            chunk::turn::<F>(turned, pairs, strip);
            let first = strip * STRIP;
            let product = |a, b, depth, c: *mut f32| Product {
                a,
                lda: CHUNK,
                b,
                ldb: PANEL,
                depth,
                c,
                ldc: tall,
                rows: STRIP,
                panels: tall / STRIP,
                add: true,
            };
            let (db, dc) = (self.at(layout.db).add(first * tall), self.at(layout.dc).add(first * tall));
            let a = turned.add(first * CHUNK + first).cast_const().cast();
            let b = self.at(layout.c_along).add(first * STRIP).cast_const().cast();
            F::U::product(&product(a, b, count - first, db));
            let a = pairs.add(first * CHUNK).cast_const().cast();
            F::U::product(&product(a, self.at(layout.b_along).cast_const().cast(), first + STRIP, dc));
        }
        let Some(du) = &op.du else { return };
        let single = sizes.blocks_of_group() == 1;
        let parts: *mut f32 = self.pass.shared.add(self.pass.layout.parts).cast();
        for (which, cols) in columns(sizes, self.group).into_iter().enumerate() {
            let from = self.at(if which == 0 { layout.db } else { layout.dc });
            for (at, row) in rows.clone().enumerate() {
                let to = du.ptr.wrapping_add((row * du.stride + cols.start) * du.elem.bytes());
                let index = (self.block * SCAN_SPAN + row - self.pass.first) * 2 + which;
                for col in (0..n).step_by(LANES) {
                    let v = F::S::load(from.add(at * tall + col));
                    if single {
                        put::<F::S>(to, du.elem, col, n, v);
                    } else {
                        put::<F::S>(parts.add(index * n).cast(), Elem::F32, col, n, v);
                    }
                }
            }
        }
    }
}
