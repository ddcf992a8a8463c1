//! A tile of C as f32 in a thread's own memory, and copies between it and C.
#![allow(unsafe_code)]

use super::{Elem, MatMut};
use half::bf16;

/// A tile with rows of `width` f32; it holds the `rows x cols` elements of C from (`row`, `col`) on.
pub(super) struct Tile {
    pub ptr: *mut f32,
    pub width: usize,
    pub row: usize,
    pub col: usize,
    pub rows: usize,
    pub cols: usize,
    /// True if C is large and better written with non-temporal stores.
    pub stream: bool,
}

/// Reads C into the tile.
///
/// # Safety
/// The tile is a block inside the matrix `c`, and their memory is disjoint.
pub(super) unsafe fn load(tile: &Tile, c: &MatMut) {
    for row in 0..tile.rows {
        let at = (tile.row + row) * c.stride + tile.col;
        // SAFETY: `cols` elements from there are inside both the tile's row and C.
        unsafe {
            let to = std::slice::from_raw_parts_mut(tile.ptr.add(row * tile.width), tile.cols);
            match c.elem {
                Elem::F32 => {
                    to.copy_from_slice(std::slice::from_raw_parts(c.ptr.cast::<f32>().add(at), tile.cols))
                }
                Elem::Bf16 => {
                    let from = std::slice::from_raw_parts(c.ptr.cast::<bf16>().add(at), tile.cols);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
                }
            }
        }
    }
}

/// Writes the tile to C, rounding to nearest even for bf16.
///
/// # Safety
/// See [`load`].
pub(super) unsafe fn store(tile: &Tile, c: &MatMut) {
    for row in 0..tile.rows {
        let at = (tile.row + row) * c.stride + tile.col;
        // SAFETY: `cols` elements from there are inside both the tile's row and C.
        unsafe {
            let from = std::slice::from_raw_parts(tile.ptr.add(row * tile.width), tile.cols);
            match c.elem {
                Elem::F32 => std::slice::from_raw_parts_mut(c.ptr.cast::<f32>().add(at), tile.cols)
                    .copy_from_slice(from),
                Elem::Bf16 => {
                    let to = std::slice::from_raw_parts_mut(c.ptr.cast::<bf16>().add(at), tile.cols);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16::from_f32(*from));
                }
            }
        }
    }
}
