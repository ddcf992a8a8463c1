//! A block of C as f32 tiles in a thread's own memory, and the copies between it and C.
#![allow(unsafe_code)]

use super::{Elem, MatMut};
use half::bf16;

/// Tiles of `mr x nr` f32, each contiguous, a column of tiles after the other; they stand for the block of C
/// at (`row`, `col`) with `rows x cols` valid elements.
pub(super) struct Tiles {
    pub ptr: *mut f32,
    pub mr: usize,
    pub nr: usize,
    /// Tiles in a column of tiles.
    pub high: usize,
    pub row: usize,
    pub col: usize,
    pub rows: usize,
    pub cols: usize,
}

impl Tiles {
    /// The tile that is `down` from the top and `across` from the left.
    pub fn one(&self, down: usize, across: usize) -> Tiles {
        let (row, col) = (down * self.mr, across * self.nr);
        Tiles {
            ptr: self.at(row, col),
            high: 1,
            row: self.row + row,
            col: self.col + col,
            rows: self.mr.min(self.rows - row),
            cols: self.nr.min(self.cols - col),
            ..*self
        }
    }

    /// Where the tile that holds block element (`row`, `col`) has that element, `col` being a multiple of nr.
    pub fn at(&self, row: usize, col: usize) -> *mut f32 {
        let tile = (col / self.nr) * self.high + row / self.mr;
        // The offset lies within the block's memory for every valid element.
        self.ptr.wrapping_add(tile * self.mr * self.nr + (row % self.mr) * self.nr)
    }
}

/// Reads C into the tiles.
///
/// # Safety
/// `tiles` is a block inside the matrix `c`, both in memory of their own.
pub(super) unsafe fn load(tiles: &Tiles, c: &MatMut) {
    for row in 0..tiles.rows {
        for col in (0..tiles.cols).step_by(tiles.nr) {
            let width = tiles.nr.min(tiles.cols - col);
            let at = (tiles.row + row) * c.stride + tiles.col + col;
            // SAFETY: `width` elements from (row, col) lie inside both the block and C.
            unsafe {
                let to = std::slice::from_raw_parts_mut(tiles.at(row, col), width);
                match c.elem {
                    Elem::F32 => {
                        to.copy_from_slice(std::slice::from_raw_parts(c.ptr.cast::<f32>().add(at), width))
                    }
                    Elem::Bf16 => {
                        let from = std::slice::from_raw_parts(c.ptr.cast::<bf16>().add(at), width);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
                    }
                }
            }
        }
    }
}

/// Writes the tiles to C, rounding to nearest even for bf16.
///
/// # Safety
/// As [`load`].
pub(super) unsafe fn store(tiles: &Tiles, c: &MatMut) {
    for row in 0..tiles.rows {
        for col in (0..tiles.cols).step_by(tiles.nr) {
            let width = tiles.nr.min(tiles.cols - col);
            let at = (tiles.row + row) * c.stride + tiles.col + col;
            // SAFETY: `width` elements from (row, col) lie inside both the block and C.
            unsafe {
                let from = std::slice::from_raw_parts(tiles.at(row, col), width);
                match c.elem {
                    Elem::F32 => std::slice::from_raw_parts_mut(c.ptr.cast::<f32>().add(at), width)
                        .copy_from_slice(from),
                    Elem::Bf16 => {
                        let to = std::slice::from_raw_parts_mut(c.ptr.cast::<bf16>().add(at), width);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from));
                    }
                }
            }
        }
    }
}
