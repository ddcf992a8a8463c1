//! Layout of a tensor's elements in its extent: pure functions of shape, codec and piece size.
//!
//! An extent is a sequence of pieces at equal distances, each a whole number of pages, so that workers can write them
//! in any order with direct IO. `near` positions count the bytes of the tensor's elements row by row without gaps,
//! `far` positions the bytes of the extent.

use std::ops::Range;

use super::space::{self, PAGE};
use crate::{DType, Tensor};

/// Storage format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Codec {
    /// The elements' own bytes.
    #[default]
    AsIs,
    /// f32 or bf16 in blocks of 128 columns, each an f32 scale (largest magnitude / 448) and one e4m3 code per element.
    /// Blocks restart in each row, so the codes do not depend on how rows are cut into tiles. The error of an element
    /// is at most 1/16 of its magnitude or 1/1024 of its block's scale; infinities are read back as NaN.
    Fp8Block,
}

/// Columns per block.
pub(super) const BLOCK: u64 = 128;
/// Bytes of a block's scale.
pub(super) const SCALE: u64 = 4;

impl Codec {
    /// Bytes of the stored elements of rows x cols, without the padding between pieces and at the end.
    ///
    /// # Panics
    /// If the codec does not support the type.
    #[track_caller]
    pub fn bytes(self, rows: usize, cols: usize, dtype: DType) -> u64 {
        Layout::new(self, rows, cols, dtype, PAGE).far_of_row(rows as u64)
    }

    /// Bytes of the file charged for rows x cols when pieces have `piece_bytes` ([`super::Options::piece_bytes`]).
    ///
    /// # Panics
    /// If the codec does not support the type.
    #[track_caller]
    pub fn charge(self, rows: usize, cols: usize, dtype: DType, piece_bytes: u64) -> u64 {
        space::charge(Layout::new(self, rows, cols, dtype, piece_bytes).extent_bytes())
    }
}

/// A tensor's shape laid out in an extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub codec: Codec,
    pub dtype: DType,
    pub rows: u64,
    pub cols: u64,
    /// Most bytes of a piece, near or far; whole pages.
    piece: u64,
}

/// Unit of work for one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes of the part of the tensor that is transferred.
    pub near: Range<u64>,
    /// Bytes of the extent.
    pub far: Range<u64>,
    /// Blocks of the whole stored value (only for [`Codec::Fp8Block`]).
    pub blocks: Range<u64>,
}

impl Layout {
    #[track_caller]
    pub fn new(codec: Codec, rows: usize, cols: usize, dtype: DType, piece: u64) -> Layout {
        let fits = codec == Codec::AsIs || matches!(dtype, DType::F32 | DType::Bf16);
        assert!(fits, "spill: {codec:?} takes f32 and bf16, not {dtype:?}[{rows}, {cols}]");
        Layout { codec, dtype, rows: rows as u64, cols: cols as u64, piece }
    }

    #[track_caller]
    pub fn of(codec: Codec, tensor: &Tensor, piece: u64) -> Layout {
        Layout::new(codec, tensor.rows(), tensor.cols(), tensor.dtype(), piece)
    }

    fn elem(&self) -> u64 {
        self.dtype.bytes() as u64
    }

    /// Blocks per row.
    pub fn row_blocks(&self) -> u64 {
        self.cols.div_ceil(BLOCK)
    }

    /// Columns of a block.
    pub fn width(&self, block: u64) -> u64 {
        (self.cols - block % self.row_blocks() * BLOCK).min(BLOCK)
    }

    /// Stored bytes before row `row`, without padding.
    fn far_of_row(&self, row: u64) -> u64 {
        match self.codec {
            Codec::AsIs => row * self.cols * self.elem(),
            Codec::Fp8Block => row * (self.cols + SCALE * self.row_blocks()),
        }
    }

    /// Stored bytes before a block, without padding.
    fn far_of(&self, block: u64) -> u64 {
        let (row, in_row) = (block / self.row_blocks(), block % self.row_blocks());
        self.far_of_row(row) + in_row * (BLOCK + SCALE)
    }

    /// Bytes of the elements before a block.
    fn near_of(&self, block: u64) -> u64 {
        let (row, in_row) = (block / self.row_blocks(), block % self.row_blocks());
        (row * self.cols + in_row * BLOCK) * self.elem()
    }

    /// Blocks per piece and the distance from one piece to the next: whole rows if a row fits.
    fn piece_blocks(&self) -> (u64, u64) {
        let width = self.cols.min(BLOCK);
        let most = (self.piece / (width * self.elem()).max(width + SCALE)).max(1);
        match most / self.row_blocks() * self.row_blocks() {
            0 => (most, (most * (BLOCK + SCALE)).next_multiple_of(PAGE)),
            rows => (rows, self.far_of(rows).next_multiple_of(PAGE)),
        }
    }

    /// Size of the extent, including the padding between pieces.
    pub fn extent_bytes(&self) -> u64 {
        let blocks = self.rows * self.row_blocks();
        match self.codec {
            Codec::AsIs => self.far_of_row(self.rows),
            Codec::Fp8Block if blocks == 0 => 0,
            Codec::Fp8Block => {
                let (per_piece, step) = self.piece_blocks();
                let last = (blocks - 1) / per_piece;
                last * step + self.far_of(blocks) - self.far_of(last * per_piece)
            }
        }
    }

    /// Bytes that a transfer of these rows moves, without padding.
    pub fn moved_bytes(&self, rows: &Range<u64>) -> u64 {
        self.far_of_row(rows.end) - self.far_of_row(rows.start)
    }

    /// The pieces of these rows, in ascending order; near positions count from the first of the rows.
    pub fn cut(&self, rows: Range<u64>) -> Vec<Piece> {
        if rows.is_empty() || self.cols == 0 {
            return Vec::new();
        }
        match self.codec {
            Codec::AsIs => self.cut_bytes(rows),
            Codec::Fp8Block => self.cut_blocks(rows),
        }
    }

    fn cut_bytes(&self, rows: Range<u64>) -> Vec<Piece> {
        let (first, end) = (self.far_of_row(rows.start), self.far_of_row(rows.end));
        let mut pieces = Vec::new();
        let mut at = first;
        while at < end {
            let next = ((at / self.piece + 1) * self.piece).min(end);
            pieces.push(Piece { near: at - first..next - first, far: at..next, blocks: 0..0 });
            at = next;
        }
        pieces
    }

    fn cut_blocks(&self, rows: Range<u64>) -> Vec<Piece> {
        let (first, end) = (rows.start * self.row_blocks(), rows.end * self.row_blocks());
        let (per_piece, step) = self.piece_blocks();
        let mut pieces = Vec::new();
        let mut at = first;
        while at < end {
            let piece = at / per_piece;
            let next = ((piece + 1) * per_piece).min(end);
            let (near, far) = (
                |block| self.near_of(block) - self.near_of(first),
                |block| piece * step + self.far_of(block) - self.far_of(piece * per_piece),
            );
            pieces.push(Piece { near: near(at)..near(next), far: far(at)..far(next), blocks: at..next });
            at = next;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once_and_share_no_page() {
        let codecs =
            [(Codec::AsIs, DType::U8), (Codec::Fp8Block, DType::F32), (Codec::Fp8Block, DType::Bf16)];
        for (codec, dtype) in codecs {
            for cols in [1, 7, 127, 128, 129, 200, 256, 3000, 9000, 40000] {
                for rows in [1, 2, 5, 33, 700] {
                    for piece in [PAGE, 2 * PAGE, 16 * PAGE] {
                        check(&Layout::new(codec, rows, cols, dtype, piece));
                    }
                }
            }
        }
    }

    fn check(layout: &Layout) {
        let pieces = layout.cut(0..layout.rows);
        let (mut near, mut far) = (0, 0);
        for piece in &pieces {
            assert_eq!(piece.near.start, near, "{layout:?}");
            assert_eq!(piece.far.start % PAGE, 0, "{layout:?}");
            assert!(piece.far.start >= far && piece.far.start < far + PAGE, "{layout:?} {piece:?}");
            let sizes = [&piece.near, &piece.far].map(|range| range.end - range.start);
            assert!(sizes.iter().all(|size| (1..=layout.piece).contains(size)), "{layout:?} {piece:?}");
            (near, far) = (piece.near.end, piece.far.end.next_multiple_of(PAGE));
        }
        let (end, moved) = pieces.last().map_or((0, 0), |last| {
            (last.far.end, pieces.iter().map(|piece| piece.far.end - piece.far.start).sum::<u64>())
        });
        assert_eq!(near, layout.rows * layout.cols * layout.elem(), "{layout:?}");
        assert_eq!(
            (end, moved),
            (layout.extent_bytes(), layout.moved_bytes(&(0..layout.rows))),
            "{layout:?}"
        );
    }

    #[test]
    fn sizes() {
        let page = 4096;
        assert_eq!(Codec::AsIs.bytes(3, 5, DType::Bf16), 30);
        assert_eq!(Codec::AsIs.charge(3, 5, DType::Bf16, page), 4096);
        assert_eq!(Codec::Fp8Block.bytes(2, 130, DType::F32), 2 * (130 + 2 * 4));
        assert_eq!(Codec::Fp8Block.bytes(4096, 1024, DType::Bf16), 4096 * (1024 + 8 * 4));
        assert_eq!(Codec::Fp8Block.charge(0, 130, DType::F32, page), 0);
    }

    #[test]
    #[should_panic(expected = "takes f32 and bf16, not I32[2, 3]")]
    fn codes_are_for_floats() {
        Codec::Fp8Block.bytes(2, 3, DType::I32);
    }
}
