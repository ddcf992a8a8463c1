//! Numbers of attending pairs, as sums in closed form.

use std::ops::Range;

use super::area;
use super::part::StreamPart;

/// Pairs that attend in a causal document of `tokens`, within a window if given.
pub fn causal_pairs(tokens: usize, window: Option<usize>) -> u64 {
    let tokens = tokens as u64;
    let reach = window.map_or(tokens, |window| tokens.min(window as u64));
    reach * (reach + 1) / 2 + (tokens - reach) * reach
}

/// Pairs of some queries with the keys of their document, which begins at `start`.
pub(super) fn of_queries(queries: Range<usize>, start: usize, window: Option<usize>) -> u64 {
    if queries.is_empty() {
        return 0;
    }
    causal_pairs(queries.end - start, window) - causal_pairs(queries.start - start, window)
}

/// Pairs of the queries of one part with all keys of their documents, at most `far` from a token if given.
pub(super) fn around(docs: &[Range<usize>], q: &StreamPart, far: Option<usize>) -> u64 {
    let window = far.map(|far| far + 1);
    let of_doc = |doc: &Range<usize>| -> u64 {
        // Keys up to a query and, counted from the document's end, those from it on; the query is in both.
        let from_end = |run: &Range<usize>| doc.start + doc.end - run.end..doc.start + doc.end - run.start;
        let pairs = |run: Range<usize>| {
            of_queries(run.clone(), doc.start, window) + of_queries(from_end(&run), doc.start, window)
                - run.len() as u64
        };
        q.within(doc).map(pairs).sum()
    };
    docs.iter().map(of_doc).sum()
}

/// Pairs of the queries of one part with the keys of another, of the same documents, within a window if given.
pub(super) fn between(docs: &[Range<usize>], q: &StreamPart, k: &StreamPart, window: Option<usize>) -> u64 {
    let of_doc = |doc: &Range<usize>| -> u64 {
        let keys: Vec<Range<usize>> = k.within(doc).collect();
        q.within(doc)
            .map(|queries| -> u64 { keys.iter().map(|keys| rectangle(&queries, keys, window)).sum() })
            .sum()
    };
    docs.iter().map(of_doc).sum()
}

/// Pairs with `key <= query`, and `query - key < window` if given.
fn rectangle(queries: &Range<usize>, keys: &Range<usize>, window: Option<usize>) -> u64 {
    if keys.start >= queries.end
        || window.is_some_and(|window| keys.end.saturating_add(window) <= queries.start + 1)
    {
        return 0;
    }
    // Pairs of the queries below `q` with the preceding keys below `k`; a query sees at most `k` keys.
    let below = |q: usize, k: usize| causal_pairs(q, Some(k));
    // Only differences matter.
    let at = |x: usize| x - queries.start.min(keys.start);
    let [q0, q1, k0, k1] = [queries.start, queries.end, keys.start, keys.end].map(at);
    let seen = |q0: usize, q1: usize| (below(q1, k1) + below(q0, k0)) - (below(q0, k1) + below(q1, k0));
    let far = window.map_or(0, |window| seen(q0.saturating_sub(window), q1.saturating_sub(window)));
    seen(q0, q1) - far
}

/// Parameters of the distribution.
#[derive(Clone, Copy, Debug)]
pub struct LayoutSizes<'a> {
    /// Number of tokens of the stream, a multiple of `cp`.
    pub tokens: usize,
    /// Number of ranks.
    pub cp: usize,
    /// Maximum tokens of a chunk. Chunks have half of a rank's tokens if that is less, and are halved if that improves
    /// the balance. If a rank's tokens are not a multiple, the last chunks of the stream, one per rank, have the rest.
    pub chunk: usize,
    /// The window of each layer, or of each kind of layer: the sum of their areas is balanced. An empty list means one
    /// kind without a window.
    pub windows: &'a [Option<usize>],
    /// Keeps documents on few ranks to reduce transfers, if set: the work of a token apart from attention, in pairs.
    /// Without it, all ranks have some of every document.
    pub dynamic: Option<u64>,
    /// Most ranges of a rank that share documents with others, if states are passed between them: chunks are not halved, and documents
    /// not kept on few ranks, beyond that.
    pub pieces: Option<usize>,
}

/// The document that has tokens on both sides of a border of the stream.
pub(super) fn across(docs: &[Range<usize>], border: usize) -> Option<&Range<usize>> {
    docs[docs.partition_point(|doc| doc.end <= border)..].first().filter(|doc| doc.start < border)
}

/// Pairs of some queries of the document that begins at `start`, over all windows.
pub(super) fn area_of(queries: &Range<usize>, start: usize, windows: &[Option<usize>]) -> u64 {
    let window = |window: &Option<usize>| area::of_queries(queries.clone(), start, *window);
    match windows {
        [] => window(&None),
        windows => windows.iter().map(window).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_on_both_sides_are_what_counting_gives() {
        let (docs, part) = ([0..9, 9..30], StreamPart::new(vec![2..6, 8..13, 27..30]));
        for far in [None, Some(0), Some(1), Some(4), Some(40)] {
            let near = |q: usize, k: usize| far.is_none_or(|far| q.abs_diff(k) <= far);
            let of_doc = |doc: &Range<usize>| {
                let queries: Vec<usize> = part.within(doc).flatten().collect();
                let keys = |q: usize| doc.clone().filter(|k| near(q, *k)).count();
                queries.into_iter().map(keys).sum::<usize>()
            };
            let counted: usize = docs.iter().map(of_doc).sum();
            assert_eq!(around(&docs, &part, far), counted as u64, "{far:?}");
        }
    }

    #[test]
    fn rectangles_are_what_counting_gives() {
        for (q0, k0, q_len, k_len) in
            [(0, 0, 9, 9), (4, 0, 5, 7), (0, 4, 9, 3), (7, 2, 3, 3), (2, 7, 3, 3), (5, 5, 1, 1)]
        {
            let (queries, keys) = (q0..q0 + q_len, k0..k0 + k_len);
            for window in [None, Some(1), Some(2), Some(4), Some(30), Some(usize::MAX)] {
                let attends = |q: usize, k: usize| k <= q && window.is_none_or(|window| q - k < window);
                let counted = queries.clone().flat_map(|q| keys.clone().map(move |k| (q, k)));
                let counted = counted.filter(|(q, k)| attends(*q, *k)).count() as u64;
                assert_eq!(rectangle(&queries, &keys, window), counted, "{queries:?} {keys:?} {window:?}");
            }
        }
    }
}
