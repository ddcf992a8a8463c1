//! The host's description of a mask as packed sequences, as libraries require it.

use std::ops::Range;
use std::rc::Rc;

use super::Slice;

/// Keys of a sequence that its queries attend to; both are counted from the sequence's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// Each query attends to all keys.
    Full,
    /// Equal numbers of queries and keys; each attends to those up to its own place: `key <= query`; with
    /// [`PackedMask::window`],
    /// to the last of them.
    Causal,
    /// Each query attends to keys from some place on: `key + reach > query`. There are no fewer keys than queries, and
    /// every key is attended to by some query.
    Left(usize),
}

/// Rows of queries and the rows of keys that they attend to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Rows of queries; not empty.
    pub q: Range<usize>,
    /// Rows of keys; not empty.
    pub k: Range<usize>,
    /// Pairs of queries and keys that attend.
    pub band: Band,
}

/// A mask as the host knows it: packed sequences, with no pair of rows in two of them. Libraries have fused kernels for
/// such masks and need this description; our own kernels read the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedMask {
    /// The sequences, in no order; rows in none of them attend to nothing.
    pub sequences: Rc<[Sequence]>,
    /// Tokens that a row of a causal sequence attends to, including itself; `None` for all up to its own place.
    pub window: Option<usize>,
}

impl PackedMask {
    /// The sequences of slices that are full or causal, all with the same window or none, and have ascending positions
    /// within each; `None` for other slices.
    pub fn of(slices: &[Slice], pos_q: &[i32], pos_k: &[i32]) -> Option<PackedMask> {
        let (mut sequences, mut window, mut reach) = (Vec::new(), None, None);
        for slice in slices {
            let [q, k] = [
                rows(slice.q_start, slice.q_end, pos_q.len())?,
                rows(slice.k_start, slice.k_end, pos_k.len())?,
            ];
            if q.is_empty() || k.is_empty() {
                continue;
            }
            if slice.lo <= -Slice::OPEN && slice.hi >= Slice::OPEN {
                sequences.push(Sequence { q, k, band: Band::Full });
                continue;
            }
            if slice.hi != 0 || slice.lo > 0 || *reach.get_or_insert(slice.lo) != slice.lo {
                return None;
            }
            let (of_q, of_k) = (&pos_q[q.clone()], &pos_k[k.clone()]);
            if ![of_q, of_k].into_iter().all(ascend) {
                return None;
            }
            let found = if i64::from(of_k[0]) - i64::from(of_q[of_q.len() - 1]) < slice.lo {
                window = Some(usize::try_from(1 - slice.lo).ok()?);
                within(1 - slice.lo, of_q, of_k)
            } else {
                staircase(of_q, of_k)
            };
            let shifted = |rows: Range<usize>, by: usize| rows.start + by..rows.end + by;
            sequences.extend(found.into_iter().map(|Sequence { q: of_q, k: of_k, band }| Sequence {
                q: shifted(of_q, q.start),
                k: shifted(of_k, k.start),
                band,
            }));
        }
        Some(PackedMask { sequences: sequences.into(), window })
    }
}

/// A range of rows, if it lies within `of`.
fn rows(start: i64, end: i64, of: usize) -> Option<Range<usize>> {
    let rows = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
    (rows.start <= rows.end && rows.end <= of).then_some(rows)
}

fn ascend(positions: &[i32]) -> bool {
    positions.windows(2).all(|pair| pair[0] < pair[1])
}

/// Causal attention between rows at ascending positions. Where queries and keys are the same rows, they attend
/// causally. Keys before those, and keys that lie between two queries, are attended to by all later queries: one
/// sequence for each such group of keys.
fn staircase(pos_q: &[i32], pos_k: &[i32]) -> Vec<Sequence> {
    let (mut squares, mut steps): (Vec<Sequence>, Vec<Sequence>) = (Vec::new(), Vec::new());
    // Keys up to the row's position, and keys already attended to by all later rows.
    let (mut seen, mut shared) = (0, 0);
    for (row, position) in pos_q.iter().enumerate() {
        seen += pos_k[seen..].iter().take_while(|key| *key < position).count();
        let before = seen;
        let is_key = pos_k.get(seen) == Some(position);
        seen += usize::from(is_key);
        match squares.last_mut() {
            Some(square) if is_key && square.q.end == row && square.k.end == before => {
                (square.q.end, square.k.end) = (row + 1, seen);
                continue;
            }
            _ if is_key => squares.push(Sequence { q: row..row + 1, k: before..seen, band: Band::Causal }),
            _ => {}
        }
        if before > shared {
            steps.push(Sequence { q: row..pos_q.len(), k: shared..before, band: Band::Full });
            shared = before;
        }
    }
    squares.extend(steps);
    squares
}

/// Consecutive rows at consecutive positions.
struct Run {
    row: usize,
    /// Positions.
    at: Range<i64>,
}

impl Run {
    fn rows(&self, at: &Range<i64>) -> Range<usize> {
        let row = |position: i64| self.row + (position - self.at.start) as usize;
        row(at.start)..row(at.end)
    }
}

fn runs(positions: &[i32]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (row, position) in positions.iter().map(|position| i64::from(*position)).enumerate() {
        match runs.last_mut() {
            Some(run) if run.at.end == position => run.at.end += 1,
            _ => runs.push(Run { row, at: position..position + 1 }),
        }
    }
    runs
}

/// The same with a window: a row attends to at most this many positions, including its own. Positions count as rows
/// only where neither queries nor keys have gaps, so sequences are built between runs: where queries and keys are the
/// same rows they attend causally within the window; keys before those are handled by [`left`].
fn within(window: i64, pos_q: &[i32], pos_k: &[i32]) -> Vec<Sequence> {
    let (mut squares, mut steps): (Vec<Sequence>, Vec<Sequence>) = (Vec::new(), Vec::new());
    let keys = runs(pos_k);
    for q in runs(pos_q) {
        let first = keys.partition_point(|k| k.at.end <= q.at.start - window + 1);
        for k in keys[first..].iter().take_while(|k| k.at.start < q.at.end) {
            let both = q.at.start.max(k.at.start)..q.at.end.min(k.at.end);
            let sequence = |of_q, of_k, band| Sequence { q: q.rows(&of_q), k: k.rows(&of_k), band };
            let behind = (both.end.max(q.at.start)..q.at.end, k.at.start..both.end);
            let mut found = left(window, behind.0, behind.1);
            if !both.is_empty() {
                squares.push(sequence(both.clone(), both.clone(), Band::Causal));
                found.extend(left(window, both.clone(), k.at.start..both.start));
            }
            for (of_q, of_k, band) in found {
                let step = sequence(of_q, of_k, band);
                match steps.last_mut() {
                    Some(last) if last.is_followed_by(&step) => last.k.end = step.k.end,
                    _ => steps.push(step),
                }
            }
        }
    }
    squares.extend(steps);
    squares
}

impl Sequence {
    /// True if `next` has the same queries and continues the keys, and the queries attend to all of both.
    fn is_followed_by(&self, next: &Sequence) -> bool {
        let full = self.band == Band::Full && next.band == Band::Full;
        full && self.q == next.q && self.k.end == next.k.start
    }
}

/// Sequences of queries and the keys before all of them within a window, both as positions. Keys that no query reaches
/// and queries that reach no key are dropped; if there are more queries than keys, the leading queries that reach all
/// keys become a sequence of their own.
fn left(window: i64, q: Range<i64>, k: Range<i64>) -> Vec<(Range<i64>, Range<i64>, Band)> {
    let k = k.start.max(q.start - window + 1)..k.end;
    if q.is_empty() || k.is_empty() {
        return Vec::new();
    }
    let q = q.start..q.end.min(k.end - 1 + window);
    // Number of leading queries that reach all keys.
    let reach = window - (q.start - k.start);
    let (queries, keys) = (q.end - q.start, k.end - k.start);
    if queries <= reach {
        return vec![(q, k, Band::Full)];
    }
    let apart = (queries - keys).max(0);
    let front = (apart > 0).then(|| (q.start..q.start + apart, k.clone(), Band::Full));
    let rest = (q.start + apart..q.end, k, Band::Left((reach - apart) as usize));
    front.into_iter().chain([rest]).collect()
}

#[cfg(test)]
mod tests {
    use super::Band::{Causal, Full, Left};
    use super::*;

    /// How often each pair of query and key is covered.
    fn pairs(packed: &PackedMask, [queries, keys]: [usize; 2]) -> Vec<u32> {
        let mut pairs = vec![0; queries * keys];
        for Sequence { q, k, band } in packed.sequences.iter() {
            assert!(!q.is_empty() && !k.is_empty(), "{packed:?}");
            assert!(*band != Band::Causal || q.len() == k.len(), "{packed:?}");
            for (at, row) in q.clone().enumerate() {
                let own = at + 1;
                let seen = match *band {
                    Band::Full => 0..k.len(),
                    Band::Causal => own.saturating_sub(packed.window.unwrap_or(own))..own,
                    Band::Left(reach) => own.saturating_sub(reach)..k.len(),
                };
                assert!(!seen.is_empty() && q.len() <= k.len() || *band == Band::Full, "{packed:?}");
                seen.for_each(|key| pairs[row * keys + k.start + key] += 1);
            }
        }
        pairs
    }

    #[track_caller]
    fn check(slices: &[Slice], pos_q: &[i32], pos_k: &[i32]) -> PackedMask {
        let packed = PackedMask::of(slices, pos_q, pos_k).unwrap_or_else(|| panic!("{slices:?}"));
        let attends = |q: usize, k: usize| {
            let apart = i64::from(pos_k[k]) - i64::from(pos_q[q]);
            let (q, k) = (q as i64, k as i64);
            let of = |s: &Slice| {
                (s.q_start..s.q_end).contains(&q)
                    && (s.k_start..s.k_end).contains(&k)
                    && (s.lo..=s.hi).contains(&apart)
            };
            u32::from(slices.iter().any(of))
        };
        let expected: Vec<u32> =
            (0..pos_q.len()).flat_map(|q| (0..pos_k.len()).map(move |k| attends(q, k))).collect();
        assert_eq!(pairs(&packed, [pos_q.len(), pos_k.len()]), expected, "{slices:?}: {packed:?}");
        packed
    }

    fn causal(q: Range<usize>, k: Range<usize>) -> Slice {
        Slice::causal(q, k, None)
    }

    fn listed(packed: &PackedMask) -> Vec<(Range<usize>, Range<usize>, Band)> {
        packed.sequences.iter().map(|s| (s.q.clone(), s.k.clone(), s.band)).collect()
    }

    #[test]
    fn packed_documents_are_distinguished_from_other_masks() {
        let own = |rows: Range<usize>, window| Slice::causal(rows.clone(), rows, window);
        let positions = [0, 1, 2, 0, 1];
        let packed = check(&[own(0..3, Some(2)), own(3..5, Some(2))], &positions, &positions);
        assert_eq!(
            (listed(&packed), packed.window),
            (vec![(0..3, 0..3, Causal), (3..5, 3..5, Causal)], Some(2))
        );
        // A window that reaches everything counts as none.
        assert_eq!(check(&[own(0..3, Some(3))], &positions, &positions).window, None);
        check(&[own(0..3, None)], &positions, &positions);
        check(&[Slice::full(0..3, 0..3), Slice::full(3..5, 2..5)], &positions, &positions);
        assert!(check(&[], &positions, &positions).sequences.is_empty());
        for slices in [
            // Restarting positions, differing windows, missing rows, neither causal nor full.
            &[own(0..5, None)][..],
            &[own(0..3, None), own(3..5, Some(2))],
            &[own(0..6, None)],
            &[Slice { hi: 1, ..own(0..3, None) }],
        ] {
            assert_eq!(PackedMask::of(slices, &positions, &positions), None, "{slices:?}");
        }
        // A window over positions with gaps is not a window over rows.
        let gaps = [0, 1, 5, 6];
        let packed = check(&[own(0..4, Some(3))], &gaps, &gaps);
        assert_eq!(listed(&packed), [(0..2, 0..2, Causal), (2..4, 2..4, Causal)]);
        assert_eq!(listed(&check(&[own(0..4, None)], &gaps, &gaps)), [(0..4, 0..4, Causal)]);
    }

    /// Four ranks, each with two of eight chunks of four tokens, in zigzag order.
    #[test]
    fn chunks_of_ranks_meet_as_whole_blocks() {
        let chunk = |at: i32| 4 * at..4 * at + 4;
        let rank = |at: i32| chunk(at).chain(chunk(7 - at)).collect::<Vec<i32>>();
        let of = |q: &[i32], k: &[i32]| listed(&check(&[causal(0..q.len(), 0..k.len())], q, k));
        let mine = rank(1);
        assert_eq!(of(&mine, &mine), [(0..8, 0..8, Causal)]);
        assert_eq!(of(&mine, &rank(0)), [(0..8, 0..4, Full)]);
        assert_eq!(of(&mine, &rank(3)), [(4..8, 0..8, Full)]);
        // Keys of all ranks in their order.
        let all: Vec<i32> = (0..32).collect();
        assert_eq!(
            of(&mine, &all),
            [(0..4, 4..8, Causal), (4..8, 24..28, Causal), (0..8, 0..4, Full), (4..8, 4..24, Full)]
        );
        // One token that continues those before it.
        assert_eq!(of(&[31], &all), [(0..1, 31..32, Causal), (0..1, 0..31, Full)]);
    }

    /// The same chunks, under windows shorter and longer than a chunk.
    #[test]
    fn windows_of_chunks_are_squares_and_what_lies_before_them() {
        let chunk = |at: i32| 4 * at..4 * at + 4;
        let rank = |at: i32| chunk(at).chain(chunk(7 - at)).collect::<Vec<i32>>();
        let of = |window, q: &[i32], k: &[i32]| {
            let packed = check(&[Slice::causal(0..q.len(), 0..k.len(), Some(window))], q, k);
            assert_eq!(packed.window.unwrap_or(window), window);
            listed(&packed)
        };
        let mine = rank(1);
        assert_eq!(of(3, &mine, &mine), [(0..4, 0..4, Causal), (4..8, 4..8, Causal)]);
        // Chunk 1 attends to the last keys of chunk 0, chunk 6 to those of chunk 5.
        assert_eq!(of(3, &mine, &rank(0)), [(0..2, 2..4, Left(1))]);
        assert_eq!(of(3, &mine, &rank(2)), [(4..6, 6..8, Left(1))]);
        assert_eq!(of(3, &mine, &rank(3)), []);
        assert_eq!(of(6, &mine, &rank(0)), [(0..4, 0..4, Left(2))]);
        assert_eq!(of(7, &mine, &rank(3)), [(4..6, 6..8, Left(1))]);
        // Chunks 3 and 4 are adjacent.
        assert_eq!(of(11, &mine, &rank(3)), [(4..8, 2..8, Left(1))]);
        let all: Vec<i32> = (0..32).collect();
        assert_eq!(
            of(3, &mine, &all),
            [(0..4, 4..8, Causal), (4..8, 24..28, Causal), (0..2, 2..4, Left(1)), (4..6, 22..24, Left(1))]
        );
        // Two groups of keys that are fully reached, and a query that reaches none.
        assert_eq!(of(12, &[8, 9, 20], &[0, 1, 2, 3, 6, 7]), [(0..2, 0..6, Full)]);
        // More queries than keys: the leading ones reach all keys.
        assert_eq!(of(6, &[6, 7, 8, 9, 10], &[4, 5]), [(0..3, 0..2, Full), (3..5, 0..2, Left(1))]);
    }

    #[test]
    fn any_rows_of_a_stream_attend_as_slices_say() {
        let mut state = 7u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let mut some = |share: u64| (0..30).filter(|_| next(10) < share).collect::<Vec<i32>>();
            let [q, k] = [some(4), some(6)];
            let cut = next(30) as i32;
            let before = |positions: &[i32]| positions.partition_point(|position| *position < cut);
            let [q_cut, k_cut] = [before(&q), before(&k)];
            for window in [None, Some(1), Some(1 + next(12) as usize)] {
                let slice = |q, k| Slice::causal(q, k, window);
                check(&[slice(0..q_cut, 0..k_cut), slice(q_cut..q.len(), k_cut..k.len())], &q, &k);
            }
        }
    }
}
