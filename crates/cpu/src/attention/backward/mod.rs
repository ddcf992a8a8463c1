//! The backward pass: a task is a few key blocks of a key head against ascending query blocks.
//!
//! Scores are computed transposed (keys x queries): probabilities and score gradients come out as the left operands of
//! `dV = P^T dO` and `dK = dS^T Q`, and per-query numbers are row vectors. `dQ^T = K^T dS` is added in turn, key block
//! after key block, into an f32 buffer (`wavefront.rs`). Query rows are heads of tokens, so a group of heads that share
//! keys is one longer head. There are five products, and no score is computed twice.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over the workspace layout below

mod layout;
mod task;

use std::sync::atomic::AtomicU32;

use fathom_tensor::DistanceTerms;

use super::Backward;
use super::bias::Lines;
use super::mask::{self, Cover, Span};
use super::pack::View;
use super::shape::{KEYS, Shape};
use super::softmax::Delta;
use super::unit::Unit;
use super::wavefront::Wavefront;
use super::workspace::{SyncOperands, aligned, padded};
use crate::threads::Threads;
use layout::{Layout, QUERIES};
use task::{Pass, Task};

/// Log-sum-exp, in log2 units, of rows without keys: makes every probability zero.
const NEVER: f32 = 1e30;

/// Bytes of workspace.
pub fn bytes<U: Unit>(_: U, threads: usize, shape: &Shape, slices: usize) -> usize {
    padded(Layout::new::<U>(shape, threads, slices).total)
}

/// The whole pass.
///
/// # Safety
/// See `attention::backward`.
pub unsafe fn run<U: Unit>(_: U, threads: &Threads, op: &Backward<'_>, workspace: *mut u8) {
    let layout = Layout::new::<U>(&op.shape, threads.count(), op.mask.slices.len());
    let (base, wavefront) = (aligned(workspace), Wavefront::default());
    let room = (base.add(layout.lines).cast(), op.shape.heads);
    let terms = op.bias.as_ref().map(|bias| bias.terms(room, 1.0 / op.options.scale, true));
    let pass = Pass { op: *op, layout, base, terms, wavefront };
    pass.spans();
    let shared = SyncOperands::new(&pass);
    threads.run(layout.query_blocks, &|block, _| {
        // SAFETY: each task writes its own hull.
        unsafe { shared.get().hull(block) }
    });
    threads.run(layout.query_blocks * op.shape.kv_heads, &|task, _| {
        // SAFETY: each task writes its own rows.
        unsafe { shared.get().prepare::<U>(task / layout.query_blocks, task % layout.query_blocks) }
    });
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
    pass.collect();
}

impl Pass<'_> {
    unsafe fn at<T>(&self, offset: usize) -> *mut T {
        self.base.add(offset).cast()
    }

    /// Sums of score gradients by distance, of a key head's heads over a key block.
    unsafe fn sums(&self, head: usize, block: usize) -> Lines {
        let span = self.op.shape.span;
        let line = (head * self.layout.key_blocks + block) * self.layout.group;
        Lines { data: self.at::<f32>(self.layout.sums).add(line * Lines::len(span)), span }
    }

    /// Adds the sums of all key blocks, ascending, to the gradient of biases.
    unsafe fn collect(&self) {
        let Some(bias) = self.op.bias.filter(|bias| !bias.gradient.is_null()) else { return };
        let DistanceTerms::Buckets(buckets) = bias.terms else { return };
        for head in 0..self.op.shape.heads {
            let (key_head, inner) = (head / self.layout.group, head % self.layout.group);
            for block in 0..self.layout.key_blocks {
                let sums = self.sums(key_head, block);
                let data = sums.data.add(inner * Lines::len(sums.span));
                Lines { data, ..sums }.collect((&bias, buckets), head);
            }
        }
    }

    /// Query rows of a key head.
    fn rows(&self) -> usize {
        self.op.shape.q_tokens * self.layout.group
    }

    /// Rows of a query block.
    fn block_rows(&self, block: usize) -> usize {
        QUERIES.min(self.rows() - block * QUERIES)
    }

    /// View of the query rows of a key head in some tensor.
    fn queries(&self, data: *const u8, stride: usize, head: usize) -> View {
        let group = self.layout.group;
        self.op.shape.view(data.cast_mut(), stride, self.op.elem, head * group, group)
    }

    /// View of a key head's query rows in `dq`.
    fn query_gradients(&self, head: usize) -> View {
        let (dq, group) = (&self.op.dq, self.layout.group);
        self.op.shape.view(dq.data, dq.stride, dq.elem, head * group, group)
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

    /// Prepares the log-sum-exp and delta of a query block of a key head, and its turn; zeros if it sees no key.
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
        if hull.0 > hull.1 && !op.accumulate {
            let dq = self.query_gradients(head);
            for r in 0..rows {
                std::ptr::write_bytes(dq.row(first + r), 0, op.shape.head_dim * dq.elem.bytes());
            }
        }
    }
}
