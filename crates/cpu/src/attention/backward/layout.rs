//! Layout of a backward pass's workspace.

use std::sync::atomic::AtomicU32;

use super::super::bias::Lines;
use super::super::mask::Span;
use super::super::shape::{KEYS, SUB, Shape};
use super::super::simd::LANES;
use super::super::softmax::MASK_WORDS;
use super::super::unit::Unit;
use super::super::wavefront::Order;
use super::super::workspace::Carve;

/// Sizes and offsets; `own` offsets are within a thread's slot.
#[derive(Clone, Copy)]
pub struct Layout {
    pub order: Order,
    pub key_blocks: usize,
    /// Key blocks per task.
    pub blocks: usize,
    pub query_blocks: usize,
    pub group: usize,
    /// Words per head; f32 per gradient row; rows of `dQ^T`; words of 128 rows as inner dimension.
    pub depth: usize,
    pub width: usize,
    pub turned: usize,
    pub words: usize,
    pub key_spans: usize,
    pub query_spans: usize,
    pub hulls: usize,
    pub turns: usize,
    pub done: usize,
    pub lse2: usize,
    pub delta: usize,
    pub dq: usize,
    /// Lines of biases, and those of their gradients for each key block of each key head.
    pub lines: usize,
    pub sums: usize,
    pub threads: usize,
    pub slot: usize,
    pub own: Own,
    pub total: usize,
}

#[derive(Clone, Copy)]
pub struct Own {
    pub k: usize,
    pub v: usize,
    pub kt: usize,
    pub q: usize,
    pub dout: usize,
    pub q_along: usize,
    pub dout_along: usize,
    pub s: usize,
    pub dp: usize,
    pub p: usize,
    pub ds: usize,
    pub ds_turned: usize,
    pub dk: usize,
    pub dv: usize,
    pub bits: usize,
    pub list: usize,
}

impl Layout {
    /// The layout of one call.
    pub fn new<U: Unit>(shape: &Shape, threads: usize, slices: usize) -> Layout {
        let key_blocks = shape.k_tokens.div_ceil(KEYS);
        let query_blocks = (shape.q_tokens * shape.group()).div_ceil(QUERIES);
        let depth = shape.head_dim.div_ceil(U::STEP).next_multiple_of(U::DEPTH);
        let width = shape.head_dim.next_multiple_of(LANES);
        let turned = width.next_multiple_of(U::ROWS);
        let words = KEYS / U::STEP;
        // More key blocks share one packing of the queries, as long as L2 holds their gradients.
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
            lines: all.take::<f32>(shape.heads * Lines::len(shape.span)),
            sums: all.take::<f32>(key_blocks * shape.heads * Lines::len(shape.span)),
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
                p: own.take::<u32>(SUB * words),
                ds: own.take::<u32>(SUB * words),
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

/// Largest number of key blocks per task.
pub(super) const BLOCKS: usize = 4;

/// Query rows per block.
pub(super) const QUERIES: usize = KEYS;
