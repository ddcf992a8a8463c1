//! Biases of a strip's scores.

use super::super::bias::{BiasBlock, Terms};
use super::super::mask::Edge;
use super::super::unit::Unit;
use super::{Strip, Tile};

impl<U: Unit> Tile<'_, U> {
    /// Adds biases to a strip's scores.
    pub(super) unsafe fn bias(&self, strip: &Strip, terms: Terms) {
        let mask = &self.pass.op.mask;
        let first = self.first_row() + strip.first;
        U::add_bias(&BiasBlock {
            s: self.at(self.pass.layout.s),
            rows: Edge { first, rows: strip.rows, group: self.heads, pos: mask.pos_q },
            cols: Edge { first: strip.keys.0, rows: strip.keys.1 - strip.keys.0, group: 1, pos: mask.pos_k },
            range: strip.cols,
            terms: terms.at_head(self.head),
        });
    }
}
