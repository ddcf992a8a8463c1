//! Packed columns, unpacked for products of many rows: a block of k of sixteen columns.

use super::format::GROUP;

/// Columns of a panel.
pub(super) const COLS: usize = 16;
/// Groups of a panel, with the planes that they have: whole blocks of every type.
pub(super) const DEPTH: usize = 16;
/// Pairs of elements of a group.
pub(super) const STEPS: usize = GROUP / 2;

/// Sixteen columns of f32 of a row.
pub(super) type Tile = [f32; COLS];

/// Codes without their bias, and what they are multiplied with.
#[repr(C, align(64))]
pub(super) struct Panel {
    /// By group, and by plane of a group: of each pair of elements the columns, two each.
    pub codes: [[[[i16; 2]; COLS]; STEPS]; DEPTH],
    /// By group: the factors of its halves, or of all of it the first.
    pub factors: [[Tile; 2]; DEPTH],
    /// By group.
    pub offsets: [Tile; DEPTH],
}

impl Panel {
    /// Room for one.
    pub fn new() -> Panel {
        Panel {
            codes: [[[[0; 2]; COLS]; STEPS]; DEPTH],
            factors: [[[0.0; COLS]; 2]; DEPTH],
            offsets: [[0.0; COLS]; DEPTH],
        }
    }
}
