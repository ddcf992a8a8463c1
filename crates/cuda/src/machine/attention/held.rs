//! Rows of a result that already hold values, so that new ones are merged rather than overwriting them.

use std::ops::Range;

/// Ranges of rows, ascending, with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held(Vec<Range<usize>>);

impl Held {
    /// Merges ranges given in any order.
    pub fn of(ranges: impl IntoIterator<Item = Range<usize>>) -> Held {
        let mut ranges: Vec<Range<usize>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Held(merged)
    }

    /// The ranges, ascending.
    pub fn runs(&self) -> &[Range<usize>] {
        &self.0
    }

    /// The union with `other`.
    pub fn and(&self, other: &Held) -> Held {
        Held::of(self.0.iter().chain(&other.0).cloned())
    }

    /// Splits a range where it enters or leaves the set; each piece with whether it is inside.
    pub fn cut(&self, rows: &Range<usize>) -> Vec<(Range<usize>, bool)> {
        let (mut pieces, mut at) = (Vec::new(), rows.start);
        for run in &self.0 {
            let both = run.start.max(rows.start)..run.end.min(rows.end);
            if both.start >= both.end {
                continue;
            }
            pieces.extend((at < both.start).then_some((at..both.start, false)));
            at = both.end;
            pieces.push((both, true));
        }
        pieces.extend((at < rows.end).then_some((at..rows.end, false)));
        pieces
    }

    /// The parts of `0..rows` outside the set.
    pub fn gaps(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.cut(&(0..rows)).into_iter().filter(|(_, held)| !held).map(|(gap, _)| gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_where_something_begins_to_be_there() {
        let held = Held::of([8..10, 2..4, 4..5, 9..12, 3..3]);
        assert_eq!(held.runs(), [2..5, 8..12]);
        assert_eq!(held.cut(&(0..9)), [(0..2, false), (2..5, true), (5..8, false), (8..9, true)]);
        assert_eq!((held.cut(&(9..11)), held.cut(&(5..8))), (vec![(9..11, true)], vec![(5..8, false)]));
        assert_eq!(held.gaps(14).collect::<Vec<_>>(), [0..2, 5..8, 12..14]);
        let full = held.and(&Held::of([0..8, 12..14]));
        assert_eq!((full.cut(&(0..14)), full.gaps(14).count()), (vec![(0..14, true)], 0));
    }
}
