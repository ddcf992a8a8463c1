//! One task of the backward pass: the key blocks of a step against ascending query blocks.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over the workspace layout

use super::super::Rows;
use super::super::bias::{BiasBlock, Lines, Terms};
use super::super::mask::{self, Bits, Cover, Edge, Span};
use super::super::pack::{self, Both, Pack, Turn, Unpack};
use super::super::product::Product;
use super::super::scores::Scores;
use super::super::shape::{KEYS, SUB};
use super::super::simd::LANES;
use super::super::softmax::{Gradient, MASK_WORDS};
use super::super::unit::Unit;
use super::layout::{BLOCKS, QUERIES};

use super::layout::Layout;
use crate::attention::Backward;
use crate::attention::wavefront::Wavefront;
use std::sync::atomic::{AtomicU32, Ordering};

/// Columns computed for each strip of 32 keys of a block; `(0, 0)` for none.
type Strips = [(usize, usize); KEYS / SUB];

/// Key blocks of one step and the memory of the thread that computes it.
pub struct Task<'a, U: Unit> {
    pass: &'a Pass<'a>,
    slot: *mut u8,
    head: usize,
    step: usize,
    /// Spans of the key blocks.
    keys: &'a [Span],
    list: &'a [u32],
    unit: std::marker::PhantomData<U>,
}

impl<'a, U: Unit> Task<'a, U> {
    /// The task of `step` of key head `head` on `thread`.
    ///
    /// # Safety
    /// The pass is prepared; no other task uses the thread's slot.
    pub unsafe fn new(pass: &'a Pass<'a>, thread: usize, head: usize, step: usize) -> Task<'a, U> {
        let layout = &pass.layout;
        let slot = pass.at::<u8>(layout.threads + thread * layout.slot);
        let spans = std::slice::from_raw_parts(pass.at::<Span>(layout.key_spans), layout.key_blocks);
        let first = step * layout.blocks;
        let keys = &spans[first..(first + layout.blocks).min(layout.key_blocks)];
        let all = Span {
            start: keys[0].start,
            end: keys[keys.len() - 1].end,
            least: keys.iter().fold(i32::MAX, |a, k| a.min(k.least)),
            most: keys.iter().fold(i32::MIN, |a, k| a.max(k.most)),
        };
        let every = Span { start: 0, end: pass.op.shape.q_tokens, least: i32::MIN, most: i32::MAX };
        let list = mask::touching(pass.op.mask.slices, &every, &all, slot.add(layout.own.list).cast());
        Task { pass, slot, head, step, keys, list, unit: std::marker::PhantomData }
    }

    unsafe fn at<T>(&self, offset: usize) -> *mut T {
        self.slot.add(offset).cast()
    }

    /// Computes the rows of dk and dv and adds to dq.
    ///
    /// # Safety
    /// Tasks are started in ascending order, each once.
    pub unsafe fn compute(&self) {
        let layout = &self.pass.layout;
        if self.head >= layout.order.lanes {
            let done = &*self.pass.at::<AtomicU32>(layout.done).add(self.head - layout.order.lanes);
            self.pass.wavefront.wait(done, layout.order.steps as u32);
        }
        self.pack_keys();
        let sums = self.pass.sums(self.head, self.step * layout.blocks);
        std::ptr::write_bytes(sums.data, 0, self.keys.len() * layout.group * Lines::len(sums.span));
        let gradients = layout.blocks * KEYS * layout.width;
        std::ptr::write_bytes(self.at::<f32>(layout.own.dk), 0, gradients);
        std::ptr::write_bytes(self.at::<f32>(layout.own.dv), 0, gradients);
        for block in 0..layout.query_blocks {
            let hull = *self.pass.at::<(u32, u32)>(layout.hulls).add(block);
            if (hull.0..=hull.1).contains(&(self.step as u32)) {
                self.query_block(block, hull);
            }
        }
        self.write_keys();
        let done = &*self.pass.at::<AtomicU32>(layout.done).add(self.head);
        done.fetch_add(1, Ordering::AcqRel);
    }

    unsafe fn key_pack(&self, rows: Rows, key: &Span, to: *mut u32, depth: usize) -> Pack {
        let op = &self.pass.op;
        Pack {
            from: op.shape.view(rows.data.cast_mut(), rows.stride, op.elem, self.head, 1),
            first: key.start,
            rows: key.end - key.start,
            padded: KEYS,
            cols: op.shape.head_dim,
            to,
            depth,
        }
    }

    unsafe fn pack_keys(&self) {
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        let along = layout.words * LANES;
        for (block, key) in self.keys.iter().enumerate() {
            let at = block * KEYS * layout.depth;
            let own = &layout.own;
            U::rows(&self.key_pack(op.k, key, self.at::<u32>(own.k).add(at), layout.depth));
            U::rows(&self.key_pack(op.v, key, self.at::<u32>(own.v).add(at), layout.depth));
            U::along(&self.key_pack(op.k, key, self.at(own.q_along), along));
            U::turn(&Turn {
                from: self.at(own.q_along),
                panels: layout.width / LANES,
                depth: along,
                to: self.at::<u32>(own.kt).add(block * layout.turned * layout.words),
            });
        }
    }

    unsafe fn write_keys(&self) {
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        for (offset, rows, scale) in [(layout.own.dk, op.dk, op.options.scale), (layout.own.dv, op.dv, 1.0)] {
            U::unpack(&Unpack {
                from: self.at(offset),
                ld: layout.width,
                to: op.shape.view(rows.data, rows.stride, rows.elem, self.head, 1),
                first: self.keys[0].start,
                rows: self.keys[self.keys.len() - 1].end - self.keys[0].start,
                cols: op.shape.head_dim,
                scale,
                add: false,
            });
        }
    }

    unsafe fn pack_queries(&self, block: usize) {
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        let own = &layout.own;
        for (rows, across, along) in [(op.q, own.q, own.q_along), (op.dout, own.dout, own.dout_along)] {
            let across = Pack {
                from: self.pass.queries(rows.data, rows.stride, self.head),
                first: block * QUERIES,
                rows: self.pass.block_rows(block),
                padded: QUERIES,
                cols: op.shape.head_dim,
                to: self.at(across),
                depth: layout.depth,
            };
            U::both(&Both { across, along: self.at(along), depth: layout.words * LANES });
        }
    }

    /// Prefetches a share of query block `block` while strip `strip` of all key blocks computes: a few rows at a time,
    /// as a longer burst would stall the products.
    unsafe fn prefetch(&self, block: usize, strip: usize) {
        let op = &self.pass.op;
        let strips = self.keys.len() * KEYS / SUB;
        let [first, end] = [strip, strip + 1].map(|strip| block * QUERIES + strip * QUERIES / strips);
        for rows in [op.q, op.dout] {
            let view = self.pass.queries(rows.data, rows.stride, self.head);
            pack::prefetch(&view, first, end - first, self.pass.rows(), view.head);
        }
    }

    /// One query block against the step's keys, then its turn to add to dq.
    unsafe fn query_block(&self, block: usize, hull: (u32, u32)) {
        let layout = &self.pass.layout;
        let query = &*self.pass.at::<Span>(layout.query_spans).add(block);
        let mut strips: [Strips; BLOCKS] = Default::default();
        let mut packed = false;
        for (index, key) in self.keys.iter().enumerate() {
            let cover = mask::cover(self.pass.op.mask.slices, self.list, query, key);
            if cover == Cover::None {
                continue;
            }
            if !packed {
                self.pack_queries(block);
                packed = true;
            }
            strips[index] = self.key_block(block, index, cover);
        }
        let turn = &*self.pass.at::<AtomicU32>(layout.turns).add(self.head * layout.query_blocks + block);
        self.pass.wavefront.wait(turn, self.step as u32);
        let lane = self.head % layout.order.lanes;
        let area = QUERIES * layout.turned;
        let dq = self.pass.at::<f32>(layout.dq).add((lane * layout.query_blocks + block) * area);
        if hull.0 == self.step as u32 {
            std::ptr::write_bytes(dq, 0, area);
        }
        for (index, strips) in strips.iter().enumerate() {
            self.query_gradient(index, strips, dq);
        }
        if hull.1 == self.step as u32 {
            let op = &self.pass.op;
            U::unpack_turned(&Unpack {
                from: dq,
                ld: QUERIES,
                to: self.pass.query_gradients(self.head),
                first: block * QUERIES,
                rows: self.pass.block_rows(block),
                cols: op.shape.head_dim,
                scale: op.options.scale,
                add: op.accumulate,
            });
        }
        turn.store(self.step as u32 + 1, Ordering::Release);
    }

    /// Computes scores and their gradients, and adds their contributions to dv and dk.
    unsafe fn key_block(&self, block: usize, index: usize, cover: Cover) -> Strips {
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        let key = &self.keys[index];
        let bits = self.at::<u16>(layout.own.bits);
        let whole = key.end - key.start == KEYS && self.pass.block_rows(block) == QUERIES;
        let masked = cover != Cover::All || !whole;
        if masked {
            std::ptr::write_bytes(bits, 0, KEYS * MASK_WORDS);
            U::bits(&Bits {
                rows: Edge { first: key.start, rows: key.end - key.start, group: 1, pos: op.mask.pos_k },
                cols: Edge {
                    first: block * QUERIES,
                    rows: self.pass.block_rows(block),
                    group: layout.group,
                    pos: op.mask.pos_q,
                },
                rows_are_queries: false,
                slices: op.mask.slices,
                list: self.list,
                to: bits,
            });
        }
        let mut strips = Strips::default();
        for (strip, cols) in strips.iter_mut().enumerate() {
            let own_bits = bits.add(strip * SUB * MASK_WORDS);
            *cols = if masked { mask::extent(own_bits, SUB) } else { (0, QUERIES) };
            self.prefetch(block + 1, index * KEYS / SUB + strip);
            if cols.0 < cols.1 {
                self.strip(block, index, strip, *cols, if masked { own_bits } else { std::ptr::null() });
            }
        }
        strips
    }

    unsafe fn strip(&self, block: usize, index: usize, strip: usize, cols: (usize, usize), mask: *const u16) {
        let layout = &self.pass.layout;
        let own = &layout.own;
        let row = index * KEYS + strip * SUB;
        let (start, end) = cols;
        for (a, b, c) in [(own.k, own.q, own.s), (own.v, own.dout, own.dp)] {
            U::product(&Product {
                a: self.at::<u32>(a).add(row * layout.depth),
                lda: layout.depth,
                b: self.at::<u32>(b).add(start * layout.depth),
                ldb: LANES * layout.depth,
                depth: layout.depth,
                c: self.at::<f32>(c).add(start),
                ldc: KEYS,
                rows: SUB,
                panels: (end - start) / LANES,
                add: false,
            });
        }
        let store = self.pass.op.bias.is_some_and(|bias| !bias.gradient.is_null());
        if let Some(terms) = self.pass.terms {
            let terms = terms.at_head(self.head * layout.group);
            U::add_bias(&self.biased(block, (index, strip), cols, (own.s, terms)));
        }
        let rows_at = (self.head * layout.query_blocks + block) * QUERIES;
        let p = self.at::<u32>(own.p);
        let ds = self.at::<u32>(own.ds);
        let turned = self.at::<u32>(own.ds_turned);
        U::gradient(&Gradient {
            s: self.at(own.s),
            dp: self.at(own.dp),
            store,
            rows: SUB,
            cols,
            lse2: self.pass.at::<f32>(layout.lse2).add(rows_at),
            delta: self.pass.at::<f32>(layout.delta).add(rows_at),
            scores: Scores::of(&self.pass.op.options),
            mask,
            p,
            ds,
            ldp: layout.words,
            turned: turned.add(index * QUERIES * layout.words + strip * SUB / U::STEP * LANES),
            ldb: layout.words * LANES,
        });
        if store {
            let sums = Terms::Lines(self.pass.sums(self.head, self.step * layout.blocks + index));
            U::sum_bias(&self.biased(block, (index, strip), cols, (own.dp, sums)));
        }
        for (a, b, c) in [(p, own.dout_along, own.dv), (ds, own.q_along, own.dk)] {
            U::product(&Product {
                a: a.add(start / U::STEP),
                lda: layout.words,
                b: self.at::<u32>(b).add(start / U::STEP * LANES),
                ldb: layout.words * LANES,
                depth: (end - start) / U::STEP,
                c: self.at::<f32>(c).add(row * layout.width),
                ldc: layout.width,
                rows: SUB,
                panels: layout.width / LANES,
                add: true,
            });
        }
    }

    /// A strip of scores or their gradients, with terms of the key head's heads.
    fn biased(
        &self,
        block: usize,
        (index, strip): (usize, usize),
        range: (usize, usize),
        (s, terms): (usize, Terms),
    ) -> BiasBlock<'a> {
        let (mask, group, key) = (self.pass.op.mask, self.pass.layout.group, &self.keys[index]);
        let first = (key.start + strip * SUB).min(key.end);
        let (queries, rows) = (self.pass.block_rows(block), SUB.min(key.end - first));
        BiasBlock {
            // SAFETY: an offset of this thread's slot.
            s: unsafe { self.at(s) },
            rows: Edge { first, rows, group: 1, pos: mask.pos_k },
            cols: Edge { first: block * QUERIES, rows: queries, group, pos: mask.pos_q },
            range,
            terms,
        }
    }

    /// `dQ^T += K^T dS` for one key block, by groups of 32 query rows.
    unsafe fn query_gradient(&self, index: usize, strips: &Strips, dq: *mut f32) {
        let layout = &self.pass.layout;
        let whole = strips.iter().all(|&cols| cols == (0, QUERIES));
        let width = if whole { QUERIES } else { SUB };
        let turned = self.at::<u32>(layout.own.ds_turned).add(index * QUERIES * layout.words);
        let panel = layout.words * LANES;
        for col in (0..QUERIES).step_by(width) {
            let seen = |cols: &(usize, usize)| cols.0 <= col && col < cols.1;
            let Some(first) = strips.iter().position(seen) else { continue };
            let last = strips.iter().rposition(seen).unwrap_or(first);
            for strip in first..=last {
                if !seen(&strips[strip]) {
                    let at = turned.add(col / LANES * panel + strip * SUB / U::STEP * LANES);
                    std::ptr::write_bytes(at, 0, SUB / U::STEP * LANES);
                    std::ptr::write_bytes(at.add(panel), 0, SUB / U::STEP * LANES);
                }
            }
            let kt = self.at::<u32>(layout.own.kt).add(index * layout.turned * layout.words);
            U::product(&Product {
                a: kt.add(first * SUB / U::STEP),
                lda: layout.words,
                b: turned.add(col / LANES * panel + first * SUB / U::STEP * LANES),
                ldb: panel,
                depth: (last + 1 - first) * SUB / U::STEP,
                c: dq.add(col),
                ldc: QUERIES,
                rows: layout.turned,
                panels: width / LANES,
                add: true,
            });
        }
    }
}

pub(super) struct Pass<'a> {
    pub(crate) op: Backward<'a>,
    pub(crate) layout: Layout,
    pub(super) terms: Option<Terms>,
    pub(super) base: *mut u8,
    pub(super) wavefront: Wavefront,
}
