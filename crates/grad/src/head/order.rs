//! The order in which a head processes its tokens, if ranks share them.

use fathom_tensor::{DType, Machine};

use super::Head;
use crate::graph::Spread;
use crate::tiles;

impl Head {
    /// The tokens in the order of the head, which its labels, weights and losses have: stream order, except that with
    /// rows shared among tensor parallel ranks (`spread`) each tile has the first rank's tokens first. `tile_rows` is
    /// that of the segments, `vocab` the number of the weight's rows on one rank.
    ///
    /// # Panics
    /// If the ranks cannot share the tokens of a tile.
    #[track_caller]
    pub fn order(
        machine: &dyn Machine,
        vocab: usize,
        dtype: DType,
        tokens: usize,
        spread: Spread,
        tile_rows: Option<usize>,
    ) -> Vec<usize> {
        let share = spread.share();
        let rows = tokens / share;
        let by_rank = Head::by_rank(tokens, spread, tile_rows);
        let tile = Head::gradient_rows(machine, vocab, dtype) / share;
        let tiles = tiles::all(rows, tile.max(1));
        tiles
            .flat_map(|tile| {
                (0..share).flat_map(move |rank| tile.clone().map(move |row| (rank, row))).collect::<Vec<_>>()
            })
            .map(|(rank, row)| by_rank[rank * rows + row])
            .collect()
    }

    /// The tokens in the order of the rows of the first of the ranks that share them, then of the second, and so on:
    /// block by block (tiles of the segments), the rank's part of each block.
    ///
    /// # Panics
    /// If the ranks cannot share the tokens of a tile.
    #[track_caller]
    pub fn by_rank(tokens: usize, spread: Spread, tile_rows: Option<usize>) -> Vec<usize> {
        let share = spread.share();
        let block = tile_rows.unwrap_or(tokens).clamp(1, tokens.max(1));
        let fits = tokens.is_multiple_of(share) && block.is_multiple_of(share);
        assert!(fits, "head: {tokens} tokens in tiles of {block} cannot be shared by {share} ranks");
        let token = |rank: usize, row: usize| {
            let (index, at) = (row / (block / share), row % (block / share));
            let here = (tokens - index * block).min(block) / share;
            index * block + rank * here + at
        };
        (0..share).flat_map(|rank| (0..tokens / share).map(move |row| token(rank, row))).collect()
    }
}
