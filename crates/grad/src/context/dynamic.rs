//! Documents on as few ranks as balance allows: dynamic context parallelism (Megatron's `hybrid_context_parallel`),
//! with a degree for each document.
//!
//! All ranks have equally many tokens. A document whose mask area exceeds a rank's share is cut into two chunks for
//! each rank that it needs, one from its front and one from its back. Shorter documents stay whole, the largest first,
//! on the rank with the least area so far, and the last of them fill the remaining room. If a rank then has too much
//! work, the limit above which documents are cut is halved, until every document is on every rank.

use std::cmp::Reverse;
use std::ops::Range;

use super::area::{LayoutSizes, across, area_of};
use super::part::StreamPart;

/// Accepted relative excess of work over the mean, for the sake of fewer transfers.
const TOLERATED: f64 = 0.02;

/// Some tokens of one document, as ranges.
#[derive(Clone, Debug)]
struct Share {
    rows: Vec<Range<usize>>,
    tokens: usize,
    area: u64,
}

impl Share {
    fn new(rows: Vec<Range<usize>>, area: impl Fn(&Range<usize>) -> u64) -> Share {
        let rows: Vec<Range<usize>> = rows.into_iter().filter(|range| !range.is_empty()).collect();
        Share { tokens: rows.iter().map(Range::len).sum(), area: rows.iter().map(area).sum(), rows }
    }

    /// Splits off the first tokens.
    fn split(self, tokens: usize, area: impl Fn(&Range<usize>) -> u64 + Copy) -> [Share; 2] {
        let (mut left, mut front, mut back) = (tokens, Vec::new(), Vec::new());
        for range in self.rows {
            let middle = range.start + range.len().min(left);
            left -= middle - range.start;
            front.push(range.start..middle);
            back.push(middle..range.end);
        }
        [front, back].map(|rows| Share::new(rows, area))
    }
}

/// The tokens of a rank so far.
#[derive(Clone, Debug, Default)]
struct Hand {
    rows: Vec<Range<usize>>,
    area: u64,
    room: usize,
}

impl Hand {
    fn take(&mut self, share: Share) {
        self.area += share.area;
        self.room -= share.tokens;
        self.rows.extend(share.rows);
    }
}

/// Distributes one stream.
struct Dealer<'a> {
    cut: &'a LayoutSizes<'a>,
    /// Documents, and the ranges between them, with their areas.
    parts: Vec<(Range<usize>, u64)>,
    /// Total area.
    area: u64,
}

/// The ranges of each rank; `None` if ranks would share documents in more pieces than are possible. A token is as much work as `token`
/// pairs.
pub(super) fn deal(
    docs: &[Range<usize>],
    cut: &LayoutSizes<'_>,
    token: u64,
) -> Option<Vec<Vec<Range<usize>>>> {
    let mut parts = Vec::new();
    let mut end = 0;
    for doc in docs.iter().filter(|doc| !doc.is_empty()) {
        parts.push((end..doc.start, 0));
        parts.push((doc.clone(), area_of(doc, doc.start, cut.windows)));
        end = doc.end;
    }
    parts.push((end..cut.tokens, 0));
    parts.retain(|(rows, _)| !rows.is_empty());
    parts.sort_by_key(|(rows, area)| (Reverse(*area), rows.start));
    let area = parts.iter().map(|(_, area)| area).sum();
    let dealer = Dealer { cut, parts, area };
    let mut best: Option<(Vec<Vec<Range<usize>>>, f64)> = None;
    let shared = |rows: &[Range<usize>]| {
        rows.iter().filter(|rows| [rows.start, rows.end].iter().any(|at| across(docs, *at).is_some())).count()
    };
    // In the end no document exceeds a thousandth of the mean.
    for halvings in 0..10 {
        let hands = dealer.deal(1 << halvings);
        let excess = dealer.excess(&hands, token);
        let ranks = hands.into_iter().map(|hand| StreamPart::new(hand.rows).ranges().to_vec());
        let ranks: Vec<Vec<Range<usize>>> = ranks.collect();
        if cut.pieces.is_some_and(|most| ranks.iter().any(|rows| shared(rows) > most)) {
            continue;
        }
        if best.as_ref().is_none_or(|(_, least)| excess < *least) {
            best = Some((ranks, excess));
        }
        if best.as_ref().is_some_and(|(_, least)| *least <= TOLERATED) {
            break;
        }
    }
    best.map(|(ranks, _)| ranks)
}

impl Dealer<'_> {
    /// Relative excess of the fullest hand's work over the mean.
    fn excess(&self, hands: &[Hand], token: u64) -> f64 {
        let cp = hands.len() as f64;
        let most = hands.iter().map(|hand| hand.area).max().unwrap_or(0) as f64;
        let kinds = self.cut.windows.len().max(1) as f64;
        let mean = self.area as f64 / cp;
        let work = mean + token as f64 * kinds * self.cut.tokens as f64 / cp;
        if work == 0.0 { 0.0 } else { (most - mean) / work }
    }

    /// Distributes the documents; those above `1 / parting` of a rank's area, or longer than a rank's tokens, are cut.
    fn deal(&self, parting: u64) -> Vec<Hand> {
        let cp = self.cut.cp;
        let room = self.cut.tokens / cp;
        let mut hands = vec![Hand { room, ..Hand::default() }; cp];
        let wanted = |rows: &Range<usize>, area: u64| -> usize {
            let by_area =
                (u128::from(area) * u128::from(parting) * cp as u128).div_ceil(u128::from(self.area.max(1)));
            (by_area as usize).max(rows.len().div_ceil(room.max(1))).clamp(1, cp)
        };
        let (long, short): (Vec<_>, Vec<_>) =
            self.parts.iter().partition(|(rows, area)| wanted(rows, *area) > 1);
        for (rows, area) in long {
            self.part(&mut hands, rows, wanted(rows, *area));
        }
        for (rows, _) in short {
            let area = |range: &Range<usize>| area_of(range, rows.start, self.cut.windows);
            self.place(&mut hands, Share::new(vec![rows.clone()], area), &area, &[]);
        }
        hands
    }

    /// Gives two chunks of a document to each of `ranks` ranks: one from its front and one from its back.
    fn part(&self, hands: &mut [Hand], rows: &Range<usize>, ranks: usize) {
        let area = |range: &Range<usize>| area_of(range, rows.start, self.cut.windows);
        let edge = |chunk: usize| rows.start + rows.len() * chunk / (2 * ranks);
        let chunk = |at: usize| edge(at)..edge(at + 1);
        let mut taken = Vec::new();
        for share in 0..ranks {
            let share = Share::new(vec![chunk(share), chunk(2 * ranks - 1 - share)], area);
            let to = self.place(hands, share, &area, &taken);
            taken.extend(to);
        }
    }

    /// Gives a share to the rank with the least area that has room for it and is not one of `others`; if none has, in
    /// pieces to those with the most room. Returns the rank that got the whole.
    fn place(
        &self,
        hands: &mut [Hand],
        mut share: Share,
        area: &dyn Fn(&Range<usize>) -> u64,
        others: &[usize],
    ) -> Option<usize> {
        while share.tokens > 0 {
            let fits = |rank: &usize| hands[*rank].room >= share.tokens && !others.contains(rank);
            if let Some(rank) = (0..hands.len()).filter(fits).min_by_key(|rank| (hands[*rank].area, *rank)) {
                hands[rank].take(share);
                return Some(rank);
            }
            let roomiest = (0..hands.len()).max_by_key(|rank| (hands[*rank].room, Reverse(*rank)))?;
            let tokens = hands[roomiest].room.min(share.tokens);
            let [front, back] = share.split(tokens, area);
            hands[roomiest].take(front);
            share = back;
        }
        None
    }
}
