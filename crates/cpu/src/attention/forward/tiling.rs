//! Partition of the forward pass, and its workspace.

use super::super::bias::Lines;
use super::super::mask::Span;
use super::super::shape::{KEYS, SUB, Shape};
use super::super::simd::LANES;
use super::super::softmax::MASK_WORDS;
use super::super::unit::Unit;
use super::super::workspace::Carve;

/// Largest number of rows (heads of tokens) in a tile.
const TILE_ROWS: usize = 512;
/// Elements per key of adjacent heads: a block of such keys, and of values, takes 512 KiB in f32.
const SIDE_BY_SIDE: usize = 512;
/// Largest number of heads whose rows share a tile.
const TILE_HEADS: usize = 16;

/// Partition of the work. Results do not depend on it.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    /// Heads and tokens of a tile.
    pub heads: usize,
    pub tokens: usize,
    /// Tiles along the heads of a group, and along the tokens.
    pub splits: usize,
    pub tiles: usize,
    /// Columns (a key head with one split of its group) of a task.
    pub columns: usize,
    /// Words of a head, f32 of an output row.
    pub depth: usize,
    pub width: usize,
}

impl Tiling {
    /// Tiling for a mask with this many slices.
    pub fn new<U: Unit>(shape: &Shape, threads: usize, slices: usize) -> Tiling {
        if Tiling::reads_once(shape, slices) {
            return Tiling::of_sequences::<U>(shape, threads);
        }
        let splits = shape.group().div_ceil(TILE_HEADS);
        let heads = shape.group().div_ceil(splits);
        // Queries and outputs of a tile take at most 400 KiB of L2; more rows share one packing of the keys.
        let mut rows = match shape.head_dim {
            0..=128 => TILE_ROWS,
            _ => TILE_ROWS / 2,
        };
        // With few rows in total, smaller tiles give every thread some.
        while rows > SUB && shape.q_tokens * shape.heads / rows < 3 * threads {
            rows /= 2;
        }
        let tokens = (rows / heads).max(1);
        let tiles = shape.q_tokens.div_ceil(tokens);
        // Few queries read many keys once: a task has adjacent key heads, so that memory is read in long runs.
        let few = tiles == 1 && shape.q_tokens * heads <= SUB;
        let columns = if few { (shape.kv_heads * splits).div_ceil(threads) } else { 1 };
        Tiling { heads, tokens, splits, tiles, columns, ..Tiling::widths::<U>(shape) }
    }

    fn widths<U: Unit>(shape: &Shape) -> Tiling {
        Tiling {
            heads: 1,
            tokens: 1,
            splits: 1,
            tiles: 1,
            columns: 1,
            depth: shape.head_dim.div_ceil(U::STEP).next_multiple_of(U::DEPTH),
            width: shape.head_dim.next_multiple_of(LANES),
        }
    }

    /// True if most queries are from different sequences, as in generation: each key is read for only one of them.
    fn reads_once(shape: &Shape, slices: usize) -> bool {
        2 * slices > shape.q_tokens && shape.q_tokens * shape.group() > SUB
    }

    /// Tasks with one strip of tokens and as many adjacent key heads as there is room for, so that memory is read in
    /// long runs, and once.
    fn of_sequences<U: Unit>(shape: &Shape, threads: usize) -> Tiling {
        let splits = shape.group().div_ceil(TILE_HEADS);
        let heads = shape.group().div_ceil(splits);
        let tokens = (SUB / heads).max(1);
        let (tiles, all) = (shape.q_tokens.div_ceil(tokens), shape.kv_heads * splits);
        // The outer caches hold a block's keys and values of this many heads.
        let room = (SIDE_BY_SIDE / shape.head_dim).max(1);
        let columns = room.min(all.div_ceil((2 * threads).div_ceil(tiles)));
        Tiling { heads, tokens, splits, tiles, columns, ..Tiling::widths::<U>(shape) }
    }

    /// Rows of a tile, with padding.
    pub fn rows(&self) -> usize {
        (self.heads * self.tokens).next_multiple_of(SUB)
    }
}

/// Offsets into the workspace.
pub(super) struct Layout {
    pub spans: usize,
    pub lines: usize,
    pub threads: usize,
    pub slot: usize,
    pub q: usize,
    pub o: usize,
    pub m: usize,
    pub l: usize,
    pub s: usize,
    pub p: usize,
    pub k: usize,
    pub v: usize,
    pub bits: usize,
    pub list: usize,
    pub total: usize,
}

impl Layout {
    pub fn new(shape: &Shape, tiling: &Tiling, threads: usize, slices: usize) -> Layout {
        let mut shared = Carve::default();
        let spans = shared.take::<Span>(shape.k_tokens.div_ceil(KEYS));
        let lines = shared.take::<f32>(shape.heads * Lines::len(shape.span));
        let mut own = Carve::default();
        let state = tiling.rows() * tiling.columns;
        let mut layout = Layout {
            spans,
            lines,
            threads: shared.bytes(),
            slot: 0,
            q: own.take::<u32>(state * tiling.depth),
            o: own.take::<f32>(state * tiling.width),
            m: own.take::<f32>(state),
            l: own.take::<f32>(state * LANES),
            s: own.take::<f32>(SUB * KEYS),
            p: own.take::<u32>(SUB * KEYS),
            k: own.take::<u32>(KEYS * tiling.depth),
            v: own.take::<u32>(KEYS * tiling.width),
            bits: own.take::<u16>(SUB * MASK_WORDS),
            list: own.take::<u32>(slices),
            total: 0,
        };
        layout.slot = own.bytes();
        layout.total = layout.threads + layout.slot * threads;
        layout
    }
}
