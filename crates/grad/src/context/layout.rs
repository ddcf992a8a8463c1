//! Distribution of a packed stream over ranks, with equally many tokens and equally many attending pairs.
//!
//! The stream is cut into chunks. The mask area of a chunk is the number of pairs of its queries with any key. Chunks
//! are dealt in rounds, largest first, one to each rank, the largest of a round to the rank with the least area so far:
//! for one causal document this is the zigzag (Megatron's 2 x cp chunks, where rank r has r and 2 cp - 1 - r).
//! Remaining differences are reduced by exchanges between the fullest rank and the emptiest; if that does not suffice
//! (the first tokens under a sliding window attend to less, and there may be as many such chunks as ranks), chunks are
//! halved. Nothing is padded.

use std::cmp::Reverse;
use std::ops::Range;

use fathom_tensor::DocumentRun;

use super::area::{LayoutSizes, area_of};
use super::part::StreamPart;
use super::{area, dynamic};

/// Number of exchanges tried per rank.
const EXCHANGES: usize = 16;
/// Chunks are halved while the largest area exceeds the mean by this much...
const TOO_MUCH: f64 = 0.008;
/// ...and have at least this many tokens afterwards: a block of the kernels.
pub(super) const SMALLEST: usize = 128;

/// The tokens of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextLayout {
    tokens: usize,
    docs: Vec<Range<usize>>,
    ranks: Vec<Vec<Range<usize>>>,
    dynamic: bool,
}

/// A range of tokens with the mask area of their queries.
#[derive(Clone, Debug)]
struct Chunk {
    rows: Range<usize>,
    area: u64,
}

impl ContextLayout {
    /// Distributes a stream of documents, which are ascending ranges that attend only among themselves.
    ///
    /// # Errors
    /// If the tokens are not a multiple of the ranks; the message has the nearest multiples.
    ///
    /// # Panics
    /// If documents overlap, do not ascend or leave the stream.
    #[track_caller]
    pub fn new(docs: &[Range<usize>], cut: &LayoutSizes<'_>) -> Result<ContextLayout, String> {
        let LayoutSizes { tokens, cp, .. } = *cut;
        if cp == 0 || !tokens.is_multiple_of(cp) {
            let (less, more) = (tokens / cp.max(1) * cp, tokens.next_multiple_of(cp.max(1)));
            return Err(format!(
                "{tokens} tokens cannot be dealt to cp={cp} ranks evenly; {less} or {more} can"
            ));
        }
        let ends = docs.iter().scan(0, |end, doc| Some(doc.start >= std::mem::replace(end, doc.end)));
        let ascend = ends.zip(docs).all(|(after, doc)| after && doc.start <= doc.end && doc.end <= tokens);
        assert!(ascend, "context: documents {docs:?} of {tokens} tokens");
        let ranks = match cut.dynamic {
            _ if cp == 1 => vec![whole(tokens)],
            Some(token) => dynamic::deal(docs, cut, token).unwrap_or_else(|| balance(docs, cut)),
            None => balance(docs, cut),
        };
        Ok(ContextLayout { tokens, docs: docs.to_vec(), ranks, dynamic: cut.dynamic.is_some() })
    }

    /// Number of tokens of the stream.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of ranks.
    pub fn cp(&self) -> usize {
        self.ranks.len()
    }

    /// True if only keys that are attended to are sent.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.dynamic
    }

    /// Number of tokens per rank.
    pub fn rank_tokens(&self) -> usize {
        self.tokens / self.cp()
    }

    /// The documents.
    pub fn docs(&self) -> &[Range<usize>] {
        &self.docs
    }

    /// A rank's ranges of the stream, ascending, with gaps between them.
    pub fn ranges(&self, rank: usize) -> &[Range<usize>] {
        &self.ranks[rank]
    }

    /// A rank's part of one value per token of the stream.
    ///
    /// # Panics
    /// If the number of values differs from that of tokens.
    #[track_caller]
    pub fn take<T: Copy>(&self, rank: usize, values: &[T]) -> Vec<T> {
        assert_eq!(values.len(), self.tokens, "context: values of the stream");
        let mut own = Vec::with_capacity(self.rank_tokens());
        self.ranges(rank).iter().for_each(|rows| own.extend_from_slice(&values[rows.clone()]));
        own
    }

    /// The documents as rows of the stream.
    pub fn document_runs(&self) -> Vec<DocumentRun> {
        let run = |(document, rows): (usize, &Range<usize>)| DocumentRun {
            rows: rows.clone(),
            document,
            offset: 0,
        };
        self.docs.iter().enumerate().filter(|(_, rows)| !rows.is_empty()).map(run).collect()
    }

    /// Pairs that a rank's queries attend to, within a window if given.
    pub fn area(&self, rank: usize, window: Option<usize>) -> u64 {
        let within = |rows: &Range<usize>, doc: &Range<usize>| {
            area::of_queries(rows.start.max(doc.start)..rows.end.min(doc.end), doc.start, window)
        };
        let of = |rows: &Range<usize>| -> u64 {
            let first = self.docs.partition_point(|doc| doc.end <= rows.start);
            self.docs[first..]
                .iter()
                .take_while(|doc| doc.start < rows.end)
                .map(|doc| within(rows, doc))
                .sum()
        };
        self.ranges(rank).iter().map(of).sum()
    }

    /// Ratio of a rank's largest area to the mean; 1 if no token attends to any.
    pub fn imbalance(&self, window: Option<usize>) -> f64 {
        let areas: Vec<u64> = (0..self.cp()).map(|rank| self.area(rank, window)).collect();
        let (most, sum) = (areas.iter().copied().max().unwrap_or(0), areas.iter().sum::<u64>());
        if sum == 0 { 1.0 } else { most as f64 * self.cp() as f64 / sum as f64 }
    }

    /// The tokens of some ranks.
    pub(crate) fn part(&self, ranks: &[usize]) -> StreamPart {
        StreamPart::new(ranks.iter().flat_map(|rank| self.ranges(*rank)).cloned().collect())
    }
}

fn whole(tokens: usize) -> Vec<Range<usize>> {
    if tokens == 0 { Vec::new() } else { std::iter::once(0..tokens).collect() }
}

/// Equal chunks, and those with the rest.
fn chunks(docs: &[Range<usize>], cut: &LayoutSizes<'_>) -> [Vec<Chunk>; 2] {
    let own = cut.tokens / cut.cp;
    let size = cut.chunk;
    let (whole, rest) = (own / size * cut.cp, own % size);
    let tail = whole * size;
    let mut first = 0;
    let mut chunk = |rows: Range<usize>| {
        while docs.get(first).is_some_and(|doc| doc.end <= rows.start) {
            first += 1;
        }
        let here = docs[first..].iter().take_while(|doc| doc.start < rows.end);
        let of = |doc: &Range<usize>| {
            area_of(&(rows.start.max(doc.start)..rows.end.min(doc.end)), doc.start, cut.windows)
        };
        let area = here.map(of).sum();
        Chunk { rows, area }
    };
    let equal = (0..whole).map(|at| chunk(at * size..(at + 1) * size)).collect();
    let last = (0..cut.cp).filter(|_| rest > 0);
    let rests = last.map(|at| chunk(tail + at * rest..tail + (at + 1) * rest)).collect();
    [equal, rests]
}

/// The chunks of a rank: those of equal size, largest area first, and the others.
#[derive(Clone, Debug, Default)]
struct Hand {
    area: u64,
    equal: Vec<Chunk>,
    rest: Vec<Chunk>,
}

/// Distributes chunks, smaller ones if needed.
fn balance(docs: &[Range<usize>], cut: &LayoutSizes<'_>) -> Vec<Vec<Range<usize>>> {
    let own = cut.tokens / cut.cp;
    // A rank may have one smaller chunk.
    let least = cut.pieces.map_or(1, |most| own.div_ceil((most - 1).max(1)));
    let mut chunk = cut.chunk.min(own.div_ceil(2)).max(least).max(1);
    let mut best = deal(docs, &LayoutSizes { chunk, ..*cut });
    while excess(&best) > TOO_MUCH && chunk / 2 >= SMALLEST.max(least) {
        chunk /= 2;
        let hands = deal(docs, &LayoutSizes { chunk, ..*cut });
        if excess(&hands) < excess(&best) {
            best = hands;
        }
    }
    let rows = |hand: Hand| hand.equal.into_iter().chain(hand.rest).map(|chunk| chunk.rows).collect();
    best.into_iter().map(|hand| StreamPart::new(rows(hand)).ranges().to_vec()).collect()
}

/// Relative excess of the fullest hand over the mean.
fn excess(hands: &[Hand]) -> f64 {
    let (most, sum) = hands.iter().fold((0, 0), |(most, sum), hand| (hand.area.max(most), sum + hand.area));
    if sum == 0 { 0.0 } else { most as f64 * hands.len() as f64 / sum as f64 - 1.0 }
}

fn deal(docs: &[Range<usize>], cut: &LayoutSizes<'_>) -> Vec<Hand> {
    let mut hands = vec![Hand::default(); cut.cp];
    let [equal, rest] = chunks(docs, cut);
    for (mut chunks, are_rest) in [(rest, true), (equal, false)] {
        chunks.sort_by_key(|chunk| Reverse((chunk.area, chunk.rows.start)));
        for round in chunks.chunks(cut.cp) {
            let mut order: Vec<usize> = (0..cut.cp).collect();
            order.sort_by_key(|rank| (hands[*rank].area, *rank));
            for (rank, chunk) in order.into_iter().zip(round) {
                let hand = &mut hands[rank];
                hand.area += chunk.area;
                if are_rest { hand.rest.push(chunk.clone()) } else { hand.equal.push(chunk.clone()) }
            }
        }
    }
    for _ in 0..EXCHANGES * cut.cp {
        if !exchange(&mut hands) {
            break;
        }
    }
    hands
}

/// One exchange between the fullest hand and the emptiest; false if none would bring them closer.
fn exchange(hands: &mut [Hand]) -> bool {
    let full = (0..hands.len()).max_by_key(|rank| (hands[*rank].area, Reverse(*rank))).unwrap_or(0);
    let empty = (0..hands.len()).min_by_key(|rank| (hands[*rank].area, *rank)).unwrap_or(0);
    let gap = hands[full].area - hands[empty].area;
    // One part in two thousand is below what any machine can measure.
    if gap <= hands[full].area / 2000 {
        return false;
    }
    let mut best: Option<(u64, usize, usize)> = None;
    for (give, chunk) in hands[full].equal.iter().enumerate() {
        // The area that would move `gap / 2` from one to the other.
        let wanted = chunk.area.saturating_sub(gap / 2);
        let at = hands[empty].equal.partition_point(|other| other.area > wanted);
        for take in at.saturating_sub(1)..(at + 1).min(hands[empty].equal.len()) {
            let other = hands[empty].equal[take].area;
            if other < chunk.area && chunk.area - other < gap {
                let left = gap.abs_diff(2 * (chunk.area - other));
                best = best.into_iter().chain([(left, give, take)]).min();
            }
        }
    }
    let Some((_, give, take)) = best else { return false };
    let (given, taken) = (hands[full].equal.remove(give), hands[empty].equal.remove(take));
    for (rank, out, into) in [(full, given.area, taken.clone()), (empty, taken.area, given)] {
        let hand = &mut hands[rank];
        hand.area = hand.area - out + into.area;
        let at = hand.equal.partition_point(|other| other.area > into.area);
        hand.equal.insert(at, into);
    }
    true
}
