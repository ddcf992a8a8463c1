//! Pairs of a block that attend: all, none, or a table of bits.
//!
//! Rows may be heads of tokens (`group` rows per token); slices and positions refer to tokens.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over caller-checked extents, see each `# Safety`

use super::shape::{KEYS, SUB};
use super::simd::{LANES, Simd};
use super::softmax::MASK_WORDS;
use fathom_tensor::Slice;

/// Tokens `start..end` and the least and greatest of their positions.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub start: usize,
    pub end: usize,
    pub least: i32,
    pub most: i32,
}

impl Span {
    /// The span of tokens `start..end`.
    pub fn of(pos: &[i32], start: usize, end: usize) -> Span {
        let (least, most) =
            pos[start..end].iter().fold((i32::MAX, i32::MIN), |(a, b), &p| (a.min(p), b.max(p)));
        Span { start, end, least, most }
    }
}

/// How much of a block attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// No pair.
    None,
    /// Every pair.
    All,
    /// Perhaps some: ask for bits.
    Some,
}

/// Coverage of queries `q` by keys `k` by the slice.
pub fn cover_of(s: &Slice, q: &Span, k: &Span) -> Cover {
    let [q0, q1, k0, k1] = [q.start, q.end, k.start, k.end].map(|x| x as i64);
    let (least, most) = (i64::from(k.least) - i64::from(q.most), i64::from(k.most) - i64::from(q.least));
    let apart = s.q_start.max(q0) >= s.q_end.min(q1) || s.k_start.max(k0) >= s.k_end.min(k1);
    if apart || most < s.lo || least > s.hi {
        Cover::None
    } else if s.q_start <= q0
        && q1 <= s.q_end
        && s.k_start <= k0
        && k1 <= s.k_end
        && s.lo <= least
        && most <= s.hi
    {
        Cover::All
    } else {
        Cover::Some
    }
}

/// Coverage by all slices in `list`.
pub fn cover(slices: &[Slice], list: &[u32], q: &Span, k: &Span) -> Cover {
    let mut cover = Cover::None;
    for &index in list {
        match cover_of(&slices[index as usize], q, k) {
            Cover::None => {}
            Cover::All => return Cover::All,
            Cover::Some => cover = Cover::Some,
        }
    }
    cover
}

/// Writes the indices of the slices that touch `q` by `k` and returns them.
///
/// # Safety
/// `to` has room for as many indices as there are slices, and is not otherwise used while the list is.
pub unsafe fn touching<'a>(slices: &[Slice], q: &Span, k: &Span, to: *mut u32) -> &'a [u32] {
    let mut count = 0;
    for (index, slice) in slices.iter().enumerate() {
        if cover_of(slice, q, k) != Cover::None {
            *to.add(count) = index as u32;
            count += 1;
        }
    }
    std::slice::from_raw_parts(to, count)
}

/// Largest number of slices that [`near`] returns individually.
pub const NEAR: usize = 16;

/// The slices in `list` that touch `q` by `k`; all of the list if there are many.
pub fn near<'a>(
    slices: &[Slice],
    list: &'a [u32],
    (q, k): (&Span, &Span),
    to: &'a mut [u32; NEAR],
) -> &'a [u32] {
    let mut count = 0;
    for &index in list {
        if cover_of(&slices[index as usize], q, k) != Cover::None {
            if count == NEAR {
                return list;
            }
            to[count] = index;
            count += 1;
        }
    }
    &to[..count]
}

/// One side of a block of pairs.
#[derive(Clone, Copy)]
pub struct Edge<'a> {
    /// First row and number of rows; both count heads of tokens.
    pub first: usize,
    pub rows: usize,
    /// Rows per token.
    pub group: usize,
    /// Positions of all tokens of this side.
    pub pos: &'a [i32],
}

impl Edge<'_> {
    /// The position of every row; zeros past the last.
    #[inline(always)]
    pub fn positions(&self) -> [i32; KEYS] {
        let mut positions = [0i32; KEYS];
        if self.group == 1 {
            positions[..self.rows].copy_from_slice(&self.pos[self.first..self.first + self.rows]);
            return positions;
        }
        let (mut token, mut head) = (self.first / self.group, self.first % self.group);
        for at in &mut positions[..self.rows] {
            *at = self.pos[token];
            head += 1;
            if head == self.group {
                (token, head) = (token + 1, 0);
            }
        }
        positions
    }
}

/// A block whose mask bits are computed: up to `KEYS` rows by up to `KEYS` columns.
pub struct Bits<'a> {
    pub rows: Edge<'a>,
    pub cols: Edge<'a>,
    /// True if rows are queries (forward), false if they are keys (backward).
    pub rows_are_queries: bool,
    pub slices: &'a [Slice],
    pub list: &'a [u32],
    /// Output, `MASK_WORDS` per row.
    pub to: *mut u16,
}

/// Fills `to`: bit c of row r is set if the pair attends.
///
/// # Safety
/// `to` has room for the rows.
#[inline(always)]
pub unsafe fn bits<S: Simd>(b: &Bits<'_>) {
    let (cols_at, rows_at) = (b.cols.positions(), b.rows.positions());
    std::ptr::write_bytes(b.to, 0, b.rows.rows * MASK_WORDS);
    for &index in b.list {
        let s = &b.slices[index as usize];
        let (rows, cols) = if b.rows_are_queries {
            (within(&b.rows, s.q_start, s.q_end), within(&b.cols, s.k_start, s.k_end))
        } else {
            (within(&b.rows, s.k_start, s.k_end), within(&b.cols, s.q_start, s.q_end))
        };
        if cols.0 >= cols.1 {
            continue;
        }
        for r in rows.0..rows.1 {
            let at = i64::from(rows_at[r]);
            let (lo, hi) = if b.rows_are_queries { (at + s.lo, at + s.hi) } else { (at - s.hi, at - s.lo) };
            let (lo, hi) = (narrow(lo), narrow(hi));
            for word in cols.0 / LANES..cols.1.div_ceil(LANES) {
                let found = S::between(cols_at.as_ptr().add(word * LANES), lo, hi);
                *b.to.add(r * MASK_WORDS + word) |= found & lanes(cols, word * LANES);
            }
        }
    }
}

/// Rows of `edge`, counted from its first, whose tokens are in `start..end`.
#[inline(always)]
fn within(edge: &Edge<'_>, start: i64, end: i64) -> (usize, usize) {
    let clip = |token: i64| {
        let row = (token.max(0) as usize).min(edge.pos.len()) * edge.group;
        row.saturating_sub(edge.first).min(edge.rows)
    };
    (clip(start), clip(end))
}

#[inline(always)]
fn narrow(x: i64) -> i32 {
    x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// Bits of the lanes `at..at + 16` that lie in `cols`.
#[inline(always)]
fn lanes(cols: (usize, usize), at: usize) -> u16 {
    let below = |end: usize| ((1u32 << end.saturating_sub(at).min(LANES)) - 1) as u16;
    below(cols.1) & !below(cols.0)
}

/// The range of columns that some row attends to, widened to multiples of `SUB`; `(0, 0)` if empty.
///
/// # Safety
/// `bits` has the rows.
pub unsafe fn extent(bits: *const u16, rows: usize) -> (usize, usize) {
    let mut any = [0u16; MASK_WORDS];
    for r in 0..rows {
        for (word, any) in any.iter_mut().enumerate() {
            *any |= *bits.add(r * MASK_WORDS + word);
        }
    }
    let first = any.iter().position(|&w| w != 0);
    let last = any.iter().rposition(|&w| w != 0);
    match (first, last) {
        (Some(first), Some(last)) => (first * LANES / SUB * SUB, ((last + 1) * LANES).next_multiple_of(SUB)),
        _ => (0, 0),
    }
}

/// The range from the first to the last row that attends to any column.
///
/// # Safety
/// `bits` has the rows.
pub unsafe fn attending(bits: *const u16, rows: usize) -> std::ops::Range<usize> {
    let attends = |r: &usize| (0..MASK_WORDS).any(|word| *bits.add(r * MASK_WORDS + word) != 0);
    let end = (0..rows).rev().find(attends).map_or(0, |last| last + 1);
    (0..end).find(attends).unwrap_or(0)..end
}
