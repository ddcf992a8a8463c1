//! The backward pass: a task is some key blocks of a key head against ascending query blocks.
//!
//! It works on transposed scores (keys x queries): probabilities and score gradients come out as the left operands of
//! `dV = P^T dO` and `dK = dS^T Q`, and the numbers per query are row vectors. `dQ^T = K^T dS` is added in turn, key
//! block after key block, into an f32 buffer (`wavefront.rs`). Query rows are heads of tokens, so a group of heads
//! that share keys is one longer head. Five products, no score is computed twice.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over the workspace layout below

use super::mask::{self, Bits, Cover, Edge, Span};
use super::pack::{self, Pack, Turn, Unpack, View};
use super::product::Product;
use super::simd::LANES;
use super::softmax::{Delta, Gradient, MASK_WORDS};
use super::unit::Unit;
use super::wavefront::{Order, Wavefront};
use super::workspace::{Carve, Shared, aligned, padded};
use super::{Backward, KEYS, SUB, Scores, Shape};
use crate::threads::Threads;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most key blocks of a task.
const BLOCKS: usize = 4;
/// Query rows of a block.
const QUERIES: usize = KEYS;
/// Log-sum-exp, in log2 units, of rows without keys: makes every probability zero.
const NEVER: f32 = 1e30;

/// Sizes and offsets; `own` offsets are within a thread's slot.
#[derive(Clone, Copy)]
struct Layout {
    order: Order,
    key_blocks: usize,
    /// Key blocks of a task.
    blocks: usize,
    query_blocks: usize,
    group: usize,
    /// Words of a head; f32 of a gradient row; rows of `dQ^T`; words of 128 rows as inner dimension.
    depth: usize,
    width: usize,
    turned: usize,
    words: usize,
    key_spans: usize,
    query_spans: usize,
    hulls: usize,
    turns: usize,
    done: usize,
    lse2: usize,
    delta: usize,
    dq: usize,
    threads: usize,
    slot: usize,
    own: Own,
    total: usize,
}

#[derive(Clone, Copy)]
struct Own {
    k: usize,
    v: usize,
    kt: usize,
    q: usize,
    dout: usize,
    q_along: usize,
    dout_along: usize,
    s: usize,
    dp: usize,
    p: usize,
    ds: usize,
    ds_turned: usize,
    dk: usize,
    dv: usize,
    bits: usize,
    list: usize,
}

impl Layout {
    fn new<U: Unit>(shape: &Shape, threads: usize, slices: usize) -> Layout {
        let key_blocks = shape.k_tokens.div_ceil(KEYS);
        let query_blocks = (shape.q_tokens * shape.group()).div_ceil(QUERIES);
        let depth = shape.head_dim.div_ceil(U::STEP).next_multiple_of(U::DEPTH);
        let width = shape.head_dim.next_multiple_of(LANES);
        let turned = width.next_multiple_of(U::ROWS);
        let words = KEYS / U::STEP;
        // More key blocks share one packing of the queries, as far as L2 holds their gradients.
        let many = shape.head_dim <= 64 && key_blocks * shape.kv_heads >= 16 * threads;
        let blocks = if many { BLOCKS } else { BLOCKS / 2 };
        let lanes = shape.kv_heads.min(threads).min(2);
        let mut all = Carve::default();
        let mut own = Carve::default();
        Layout {
            order: Order { heads: shape.kv_heads, steps: key_blocks.div_ceil(blocks), lanes },
            key_blocks,
            blocks,
            query_blocks,
            group: shape.group(),
            depth,
            width,
            turned,
            words,
            key_spans: all.take::<Span>(key_blocks),
            query_spans: all.take::<Span>(query_blocks),
            hulls: all.take::<(u32, u32)>(query_blocks),
            turns: all.take::<AtomicU32>(query_blocks * shape.kv_heads),
            done: all.take::<AtomicU32>(shape.kv_heads),
            lse2: all.take::<f32>(query_blocks * QUERIES * shape.kv_heads),
            delta: all.take::<f32>(query_blocks * QUERIES * shape.kv_heads),
            dq: all.take::<f32>(lanes * query_blocks * QUERIES * turned),
            threads: all.bytes(),
            own: Own {
                k: own.take::<u32>(blocks * KEYS * depth),
                v: own.take::<u32>(blocks * KEYS * depth),
                kt: own.take::<u32>(blocks * turned * words),
                q: own.take::<u32>(QUERIES * depth),
                dout: own.take::<u32>(QUERIES * depth),
                q_along: own.take::<u32>(width * words),
                dout_along: own.take::<u32>(width * words),
                s: own.take::<f32>(SUB * KEYS),
                dp: own.take::<f32>(SUB * KEYS),
                p: own.take::<u32>(KEYS * words),
                ds: own.take::<u32>(KEYS * words),
                ds_turned: own.take::<u32>(blocks * QUERIES * words),
                dk: own.take::<f32>(blocks * KEYS * width),
                dv: own.take::<f32>(blocks * KEYS * width),
                bits: own.take::<u16>(KEYS * MASK_WORDS),
                list: own.take::<u32>(slices),
            },
            slot: own.bytes(),
            total: all.bytes() + own.bytes() * threads,
        }
    }
}

/// Bytes of workspace.
pub fn bytes<U: Unit>(_: U, threads: usize, shape: &Shape, slices: usize) -> usize {
    padded(Layout::new::<U>(shape, threads, slices).total)
}

/// The whole pass.
///
/// # Safety
/// As `attention::backward`.
pub unsafe fn run<U: Unit>(_: U, threads: &Threads, op: &Backward<'_>, workspace: *mut u8) {
    let layout = Layout::new::<U>(&op.shape, threads.count(), op.mask.slices.len());
    let pass = Pass { op: *op, layout, base: aligned(workspace), wavefront: Wavefront::default() };
    pass.spans();
    let shared = Shared::new(&pass);
    threads.run(layout.query_blocks, &|block, _| {
        // SAFETY: each task writes its own hull.
        unsafe { shared.get().hull(block) }
    });
    threads.run(layout.query_blocks * op.shape.kv_heads, &|task, _| {
        // SAFETY: each task writes its own rows.
        unsafe { shared.get().prepare::<U>(task / layout.query_blocks, task % layout.query_blocks) }
    });
    if let (Some(sinks), false) = (op.sinks, op.d_sinks.is_null()) {
        threads.run(op.shape.heads, &|head, _| {
            // SAFETY: each task writes the gradient of its own sink.
            unsafe { shared.get().sink(sinks, head) }
        });
    }
    threads.run(layout.order.tasks(), &|task, thread| {
        let pass = *shared.get();
        let _guard = pass.wavefront.guard();
        let (head, step) = layout.order.task(task);
        // SAFETY: tasks write disjoint rows of dk and dv and take turns in dq; threads have disjoint slots.
        unsafe {
            U::begin();
            Task::<U>::new(pass, thread, head, step).compute();
            U::end();
        }
    });
}

struct Pass<'a> {
    op: Backward<'a>,
    layout: Layout,
    base: *mut u8,
    wavefront: Wavefront,
}

impl Pass<'_> {
    unsafe fn at<T>(&self, offset: usize) -> *mut T {
        self.base.add(offset).cast()
    }

    /// Query rows of a key head.
    fn rows(&self) -> usize {
        self.op.shape.q_tokens * self.layout.group
    }

    /// Rows of a query block.
    fn block_rows(&self, block: usize) -> usize {
        QUERIES.min(self.rows() - block * QUERIES)
    }

    /// The query rows of a key head of some tensor.
    fn queries(&self, data: *const u8, stride: usize, head: usize) -> View {
        let group = self.layout.group;
        self.op.shape.view(data.cast_mut(), stride, self.op.elem, head * group, group)
    }

    unsafe fn spans(&self) {
        let (shape, layout) = (&self.op.shape, &self.layout);
        let keys = self.at::<Span>(layout.key_spans);
        for block in 0..layout.key_blocks {
            let start = block * KEYS;
            keys.add(block).write(Span::of(self.op.mask.pos_k, start, (start + KEYS).min(shape.k_tokens)));
        }
        let queries = self.at::<Span>(layout.query_spans);
        for block in 0..layout.query_blocks {
            let (start, end) = (block * QUERIES, block * QUERIES + self.block_rows(block));
            let span = Span::of(self.op.mask.pos_q, start / layout.group, end.div_ceil(layout.group));
            queries.add(block).write(span);
        }
        for head in 0..shape.kv_heads {
            self.at::<AtomicU32>(layout.done).add(head).write(AtomicU32::new(0));
        }
    }

    /// The first and last step whose keys the query block may see; `(1, 0)` if none.
    unsafe fn hull(&self, block: usize) {
        let (layout, mask) = (&self.layout, &self.op.mask);
        let keys = std::slice::from_raw_parts(self.at::<Span>(layout.key_spans), layout.key_blocks);
        let query = &*self.at::<Span>(layout.query_spans).add(block);
        let every = Span { start: 0, end: self.op.shape.k_tokens, least: i32::MIN, most: i32::MAX };
        let (mut first, mut last) = (layout.key_blocks, 0);
        for slice in mask.slices {
            if mask::cover_of(slice, query, &every) == Cover::None {
                continue;
            }
            let start = slice.k_start.max(0) as usize / KEYS;
            let end = (slice.k_end.max(0) as usize).div_ceil(KEYS).min(layout.key_blocks);
            let seen = |block: &usize| mask::cover_of(slice, query, &keys[*block]) != Cover::None;
            if let Some(low) = (start..end.min(first)).find(seen) {
                first = low;
            }
            if let Some(high) = (start.max(last)..end).rev().find(seen) {
                last = high;
            }
        }
        let hull = if first < layout.key_blocks {
            // A slice below `first` was not searched above it, so `last` may still be 0.
            ((first / layout.blocks) as u32, (last.max(first) / layout.blocks) as u32)
        } else {
            (1, 0)
        };
        self.at::<(u32, u32)>(layout.hulls).add(block).write(hull);
    }

    /// Log-sum-exp and delta of a query block of a key head; its turn; zeros where it sees no key.
    unsafe fn prepare<U: Unit>(&self, head: usize, block: usize) {
        let (op, layout) = (&self.op, &self.layout);
        let (first, rows) = (block * QUERIES, self.block_rows(block));
        let at = (head * layout.query_blocks + block) * QUERIES;
        let (lse2, delta) = (self.at::<f32>(layout.lse2).add(at), self.at::<f32>(layout.delta).add(at));
        for r in 0..QUERIES {
            *delta.add(r) = 0.0;
            *lse2.add(r) = NEVER;
            if r < rows {
                let (token, inner) = ((first + r) / layout.group, (first + r) % layout.group);
                let lse = *op.lse.add(token * op.shape.heads + head * layout.group + inner);
                if lse != f32::NEG_INFINITY {
                    *lse2.add(r) = lse * std::f32::consts::LOG2_E;
                }
            }
        }
        U::delta(&Delta {
            out: self.queries(op.out.data, op.out.stride, head),
            dout: self.queries(op.dout.data, op.dout.stride, head),
            first,
            rows,
            cols: op.shape.head_dim,
            to: delta,
        });
        let hull = *self.at::<(u32, u32)>(layout.hulls).add(block);
        let turn = self.at::<AtomicU32>(layout.turns).add(head * layout.query_blocks + block);
        turn.write(AtomicU32::new(hull.0));
        if hull.0 > hull.1 {
            let dq = self.queries(op.dq.data, op.dq.stride, head);
            for r in 0..rows {
                std::ptr::write_bytes(dq.row(first + r), 0, op.shape.head_dim * op.elem.bytes());
            }
        }
    }

    /// `d sink = - sum over rows of exp(sink - lse) delta`, in ascending chunks of 128 tokens.
    unsafe fn sink(&self, sinks: &[f32], head: usize) {
        let (key_head, inner) = (head / self.layout.group, head % self.layout.group);
        let at = key_head * self.layout.query_blocks * QUERIES + inner;
        let logit = sinks[head] * std::f32::consts::LOG2_E;
        let tokens = self.op.shape.q_tokens;
        let mut total = 0.0f32;
        for chunk in (0..tokens).step_by(128) {
            let mut sum = 0.0f32;
            for token in chunk..(chunk + 128).min(tokens) {
                let row = at + token * self.layout.group;
                let share = (logit - *self.at::<f32>(self.layout.lse2).add(row)).exp2();
                sum += share * *self.at::<f32>(self.layout.delta).add(row);
            }
            total += sum;
        }
        *self.op.d_sinks.add(head) -= total;
    }
}

/// Which columns of each strip of 32 keys of a block were computed; `(0, 0)` for none.
type Strips = [(usize, usize); KEYS / SUB];

/// Key blocks of one step and the memory of the thread that computes it.
struct Task<'a, U: Unit> {
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
    unsafe fn new(pass: &'a Pass<'a>, thread: usize, head: usize, step: usize) -> Task<'a, U> {
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

    unsafe fn compute(&self) {
        let layout = &self.pass.layout;
        if self.head >= layout.order.lanes {
            let done = &*self.pass.at::<AtomicU32>(layout.done).add(self.head - layout.order.lanes);
            self.pass.wavefront.wait(done, layout.order.steps as u32);
        }
        self.pack_keys();
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

    unsafe fn key_pack(&self, rows: super::Rows, key: &Span, to: *mut u32, depth: usize) -> Pack {
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
                to: op.shape.view(rows.data, rows.stride, op.elem, self.head, 1),
                first: self.keys[0].start,
                rows: self.keys[self.keys.len() - 1].end - self.keys[0].start,
                cols: op.shape.head_dim,
                scale,
            });
        }
    }

    unsafe fn pack_queries(&self, block: usize) {
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        let own = &layout.own;
        for (rows, across, along) in [(op.q, own.q, own.q_along), (op.dout, own.dout, own.dout_along)] {
            let mut pack = Pack {
                from: self.pass.queries(rows.data, rows.stride, self.head),
                first: block * QUERIES,
                rows: self.pass.block_rows(block),
                padded: QUERIES,
                cols: op.shape.head_dim,
                to: self.at(across),
                depth: layout.depth,
            };
            U::across(&pack);
            pack.to = self.at(along);
            pack.depth = layout.words * LANES;
            U::along(&pack);
        }
    }

    /// A share of the next query block comes closer while one strip computes.
    unsafe fn prefetch(&self, first: usize) {
        let op = &self.pass.op;
        for rows in [op.q, op.dout] {
            let view = self.pass.queries(rows.data, rows.stride, self.head);
            pack::prefetch(&view, first, SUB, self.pass.rows(), view.head);
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
                to: self.pass.queries(op.dq.data, op.dq.stride, self.head),
                first: block * QUERIES,
                rows: self.pass.block_rows(block),
                cols: op.shape.head_dim,
                scale: op.options.scale,
            });
        }
        turn.store(self.step as u32 + 1, Ordering::Release);
    }

    /// Scores, their gradients, and what they add to dv and dk.
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
            if index == 0 {
                self.prefetch((block + 1) * QUERIES + strip * SUB);
            }
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
        let rows_at = (self.head * layout.query_blocks + block) * QUERIES;
        let p = self.at::<u32>(own.p).add(strip * SUB * layout.words);
        let ds = self.at::<u32>(own.ds).add(strip * SUB * layout.words);
        let turned = self.at::<u32>(own.ds_turned);
        U::gradient(&Gradient {
            s: self.at(own.s),
            dp: self.at(own.dp),
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
