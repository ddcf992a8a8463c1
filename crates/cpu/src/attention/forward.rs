//! The forward pass: a task is a tile of query rows against ascending key blocks.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over the workspace layout below

mod alone;
mod bias;
mod tiling;

use fathom_tensor::{DType, PageFormat};

use super::bias::Terms;
use super::mask::{self, Bits, Cover, Edge, Span};
use super::pack::{self, Pack, View};
use super::pages::PackedRows;
use super::product::Product;
use super::scores::Scores;
use super::shape::{KEYS, SUB, Shape};
use super::simd::LANES;
use super::softmax::{Finish, MASK_WORDS, NONE, Resume, Softmax};
use super::unit::Unit;
use super::workspace::{SyncOperands, aligned, padded};
use super::{Forward, Rows};
use crate::threads::Threads;
use tiling::{Layout, Tiling};

/// Rows of keys and of values that a strip prefetches.
const PREFETCH: usize = 8;

/// Bytes of workspace.
pub fn bytes<U: Unit>(_: U, threads: usize, shape: &Shape, slices: usize) -> usize {
    // The actual mask may have fewer slices.
    let total = |of: usize| Layout::new(shape, &Tiling::new::<U>(shape, threads, of), threads, slices).total;
    padded(total(slices).max(total(0)))
}

/// The whole pass.
///
/// # Safety
/// See `attention::forward`.
pub unsafe fn run<U: Unit>(_: U, threads: &Threads, op: &Forward<'_>, workspace: *mut u8) {
    let shape = &op.shape;
    let tiling = Tiling::new::<U>(shape, threads.count(), op.mask.slices.len());
    let layout = Layout::new(shape, &tiling, threads.count(), op.mask.slices.len());
    let base = aligned(workspace);
    let spans = base.add(layout.spans).cast::<Span>();
    let blocks = shape.k_tokens.div_ceil(KEYS);
    for block in 0..blocks {
        let start = block * KEYS;
        spans.add(block).write(Span::of(op.mask.pos_k, start, (start + KEYS).min(shape.k_tokens)));
    }
    let room = (base.add(layout.lines).cast(), shape.heads);
    // Scores are scaled with their biases.
    let terms = op.bias.as_ref().map(|bias| bias.terms(room, 1.0 / op.options.scale, false));
    let pass = SyncOperands::new(Pass {
        op: *op,
        terms,
        tiling,
        spans: std::slice::from_raw_parts(spans, blocks),
        base: base.add(layout.threads),
        layout,
    });
    let columns = (shape.kv_heads * tiling.splits).div_ceil(tiling.columns);
    threads.run(columns * tiling.tiles, &|task, thread| {
        let pass = pass.get();
        // The last tokens first: under a causal mask they are the longest tasks.
        let (tile, column) = (tiling.tiles - 1 - task / columns, task % columns);
        // SAFETY: tasks write disjoint rows of the outputs, threads have disjoint slots.
        unsafe {
            U::begin();
            Tile::<U>::new(pass, thread, tile, column).compute();
            U::end();
        }
    });
}

struct Pass<'a> {
    pub(crate) op: Forward<'a>,
    terms: Option<Terms>,
    tiling: Tiling,
    spans: &'a [Span],
    pub(super) base: *mut u8,
    pub(crate) layout: Layout,
}

/// One tile of one column, and the memory of the thread that computes it.
struct Tile<'a, U: Unit> {
    pass: &'a Pass<'a>,
    slot: *mut u8,
    /// Columns of the task: the first, one past the last, and the current one.
    columns: (usize, usize),
    column: usize,
    /// First query head, heads, and their key head.
    head: usize,
    heads: usize,
    key_head: usize,
    /// Tokens of the tile.
    tokens: Span,
    /// Rows: heads of tokens.
    rows: usize,
    list: &'a [u32],
    unit: std::marker::PhantomData<U>,
}

/// Rows of a tile that go through the score block together, and the part of the key block they see.
struct Strip {
    first: usize,
    rows: usize,
    cols: (usize, usize),
    /// Mask bits of the rows; null if every pair attends.
    mask: *const u16,
    /// First key of the block, and one past its last.
    keys: (usize, usize),
}

impl<'a, U: Unit> Tile<'a, U> {
    unsafe fn new(pass: &'a Pass<'a>, thread: usize, tile: usize, task: usize) -> Tile<'a, U> {
        let (op, tiling) = (&pass.op, &pass.tiling);
        let slot = pass.base.add(thread * pass.layout.slot);
        let start = tile * tiling.tokens;
        let tokens = Span::of(op.mask.pos_q, start, (start + tiling.tokens).min(op.shape.q_tokens));
        let every = Span { start: 0, end: op.shape.k_tokens, least: i32::MIN, most: i32::MAX };
        let list = mask::touching(op.mask.slices, &tokens, &every, slot.add(pass.layout.list).cast());
        let first = task * tiling.columns;
        let columns = (first, (first + tiling.columns).min(op.shape.kv_heads * tiling.splits));
        let unit = std::marker::PhantomData;
        let tile = Tile {
            pass,
            slot,
            columns,
            column: first,
            head: 0,
            heads: 0,
            key_head: 0,
            tokens,
            rows: 0,
            list,
            unit,
        };
        tile.of(first)
    }

    /// This tile for another column.
    fn of(&self, column: usize) -> Tile<'a, U> {
        let (group, tiling) = (self.pass.op.shape.group(), &self.pass.tiling);
        let (key_head, split) = (column / tiling.splits, column % tiling.splits);
        let heads = tiling.heads.min(group - split * tiling.heads);
        Tile {
            column,
            head: key_head * group + split * tiling.heads,
            heads,
            key_head,
            rows: (self.tokens.end - self.tokens.start) * heads,
            ..*self
        }
    }

    /// Storage for a column's state between key blocks: `size` values per row.
    unsafe fn kept<T>(&self, offset: usize, size: usize) -> *mut T {
        self.at::<T>(offset).add((self.column - self.columns.0) * self.pass.tiling.rows() * size)
    }

    unsafe fn at<T>(&self, offset: usize) -> *mut T {
        self.slot.add(offset).cast()
    }

    /// Index of this tile's first row in the views below.
    fn first_row(&self) -> usize {
        self.tokens.start * self.heads
    }

    fn queries(&self, rows: Rows) -> View {
        let op = &self.pass.op;
        op.shape.view(rows.data.cast_mut(), rows.stride, op.elem, self.head, self.heads)
    }

    fn outputs(&self) -> View {
        let op = &self.pass.op;
        op.shape.view(op.out.data, op.out.stride, op.out.elem, self.head, self.heads)
    }

    /// Log-sum-exps of this tile's first head; null if not wanted.
    fn lse(&self) -> *mut f32 {
        let lse = self.pass.op.lse;
        if lse.is_null() { lse } else { lse.wrapping_add(self.head) }
    }

    fn keys(&self, rows: Rows) -> View {
        let op = &self.pass.op;
        match op.mask.format() {
            PageFormat::Plain => op.shape.view(rows.data.cast_mut(), rows.stride, op.elem, self.key_head, 1),
            // Strides are in bytes for packed formats.
            format => {
                let head = format.head_bytes(op.shape.head_dim, DType::F32);
                let data = rows.data.cast_mut().wrapping_add(self.key_head * head);
                View { data, stride: rows.stride, group: 1, head, elem: op.elem }
            }
        }
    }

    unsafe fn compute(&self) {
        for column in self.columns.0..self.columns.1 {
            self.of(column).start();
        }
        let mut near = [0; mask::NEAR];
        for key in self.pass.spans {
            let list = mask::near(self.pass.op.mask.slices, self.list, (&self.tokens, key), &mut near);
            if !list.is_empty() {
                self.touch(key);
                for column in self.columns.0..self.columns.1 {
                    Tile { list, ..self.of(column) }.key_block(key);
                }
            }
        }
        for column in self.columns.0..self.columns.1 {
            self.of(column).finish();
        }
    }

    /// Packs the queries; no key has been seen yet, except those of an earlier call.
    unsafe fn start(&self) {
        let (op, layout, tiling) = (&self.pass.op, &self.pass.layout, &self.pass.tiling);
        U::rows(&Pack {
            from: self.queries(op.q),
            first: self.first_row(),
            rows: self.rows,
            padded: self.rows.next_multiple_of(U::ROWS),
            cols: op.shape.head_dim,
            to: self.kept(layout.q, tiling.depth),
            depth: tiling.depth,
        });
        let rows = tiling.rows();
        std::ptr::write_bytes(self.kept::<f32>(layout.o, tiling.width), 0, rows * tiling.width);
        std::ptr::write_bytes(self.kept::<f32>(layout.l, LANES), 0, rows * LANES);
        std::slice::from_raw_parts_mut(self.kept::<f32>(layout.m, 1), rows).fill(NONE);
        if op.resume {
            U::resume(&Resume {
                out: self.outputs(),
                lse: self.lse(),
                heads: op.shape.heads,
                first: self.first_row(),
                rows: self.rows,
                cols: op.shape.head_dim,
                m: self.kept(layout.m, 1),
                l: self.kept(layout.l, LANES),
                o: self.kept(layout.o, tiling.width),
                ldo: tiling.width,
            });
        }
    }

    /// All strips against one key block; the block is packed when the first strip needs it.
    unsafe fn key_block(&self, key: &Span) {
        let strips = self.rows.div_ceil(SUB);
        let sees = |strip: &usize| {
            mask::cover(self.pass.op.mask.slices, self.list, &self.span(*strip), key) != Cover::None
        };
        let mut seeing = (0..strips).filter(sees);
        match (seeing.next(), seeing.next()) {
            (None, _) => return,
            (Some(strip), None) => return self.alone(strip, key),
            _ => {}
        }
        let mut packed = false;
        for index in 0..strips {
            let Some(strip) = self.strip(index, key) else { continue };
            if !packed {
                self.pack_keys(key);
                packed = true;
            }
            self.prefetch(key, index, strips);
            self.attend(&strip);
        }
    }

    /// Prefetches a share of the next key block while one strip of many computes.
    unsafe fn prefetch(&self, key: &Span, strip: usize, strips: usize) {
        let op = &self.pass.op;
        // A few rows at a time: a longer burst would stall the products.
        let last = strips.min(KEYS / PREFETCH);
        let share = KEYS / last;
        if self.columns.1 - self.columns.0 == 1 && strip + last >= strips {
            let strip = strip + last - strips;
            let there = op.shape.k_tokens.saturating_sub(key.end).min(KEYS);
            let next = if there == 0 { 0 } else { op.mask.row(key.end) };
            for rows in [op.k, op.v] {
                let view = self.keys(rows);
                pack::prefetch(&view, next + strip * share, share, next + there, view.head);
            }
        }
    }

    /// The tokens of a strip.
    fn span(&self, index: usize) -> Span {
        let (first, end) = (index * SUB, (index * SUB + SUB).min(self.rows));
        let start = self.tokens.start;
        Span::of(self.pass.op.mask.pos_q, start + first / self.heads, start + end.div_ceil(self.heads))
    }

    /// The part of the key block that a strip sees; fills the mask bits unless it is all.
    unsafe fn strip(&self, index: usize, key: &Span) -> Option<Strip> {
        let op = &self.pass.op;
        let first = index * SUB;
        let rows = SUB.min(self.rows - first);
        let whole = key.end - key.start == KEYS;
        match mask::cover(op.mask.slices, self.list, &self.span(index), key) {
            Cover::None => return None,
            Cover::All if whole => {
                let (cols, keys) = ((0, KEYS), (key.start, key.end));
                return Some(Strip { first, rows, cols, mask: std::ptr::null(), keys });
            }
            Cover::All | Cover::Some => {}
        }
        let to = self.at::<u16>(self.pass.layout.bits);
        U::bits(&Bits {
            rows: Edge { first: self.first_row() + first, rows, group: self.heads, pos: op.mask.pos_q },
            cols: Edge { first: key.start, rows: key.end - key.start, group: 1, pos: op.mask.pos_k },
            rows_are_queries: true,
            slices: op.mask.slices,
            list: self.list,
            to,
        });
        let cols = mask::extent(to, rows);
        // Skips rows of other sequences, which see nothing of the block. A product takes whole multiples of rows, so
        // all of those get probabilities.
        let seeing = mask::attending(to, rows);
        let skipped = seeing.start / U::ROWS * U::ROWS;
        let (first, rows) = (first + skipped, rows.min(seeing.end.next_multiple_of(U::ROWS)) - skipped);
        let (mask, keys) = (to.wrapping_add(skipped * MASK_WORDS), (key.start, key.end));
        (cols.0 < cols.1).then_some(Strip { first, rows, cols, mask, keys })
    }

    unsafe fn pack_keys(&self, key: &Span) {
        let (op, layout, tiling) = (&self.pass.op, &self.pass.layout, &self.pass.tiling);
        let mut pack = Pack {
            from: self.keys(op.k),
            first: op.mask.row(key.start),
            rows: key.end - key.start,
            padded: KEYS,
            cols: op.shape.head_dim,
            to: self.at(layout.k),
            depth: tiling.depth,
        };
        if op.mask.format() != PageFormat::Plain {
            return self.unpack_keys(pack);
        }
        U::across(&pack);
        pack.from = self.keys(op.v);
        pack.to = self.at(layout.v);
        pack.depth = KEYS / U::STEP * LANES;
        U::along(&pack);
    }

    /// The same for quantized keys: a few rows at a time are converted to the queries' type, in the memory used for
    /// scores later.
    unsafe fn unpack_keys(&self, keys: Pack) {
        let (op, layout, tiling) = (&self.pass.op, &self.pass.layout, &self.pass.tiling);
        let (plain, row) = (self.at::<u8>(layout.s), op.shape.head_dim * op.elem.bytes());
        // Scores and probabilities are adjacent.
        let step = (2 * SUB * KEYS * 4 / row / LANES * LANES).clamp(LANES, KEYS);
        let values =
            Pack { from: self.keys(op.v), to: self.at(layout.v), depth: KEYS / U::STEP * LANES, ..keys };
        for (from, is_key) in [(keys.from, true), (values.from, false)] {
            for start in (0..KEYS).step_by(step) {
                let padded = step.min(KEYS - start);
                let rows = keys.rows.saturating_sub(start).min(padded);
                U::unpack_pages(&PackedRows {
                    from,
                    first: keys.first + start,
                    rows,
                    cols: op.shape.head_dim,
                    format: op.mask.format(),
                    elem: op.elem,
                    to: plain,
                });
                let from = View { data: plain, stride: row, group: 1, head: row, elem: op.elem };
                if is_key {
                    let to = keys.to.add(start * tiling.depth);
                    U::across(&Pack { from, first: 0, rows, padded, to, ..keys });
                } else {
                    let to = values.to.add(start / U::STEP * LANES);
                    U::along(&Pack { from, first: 0, rows, padded, to, ..values });
                }
            }
        }
    }

    unsafe fn attend(&self, strip: &Strip) {
        let (layout, start) = (&self.pass.layout, strip.cols.0);
        self.scores(strip, strip.cols, self.at::<u32>(layout.k).add(start * self.pass.tiling.depth));
        self.softmax(strip);
        let values = self.at::<u32>(layout.v).add(start / U::STEP * LANES);
        self.add_values(strip, strip.cols, (values, KEYS / U::STEP * LANES));
    }

    /// Scores of the keys `start..end` of the block, packed in operand `keys`.
    unsafe fn scores(&self, strip: &Strip, (start, end): (usize, usize), keys: *const u32) {
        let depth = self.pass.tiling.depth;
        U::product(&Product {
            a: self.kept::<u32>(self.pass.layout.q, depth).add(strip.first * depth),
            lda: depth,
            b: keys,
            ldb: LANES * depth,
            depth,
            c: self.at::<f32>(self.pass.layout.s).add(start),
            ldc: KEYS,
            rows: strip.rows.next_multiple_of(U::ROWS),
            panels: (end - start) / LANES,
            add: false,
        });
    }

    unsafe fn softmax(&self, strip: &Strip) {
        let (layout, width) = (&self.pass.layout, self.pass.tiling.width);
        if let Some(terms) = self.pass.terms {
            self.bias(strip, terms);
        }
        U::softmax(&Softmax {
            s: self.at(layout.s),
            p: self.at(layout.p),
            ldp: KEYS / U::STEP,
            rows: strip.rows,
            cols: strip.cols,
            m: self.kept::<f32>(layout.m, 1).add(strip.first),
            l: self.kept::<f32>(layout.l, LANES).add(strip.first * LANES),
            o: self.kept::<f32>(layout.o, width).add(strip.first * width),
            ldo: width,
            scores: Scores::of(&self.pass.op.options),
            mask: strip.mask,
        });
    }

    /// Adds the values of the keys `start..end` of the block, from an operand with a given number of words between
    /// panels.
    unsafe fn add_values(
        &self,
        strip: &Strip,
        (start, end): (usize, usize),
        (values, apart): (*const u32, usize),
    ) {
        let (layout, width) = (&self.pass.layout, self.pass.tiling.width);
        U::product(&Product {
            a: self.at::<u32>(layout.p).add(start / U::STEP),
            lda: KEYS / U::STEP,
            b: values,
            ldb: apart,
            depth: (end - start) / U::STEP,
            c: self.kept::<f32>(layout.o, width).add(strip.first * width),
            ldc: width,
            rows: strip.rows.next_multiple_of(U::ROWS),
            panels: width / LANES,
            add: true,
        });
    }

    unsafe fn finish(&self) {
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        U::finish(&Finish {
            m: self.kept(layout.m, 1),
            l: self.kept(layout.l, LANES),
            o: self.kept(layout.o, self.pass.tiling.width),
            ldo: self.pass.tiling.width,
            rows: self.rows,
            cols: op.shape.head_dim,
            first: self.first_row(),
            out: self.outputs(),
            lse: self.lse(),
            heads: op.shape.heads,
            sinks: op.sinks.map_or(std::ptr::null(), |s| s[self.head..].as_ptr()),
        });
    }
}
