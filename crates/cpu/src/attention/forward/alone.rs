//! A key block seen by only one strip of rows, as in decoding, where packing costs as much as the products.
//!
//! Only the part that is seen is packed, piece by piece, and each piece is used while it is in the first-level cache.
//! Sums continue from piece to piece, so the bits are those of a block packed as a whole.

use super::super::Rows;
use fathom_tensor::PageFormat;

use super::super::pack::{self, Pack, View};
use super::super::pages::PackedRows;
use super::super::shape::{KEYS, SUB};
use super::super::simd::LANES;
use super::super::unit::Unit;
use super::{Span, Tile};

/// Words of an operand that leave room in the first-level cache for the other operand.
const PART_WORDS: usize = 4096;

impl<U: Unit> Tile<'_, U> {
    /// One strip against one key block.
    pub(super) unsafe fn alone(&self, strip: usize, key: &Span) {
        let Some(strip) = self.strip(strip, key) else { return };
        let (op, layout) = (&self.pass.op, &self.pass.layout);
        let ((start, end), most) = (strip.cols, self.part());
        let parts = (end - start).div_ceil(most);
        for (part, at) in (start..end).step_by(most).enumerate() {
            let keys = (at, end.min(at + most));
            self.ahead(op.k, key, (part, parts));
            let pack = self.part_of(op.k, key, keys);
            U::across(&Pack { to: self.at(layout.k), depth: self.pass.tiling.depth, ..pack });
            self.scores(&strip, keys, self.at(layout.k));
        }
        self.softmax(&strip);
        for (part, at) in (start..end).step_by(most).enumerate() {
            let keys = (at, end.min(at + most));
            self.ahead(op.v, key, (part, parts));
            let (pack, apart) = (self.part_of(op.v, key, keys), (keys.1 - keys.0) / U::STEP * LANES);
            U::along(&Pack { to: self.at(layout.v), depth: apart, ..pack });
            self.add_values(&strip, keys, (self.at(layout.v), apart));
        }
    }

    /// Keys per piece, a multiple of the granule of masked blocks.
    fn part(&self) -> usize {
        // Behind the operand there has to be room for unpacked codes.
        let most = if self.pass.op.mask.format() == PageFormat::Plain { KEYS } else { KEYS / 2 };
        (PART_WORDS / self.pass.tiling.depth / SUB * SUB).clamp(SUB, most)
    }

    /// Keys or values `start..end` of a block for packing; codes are unpacked to elements first.
    unsafe fn part_of(&self, rows: Rows, key: &Span, (start, end): (usize, usize)) -> Pack {
        let (op, depth) = (&self.pass.op, self.pass.tiling.depth);
        let there = (key.end - key.start).clamp(start, end) - start;
        let mut pack = Pack {
            from: self.keys(rows),
            first: op.mask.row(key.start) + start,
            rows: there,
            padded: end - start,
            cols: op.shape.head_dim,
            to: std::ptr::null_mut(),
            depth: 0,
        };
        if op.mask.format() != PageFormat::Plain {
            let to = self.at::<u32>(self.pass.layout.k).add(self.part() * depth).cast();
            U::unpack_pages(&PackedRows {
                from: pack.from,
                first: pack.first,
                rows: there,
                cols: pack.cols,
                format: op.mask.format(),
                elem: op.elem,
                to,
            });
            let row = pack.cols * op.elem.bytes();
            pack.from = View { data: to, stride: row, group: 1, head: row, elem: op.elem };
            pack.first = 0;
        }
        pack
    }

    /// Touches the adjacent keys of all columns in memory order.
    pub(super) unsafe fn touch(&self, key: &Span) {
        let (first, end) = self.columns;
        if end - first > 1 {
            let heads = (end - 1) / self.pass.tiling.splits + 1 - first / self.pass.tiling.splits;
            for rows in [self.pass.op.k, self.pass.op.v] {
                let view = self.keys(rows);
                pack::touch(&view, self.pass.op.mask.row(key.start), key.end - key.start, view.head * heads);
            }
        }
    }

    /// Prefetches a share of the next key block for all columns of the task.
    unsafe fn ahead(&self, rows: Rows, key: &Span, (part, parts): (usize, usize)) {
        let op = &self.pass.op;
        let there = op.shape.k_tokens.saturating_sub(key.end).min(KEYS);
        if there == 0 {
            return;
        }
        let ((first, end), splits) = (self.columns, self.pass.tiling.splits);
        let (view, heads) = (self.of(first).keys(rows), (end - 1) / splits + 1 - first / splits);
        let share = KEYS.div_ceil((end - first) * parts);
        let (next, at) = (op.mask.row(key.end), ((self.column - first) * parts + part) * share);
        pack::prefetch(&view, next + at, share, next + there, view.head * heads);
    }
}
