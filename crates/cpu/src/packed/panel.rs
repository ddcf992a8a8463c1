//! Columns unpacked for products of many rows: sixteen columns of a block of k.

use super::format::GROUP;

/// Columns per panel.
pub(super) const COLS: usize = 16;
/// Groups per panel, counting planes: whole blocks of every type.
pub(super) const DEPTH: usize = 16;
/// Pairs of elements per group.
pub(super) const STEPS: usize = GROUP / 2;

/// Sixteen columns of f32 of a row.
pub(super) type Tile = [f32; COLS];

/// Codes without their bias, and their factors.
#[repr(C, align(64))]
pub(super) struct Panel {
    /// By group and plane: the columns of each pair of elements, two numbers each.
    pub codes: [[[[i16; 2]; COLS]; STEPS]; DEPTH],
    /// By group: the factors of its halves, or the first for all of it.
    pub factors: [[Tile; 2]; DEPTH],
    /// Offsets, by group.
    pub offsets: [Tile; DEPTH],
}

impl Panel {
    /// An empty panel.
    pub fn new() -> Panel {
        Panel {
            codes: [[[[0; 2]; COLS]; STEPS]; DEPTH],
            factors: [[[0.0; COLS]; 2]; DEPTH],
            offsets: [[0.0; COLS]; DEPTH],
        }
    }
}
