//! Masks as short lists of slices, and sizes that live on the device.

use std::ops::Range;
use std::rc::Rc;

use crate::Tensor;

/// Query row i and key row j attend iff `q` holds i, `k` holds j and `lo <= pos_k[j] - pos_q[i] <= hi`.
/// At most one slice of a mask covers a pair. Causal, windowed, full and cross attention, packed documents
/// and ring chunks are values of this one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Slice {
    /// First query row.
    pub q_start: i64,
    /// One past the last query row.
    pub q_end: i64,
    /// First key row.
    pub k_start: i64,
    /// One past the last key row.
    pub k_end: i64,
    /// Smallest `pos_k - pos_q` that attends.
    pub lo: i64,
    /// Largest `pos_k - pos_q` that attends.
    pub hi: i64,
}

impl Slice {
    /// Open end of `lo` or `hi`.
    pub const OPEN: i64 = i64::MAX / 2;

    /// Causal attention of rows to rows, within a window of `window` tokens if given.
    pub fn causal(q: std::ops::Range<usize>, k: std::ops::Range<usize>, window: Option<usize>) -> Slice {
        let lo = window.map_or(-Slice::OPEN, |w| 1 - w as i64);
        let [q_start, q_end, k_start, k_end] = [q.start, q.end, k.start, k.end].map(|x| x as i64);
        Slice { q_start, q_end, k_start, k_end, lo, hi: 0 }
    }

    /// Attention of every row to every row.
    pub fn full(q: std::ops::Range<usize>, k: std::ops::Range<usize>) -> Slice {
        Slice { lo: -Slice::OPEN, hi: Slice::OPEN, ..Slice::causal(q, k, None) }
    }
}

/// A number of rows: known to the host, or a cap with the count on the device.
#[derive(Clone, Debug)]
pub enum Extent {
    /// Exactly this many.
    Fixed(usize),
    /// At most `cap`; kernels read `count` (one i32).
    UpTo {
        /// Shapes, charges and plans use this.
        cap: usize,
        /// The count, one i32.
        count: Tensor,
    },
}

impl Extent {
    /// What shapes and charges use.
    pub fn cap(&self) -> usize {
        match self {
            Extent::Fixed(n) => *n,
            Extent::UpTo { cap, .. } => *cap,
        }
    }
}

/// Rows of queries and the rows of keys that they attend to: each to all of them, or, of as many of both, each to those up to its
/// own place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Rows of queries; not empty.
    pub q: Range<usize>,
    /// Rows of keys; not empty.
    pub k: Range<usize>,
    /// Each row to those up to its own place.
    pub causal: bool,
}

/// What the host knows of a mask in plain words: packed sequences, no pair of rows in two of them. Libraries have fused kernels
/// for such masks and need to be told; kernels read the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// In no order; rows that are in none attend to nothing.
    pub sequences: Rc<[Sequence]>,
    /// Tokens that a row of a causal sequence attends to, itself included; none for all up to its own place.
    pub window: Option<usize>,
}

impl Packed {
    /// The sequences, if slices are full or causal, of rows at positions that ascend within each; windows only where those have
    /// no gaps.
    pub fn of(slices: &[Slice], pos_q: &[i32], pos_k: &[i32]) -> Option<Packed> {
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
                sequences.push(Sequence { q, k, causal: false });
                continue;
            }
            if slice.hi != 0 || *reach.get_or_insert(slice.lo) != slice.lo {
                return None;
            }
            let (of_q, of_k) = (&pos_q[q.clone()], &pos_k[k.clone()]);
            let found = staircase(of_q, of_k)?;
            if i64::from(of_k[0]) - i64::from(of_q[of_q.len() - 1]) < slice.lo {
                let plain = matches!(&found[..], [one] if one.causal && one.q.len() == of_q.len());
                if !plain || [of_q, of_k].into_iter().any(|positions| !is_dense(positions)) {
                    return None;
                }
                window = Some(usize::try_from(1 - slice.lo).ok()?);
            }
            let shifted = |rows: Range<usize>, by: usize| rows.start + by..rows.end + by;
            sequences.extend(found.into_iter().map(|Sequence { q: of_q, k: of_k, causal }| Sequence {
                q: shifted(of_q, q.start),
                k: shifted(of_k, k.start),
                causal,
            }));
        }
        Some(Packed { sequences: sequences.into(), window })
    }
}

/// Some of so many rows.
fn rows(start: i64, end: i64, of: usize) -> Option<Range<usize>> {
    let rows = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
    (rows.start <= rows.end && rows.end <= of).then_some(rows)
}

/// Positions without gaps.
fn is_dense(positions: &[i32]) -> bool {
    positions.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]))
}

/// Causal attention between rows at ascending positions. Where queries are the very keys, row by row, they attend causally; to
/// the keys before those, and to keys that lie between two queries, all later queries attend: one sequence for each such group
/// of keys.
fn staircase(pos_q: &[i32], pos_k: &[i32]) -> Option<Vec<Sequence>> {
    let ascend = |positions: &[i32]| positions.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascend(pos_q) || !ascend(pos_k) {
        return None;
    }
    let (mut squares, mut steps): (Vec<Sequence>, Vec<Sequence>) = (Vec::new(), Vec::new());
    // Keys up to the row's position, and those that all rows from here on attend to.
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
            _ if is_key => squares.push(Sequence { q: row..row + 1, k: before..seen, causal: true }),
            _ => {}
        }
        if before > shared {
            steps.push(Sequence { q: row..pos_q.len(), k: shared..before, causal: false });
            shared = before;
        }
    }
    squares.extend(steps);
    Some(squares)
}

/// A mask on the device.
#[derive(Clone, Debug)]
pub struct Mask {
    /// i64 [cap, 6]: the fields of [`Slice`].
    pub table: Tensor,
    /// How many rows of `table` are slices.
    pub slices: Extent,
    /// Positions of query rows, i32 [1, q_tokens].
    pub pos_q: Tensor,
    /// Positions of key rows, i32 [1, k_tokens].
    pub pos_k: Tensor,
    /// Pairs that attend; the host's count, for FLOPs only.
    pub pairs: u64,
    /// The same mask in plain words, where it has them and the host knows.
    pub packed: Option<Packed>,
    /// Ring steps and gathered keys: what a library makes under it are parts that join each other, or those of other keys, and it
    /// needs scratch for them ([`crate::OpDesc::Attention`]). Plans know this, and no sequences.
    pub partial: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who attends to whom, and how often that is said.
    fn pairs(packed: &Packed, [queries, keys]: [usize; 2]) -> Vec<u32> {
        let mut pairs = vec![0; queries * keys];
        for Sequence { q, k, causal } in packed.sequences.iter() {
            assert!(!q.is_empty() && !k.is_empty() && (!causal || q.len() == k.len()), "{packed:?}");
            for (at, row) in q.clone().enumerate() {
                let last = if *causal { k.start + at + 1 } else { k.end };
                let reach = packed.window.filter(|_| *causal).unwrap_or(usize::MAX);
                (k.start.max(last.saturating_sub(reach))..last).for_each(|key| pairs[row * keys + key] += 1);
            }
        }
        pairs
    }

    #[track_caller]
    fn check(slices: &[Slice], pos_q: &[i32], pos_k: &[i32]) -> Packed {
        let packed = Packed::of(slices, pos_q, pos_k).unwrap_or_else(|| panic!("{slices:?}"));
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

    fn told(packed: &Packed) -> Vec<(Range<usize>, Range<usize>, bool)> {
        packed.sequences.iter().map(|s| (s.q.clone(), s.k.clone(), s.causal)).collect()
    }

    #[test]
    fn packed_documents_are_told_from_other_masks() {
        let own = |rows: Range<usize>, window| Slice::causal(rows.clone(), rows, window);
        let positions = [0, 1, 2, 0, 1];
        let packed = check(&[own(0..3, Some(2)), own(3..5, Some(2))], &positions, &positions);
        assert_eq!((told(&packed), packed.window), (vec![(0..3, 0..3, true), (3..5, 3..5, true)], Some(2)));
        // A window that reaches everything is none.
        assert_eq!(check(&[own(0..3, Some(3))], &positions, &positions).window, None);
        check(&[own(0..3, None)], &positions, &positions);
        check(&[Slice::full(0..3, 0..3), Slice::full(3..5, 2..5)], &positions, &positions);
        assert!(check(&[], &positions, &positions).sequences.is_empty());
        for slices in [
            // Positions begin anew, windows differ, rows that are not there, neither causal nor full.
            &[own(0..5, None)][..],
            &[own(0..3, None), own(3..5, Some(2))],
            &[own(0..6, None)],
            &[Slice { hi: 1, ..own(0..3, None) }],
        ] {
            assert_eq!(Packed::of(slices, &positions, &positions), None, "{slices:?}");
        }
        // A window in positions with gaps is none in rows.
        let gaps = [0, 1, 5, 6];
        assert_eq!(Packed::of(&[own(0..4, Some(3))], &gaps, &gaps), None);
        assert_eq!(told(&check(&[own(0..4, None)], &gaps, &gaps)), [(0..4, 0..4, true)]);
    }

    /// Four ranks with two of eight chunks of four tokens each, as the zigzag deals them.
    #[test]
    fn chunks_of_ranks_meet_as_whole_blocks() {
        let chunk = |at: i32| 4 * at..4 * at + 4;
        let rank = |at: i32| chunk(at).chain(chunk(7 - at)).collect::<Vec<i32>>();
        let of = |q: &[i32], k: &[i32]| told(&check(&[causal(0..q.len(), 0..k.len())], q, k));
        let mine = rank(1);
        assert_eq!(of(&mine, &mine), [(0..8, 0..8, true)]);
        assert_eq!(of(&mine, &rank(0)), [(0..8, 0..4, false)]);
        assert_eq!(of(&mine, &rank(3)), [(4..8, 0..8, false)]);
        // Everybody's keys in their order.
        let all: Vec<i32> = (0..32).collect();
        assert_eq!(
            of(&mine, &all),
            [(0..4, 4..8, true), (4..8, 24..28, true), (0..8, 0..4, false), (4..8, 4..24, false)]
        );
        // A token that goes on with those before it.
        assert_eq!(of(&[31], &all), [(0..1, 31..32, true), (0..1, 0..31, false)]);
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
            check(&[causal(0..q_cut, 0..k_cut), causal(q_cut..q.len(), k_cut..k.len())], &q, &k);
        }
    }
}
