//! The pieces of a stream that ranks have, for operations that read rows in order and pass states from piece to piece.
//!
//! A piece has tokens of documents that other ranks have tokens of too; a range of whole documents is none.
//!
//! A run is the rows of one document in a piece. A document that spans pieces has one run in each, and the state before a run is what
//! the runs before it make of zero, in the order of the stream, on whichever ranks they are. Gradients of states go the other way.

use std::ops::Range;

use fathom_tensor::mesh::Group;
use fathom_tensor::{Device, DocumentRun, DocumentRuns, RunPlaces};

use super::area::across;
use super::layout::ContextLayout;
use super::part::StreamPart;

/// Most pieces of a rank. Room for as many states is charged, whatever the documents.
pub const PIECES: usize = 8;

/// A piece of the stream.
#[derive(Clone, Debug)]
struct Piece {
    rank: usize,
    /// Its number on the rank.
    place: usize,
    /// Tokens of the stream.
    tokens: Range<usize>,
    /// The document that goes on from the piece before.
    enters: Option<Range<usize>>,
    /// The document that goes on in the piece after.
    leaves: Option<Range<usize>>,
}

/// A map of a piece, which some of this rank's pieces need.
#[derive(Clone, Debug)]
pub(crate) struct PieceMap {
    /// The rank that has it.
    pub rank: usize,
    /// Its place there.
    pub place: usize,
    /// Places of own pieces.
    pub into: Vec<usize>,
}

/// Maps of states, or of gradients of states, on their way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    /// Ranks that need maps of own places, in the order in which they are applied.
    pub give: Vec<(usize, usize)>,
    /// The maps that this rank needs, in that order.
    pub take: Vec<PieceMap>,
}

/// Rows before a piece, which its first rows read.
#[derive(Clone, Debug)]
pub(crate) struct Seam {
    /// The first rows of the piece, on this rank.
    pub own: Range<usize>,
    /// The same rows among those of seams.
    pub at: Range<usize>,
    /// Rows before them: the rank that has them, its rows, and their places among those of seams.
    pub before: Vec<(usize, Range<usize>, Range<usize>)>,
}

/// The rows on both sides of the beginnings of pieces.
pub(crate) struct Seams {
    /// Most rows before a row that an operation reads with it.
    pub reach: usize,
    /// One run for each seam.
    pub documents: DocumentRuns,
    /// Seams of this rank's pieces whose document begins before them.
    pub own: Vec<Seam>,
    /// Own rows that other ranks need.
    pub give: Vec<(usize, Range<usize>)>,
}

impl Seams {
    /// Number of rows; there is room for [`Seams::most`].
    pub fn rows(&self) -> usize {
        self.own.last().map_or(0, |seam| seam.at.end)
    }

    /// Most rows that there can be.
    pub fn most(&self) -> usize {
        PIECES * 2 * self.reach
    }
}

/// The pieces of all ranks, seen by this one.
pub(crate) struct Pieces {
    /// The ranks.
    pub group: Group,
    /// Runs whose document begins before their piece.
    pub before: RunPlaces,
    /// Runs whose document goes on after their piece.
    pub after: RunPlaces,
    /// States forward, gradients of states backward.
    pub ways: [Way; 2],
    /// Exchanges of convolutions.
    pub seams: Seams,
}

/// The runs of a rank, charged at `docs` documents.
pub(super) fn own_runs(device: &Device, layout: &ContextLayout, rank: usize, docs: usize) -> DocumentRuns {
    DocumentRuns::new(device, runs(layout, rank), docs + PIECES)
}

/// Its runs, which begin with their rows of a piece.
fn runs(layout: &ContextLayout, rank: usize) -> Vec<DocumentRun> {
    let (mut runs, mut start) = (Vec::new(), 0);
    for piece in layout.ranges(rank) {
        for (document, rows) in layout.docs().iter().enumerate() {
            let (from, to) = (rows.start.max(piece.start), rows.end.min(piece.end));
            if from < to {
                let rows = start + from - piece.start..start + to - piece.start;
                runs.push(DocumentRun { rows, document, offset: 0 });
            }
        }
        start += piece.len();
    }
    runs
}

/// All pieces, in the order of the stream.
fn all(layout: &ContextLayout) -> Vec<Piece> {
    let border = |at: usize| across(layout.docs(), at).cloned();
    let of_rank = |rank: usize| {
        let borders =
            layout.ranges(rank).iter().map(|tokens| (tokens, border(tokens.start), border(tokens.end)));
        let shared = borders.filter(|(_, enters, leaves)| enters.is_some() || leaves.is_some());
        let piece = |(place, (tokens, enters, leaves)): (usize, (&Range<usize>, _, _))| Piece {
            rank,
            place,
            tokens: tokens.clone(),
            enters,
            leaves,
        };
        shared.enumerate().map(piece).collect::<Vec<_>>()
    };
    let mut pieces: Vec<Piece> = (0..layout.cp()).flat_map(of_rank).collect();
    pieces.sort_by_key(|piece| piece.tokens.start);
    pieces
}

/// The maps of `pieces`, in this order, and who needs them.
fn way<'a>(
    pieces: impl Iterator<Item = &'a Piece> + Clone,
    rank: usize,
    needs: impl Fn(&Piece, &Piece) -> bool,
) -> Way {
    let mut way = Way::default();
    for piece in pieces.clone() {
        let needed = pieces.clone().filter(|other| needs(other, piece));
        let mut ranks: Vec<usize> = needed.clone().map(|other| other.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        if piece.rank == rank {
            let others = ranks.iter().filter(|other| **other != rank);
            way.give.extend(others.map(|other| (*other, piece.place)));
        }
        if ranks.contains(&rank) {
            let into = needed.filter(|other| other.rank == rank).map(|other| other.place).collect();
            way.take.push(PieceMap { rank: piece.rank, place: piece.place, into });
        }
    }
    way
}

/// The seams of a rank: the first rows of its pieces and those before them.
fn seams_of(layout: &ContextLayout, pieces: &[Piece], rank: usize, reach: usize) -> Vec<Seam> {
    let parts: Vec<StreamPart> = (0..layout.cp()).map(|rank| layout.part(&[rank])).collect();
    let mut end = 0;
    let mut seams = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.rank == rank) {
        let Some(doc) = &piece.enters else { continue };
        let begin = piece.tokens.start;
        let halo = doc.start.max(begin.saturating_sub(reach))..begin;
        let first = begin..(begin + reach).min(doc.end).min(piece.tokens.end);
        let mut before = Vec::new();
        for other in pieces {
            let tokens = other.tokens.start.max(halo.start)..other.tokens.end.min(halo.end);
            if !tokens.is_empty() {
                let at = end + tokens.start - halo.start..end + tokens.end - halo.start;
                before.push((other.rank, parts[other.rank].rows(&tokens), at));
            }
        }
        let at = end + halo.len()..end + halo.len() + first.len();
        end = at.end;
        seams.push(Seam { own: parts[rank].rows(&first), at, before });
    }
    seams
}

impl Pieces {
    /// The pieces seen by a rank of the group, for operations that read at most `reach` rows before a row. Runs are charged at `docs`
    /// documents.
    ///
    /// # Panics
    /// If a rank has more than [`PIECES`].
    #[track_caller]
    pub(super) fn new(
        device: &Device,
        group: Group,
        layout: &ContextLayout,
        reach: usize,
        docs: usize,
    ) -> Pieces {
        let rank = group.index();
        let (pieces, runs, part) = (all(layout), runs(layout, rank), layout.part(&[rank]));
        let most = pieces.iter().map(|piece| piece.place + 1).max().unwrap_or(0);
        assert!(most <= PIECES, "context: {most} pieces of a rank, and at most {PIECES} are charged");
        let (mut before, mut after) = (vec![None; runs.len()], vec![None; runs.len()]);
        for piece in pieces.iter().filter(|piece| piece.rank == rank) {
            let Range { start, end } = part.rows(&piece.tokens);
            let run = |row: usize| runs.iter().position(|run| run.rows.contains(&row));
            if let (Some(run), Some(_)) = (run(start), &piece.enters) {
                before[run] = Some(piece.place);
            }
            if let (Some(run), Some(_)) = (run(end - 1), &piece.leaves) {
                after[run] = Some(piece.place);
            }
        }
        let earlier = |of: &Piece, other: &Piece| {
            let enters = of.enters.as_ref();
            enters.is_some_and(|doc| doc.start < other.tokens.end && other.tokens.end <= of.tokens.start)
        };
        let later = |of: &Piece, other: &Piece| {
            let leaves = of.leaves.as_ref();
            leaves.is_some_and(|doc| other.tokens.start < doc.end && of.tokens.end <= other.tokens.start)
        };
        let ways = [way(pieces.iter(), rank, earlier), way(pieces.iter().rev(), rank, later)];
        let own = seams_of(layout, &pieces, rank, reach);
        let mut give = Vec::new();
        for other in (0..layout.cp()).filter(|other| *other != rank) {
            let of_other = seams_of(layout, &pieces, other, reach);
            let needed = of_other.iter().flat_map(|seam| &seam.before).filter(|(from, ..)| *from == rank);
            give.extend(needed.map(|(_, rows, _)| (other, rows.clone())));
        }
        let run = |seam: &Seam| {
            let start = seam.before.first().map_or(seam.at.start, |(.., at)| at.start);
            DocumentRun { rows: start..seam.at.end, document: 0, offset: 0 }
        };
        let documents = DocumentRuns::new(device, own.iter().map(run).collect(), PIECES);
        let [before, after] = [before, after].map(|places| RunPlaces::new(device, places, docs + PIECES));
        Pieces { group, before, after, ways, seams: Seams { reach, documents, own, give } }
    }

    /// Everything on which work without data depends.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let mut sizes = vec![self.seams.reach as u64, self.seams.rows() as u64, self.seams.give.len() as u64];
        for way in &self.ways {
            sizes.push(way.give.len() as u64);
            sizes.extend(way.take.iter().flat_map(|taken| [taken.rank as u64, taken.into.len() as u64]));
        }
        sizes.extend(self.seams.give.iter().map(|(_, rows)| rows.len() as u64));
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::LayoutSizes;
    use super::*;

    fn layout(docs: &[Range<usize>], cp: usize) -> ContextLayout {
        let tokens = docs.last().unwrap().end;
        let cut =
            LayoutSizes { tokens, cp, chunk: tokens, windows: &[None], dynamic: None, pieces: Some(PIECES) };
        ContextLayout::new(docs, &cut).unwrap()
    }

    fn ways(layout: &ContextLayout, rank: usize) -> [Vec<(usize, usize)>; 2] {
        let pieces = all(layout);
        let earlier = |of: &Piece, other: &Piece| {
            of.enters
                .as_ref()
                .is_some_and(|doc| doc.start < other.tokens.end && other.tokens.end <= of.tokens.start)
        };
        let forward = way(pieces.iter(), rank, earlier);
        [forward.give, forward.take.iter().map(|taken| (taken.rank, taken.place)).collect()]
    }

    #[test]
    fn states_go_along_documents_alone() {
        let whole = 0..64;
        let zigzag = layout(std::slice::from_ref(&whole), 2);
        assert_eq!(zigzag.ranges(0), [0..16, 48..64]);
        // Rank 1 has the middle, which needs the first piece and is needed by the last.
        assert_eq!(ways(&zigzag, 0), [vec![(1, 0)], vec![(0, 0), (1, 0)]]);
        assert_eq!(ways(&zigzag, 1), [vec![(0, 0)], vec![(0, 0)]]);
        // The first document ends with its piece, so that no rank needs its state.
        let packed = layout(&[0..16, 16..64], 2);
        assert_eq!(packed.ranges(0), [0..16, 48..64]);
        assert_eq!(ways(&packed, 0), [vec![], vec![(1, 0)]]);
        assert_eq!(ways(&packed, 1), [vec![(0, 0)], vec![]]);
    }

    #[test]
    fn seams_have_the_rows_before_a_piece_of_its_document() {
        let docs = [0..30, 30..64];
        let layout = layout(&docs, 2);
        let pieces = all(&layout);
        for rank in 0..2 {
            for seam in seams_of(&layout, &pieces, rank, 3) {
                let tokens: Vec<usize> = layout.take(rank, &(0..64).collect::<Vec<_>>());
                let first = tokens[seam.own.start];
                let doc = docs.iter().find(|doc| doc.contains(&first)).unwrap();
                let before: usize = seam.before.iter().map(|(_, rows, _)| rows.len()).sum();
                assert_eq!(before, 3.min(first - doc.start));
                assert_eq!(seam.own.len(), 3.min(doc.end - first));
            }
        }
    }
}
