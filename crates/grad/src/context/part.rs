//! Tokens of some ranks together, as rows in stream order.
//!
//! A document is one range of the stream, so its tokens are one range of any part's rows too: between two parts, one
//! slice per document describes the attention, whatever the chunks.

use std::ops::Range;

use fathom_tensor::Slice;

/// Ranges of the stream, ascending, with gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamPart {
    ranges: Vec<Range<usize>>,
    /// The first row of each range, and the number of rows.
    rows: Vec<usize>,
}

impl StreamPart {
    /// From ranges that do not overlap, in any order.
    pub fn new(mut ranges: Vec<Range<usize>>) -> StreamPart {
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range),
            }
        }
        let mut rows = vec![0];
        rows.extend(merged.iter().scan(0, |row, range| {
            *row += range.len();
            Some(*row)
        }));
        StreamPart { ranges: merged, rows }
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows[self.ranges.len()]
    }

    /// Number of rows before a token of the stream.
    pub fn before(&self, token: usize) -> usize {
        let at = self.ranges.partition_point(|range| range.end <= token);
        let inside = self.ranges.get(at).map_or(0, |range| token.saturating_sub(range.start));
        self.rows[at] + inside
    }

    /// The rows of some tokens of the stream.
    pub fn rows(&self, tokens: &Range<usize>) -> Range<usize> {
        self.before(tokens.start)..self.before(tokens.end)
    }

    /// The part's tokens within a range of the stream, as ranges of the stream.
    pub fn within<'a>(&'a self, tokens: &'a Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
        let first = self.ranges.partition_point(|range| range.end <= tokens.start);
        let here = self.ranges[first..].iter().take_while(|range| range.start < tokens.end);
        here.map(|range| range.start.max(tokens.start)..range.end.min(tokens.end))
    }

    /// The rows of `keys` that this part's rows attend to, in causal documents, within a window if given.
    pub fn needed(&self, keys: &StreamPart, docs: &[Range<usize>], window: Option<usize>) -> StreamPart {
        let mut wanted: Vec<Range<usize>> = Vec::new();
        for doc in docs {
            for queries in self.within(doc) {
                let reach = window.map_or(0, |window| (queries.start + 1).saturating_sub(window));
                let seen = doc.start.max(reach)..queries.end;
                match wanted.last_mut() {
                    Some(last) if seen.start <= last.end => last.end = seen.end,
                    _ => wanted.push(seen),
                }
            }
        }
        StreamPart::new(wanted.iter().flat_map(|wanted| keys.within(wanted)).collect())
    }

    /// The rows here of another part's tokens, which this part contains: ranges with gaps between them.
    pub fn runs(&self, some: &StreamPart) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for rows in some.ranges.iter().map(|range| self.rows(range)) {
            match runs.last_mut() {
                Some(last) if last.end == rows.start => last.end = rows.end,
                _ => runs.push(rows),
            }
        }
        runs
    }

    /// Slices with this part's rows as queries and another's as keys, for documents that attend to tokens on both sides,
    /// at most `far` from a token if given.
    pub fn slices_around(&self, keys: &StreamPart, docs: &[Range<usize>], far: Option<usize>) -> Vec<Slice> {
        let reach = far.map_or(Slice::OPEN, |far| far as i64);
        let slice = |doc: &Range<usize>| Slice {
            lo: -reach,
            hi: reach,
            ..Slice::full(self.rows(doc), keys.rows(doc))
        };
        docs.iter().map(slice).filter(|slice| slice.q_start < slice.q_end).collect()
    }

    /// Slices with this part's rows as queries and another's as keys, for causal documents, within a window if given.
    pub fn slices(&self, keys: &StreamPart, docs: &[Range<usize>], window: Option<usize>) -> Vec<Slice> {
        let slice = |doc: &Range<usize>| Slice::causal(self.rows(doc), keys.rows(doc), window);
        let some = |slice: &Slice| slice.q_start < slice.q_end && slice.k_start < slice.k_end;
        docs.iter().map(slice).filter(some).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_stream() {
        let part = StreamPart::new(vec![20..24, 4..6, 6..9]);
        assert_eq!((part.ranges(), part.len()), (&[4..9, 20..24][..], 9));
        assert_eq!([0, 4, 5, 9, 15, 20, 23, 24, 99].map(|at| part.before(at)), [0, 0, 1, 5, 5, 5, 8, 9, 9]);
        assert_eq!(part.within(&(5..22)).collect::<Vec<_>>(), [5..9, 20..22]);
        let docs = [0..3, 3..7, 7..21, 21..30];
        let slices = part.slices(&StreamPart::new(vec![0..5, 21..22]), &docs, Some(2));
        let keys = StreamPart::new(vec![0..4, 9..18, 22..23, 26..30]);
        assert_eq!(part.needed(&keys, &docs, None).ranges(), [3..4, 9..18, 22..23]);
        assert_eq!(part.needed(&keys, &docs, Some(4)).ranges(), [3..4, 17..18, 22..23]);
        assert_eq!(keys.runs(&part.needed(&keys, &docs, None)), std::slice::from_ref(&(3..14)));
        assert_eq!(keys.runs(&part.needed(&keys, &docs, Some(4))), [3..4, 12..14]);
        assert_eq!(slices, [Slice::causal(0..3, 3..5, Some(2)), Slice::causal(6..9, 5..6, Some(2))]);
    }
}
