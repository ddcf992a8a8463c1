//! Terms of scores by distance: of a table (T5), a line of numbers for each head, one for each distance; of slopes (ALiBi),
//! the slope times the distance.
//!
//! Lines end where the bias is constant, so memory does not depend on lengths. A vector of scores whose columns are at
//! consecutive positions reads a run of its line; other vectors read numbers one by one.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over caller-checked extents, see each `# Safety`

use fathom_tensor::{Buckets, DistanceTerms};

use super::mask::Edge;
use super::shape::KEYS;
use super::simd::{LANES, Simd};

/// The operand: a table, and where its gradient is added.
#[derive(Clone, Copy, Debug)]
pub struct Bias {
    /// `[rows, heads]`.
    pub table: *const f32,
    /// Like `table`, added to by the backward pass; null if not wanted.
    pub gradient: *mut f32,
    /// Elements between rows of the two.
    pub strides: [usize; 2],
    /// Terms of distances.
    pub terms: DistanceTerms,
}

/// Terms of some heads.
#[derive(Clone, Copy)]
pub enum Terms {
    /// Numbers for each distance.
    Lines(Lines),
    /// Slopes.
    Slopes(Slopes),
}

/// Slopes of some heads by distance.
#[derive(Clone, Copy)]
pub struct Slopes {
    /// That of the first head.
    pub data: *const f32,
    /// Multiplies them.
    pub factor: f32,
}

impl Bias {
    /// Terms of all heads times `factor`, by distances of keys from queries or, `turned`, of queries from keys. `room` is for
    /// lines.
    ///
    /// # Safety
    /// There is room for the lines of these heads.
    pub unsafe fn terms(&self, (room, heads): (*mut f32, usize), factor: f32, turned: bool) -> Terms {
        match self.terms {
            DistanceTerms::Buckets(buckets) => {
                let lines = Lines { data: room, span: buckets.max_distance };
                lines.fill((self, heads), factor, |distance| {
                    buckets.of(if turned { -distance } else { distance })
                });
                Terms::Lines(lines)
            }
            DistanceTerms::Slopes => {
                Terms::Slopes(Slopes { data: self.table, factor: if turned { -factor } else { factor } })
            }
        }
    }
}

impl Terms {
    /// Terms from a head on.
    pub fn at_head(self, head: usize) -> Terms {
        match self {
            Terms::Lines(lines) => {
                let data = lines.data.wrapping_add(head * Lines::len(lines.span));
                Terms::Lines(Lines { data, ..lines })
            }
            Terms::Slopes(slopes) => Terms::Slopes(Slopes { data: slopes.data.wrapping_add(head), ..slopes }),
        }
    }
}

/// Lines of some heads.
#[derive(Clone, Copy)]
pub struct Lines {
    /// First element of the first head's line.
    pub data: *mut f32,
    /// Distance beyond which, on both sides, all elements are the same.
    pub span: usize,
}

impl Lines {
    /// Elements of a line: one for each distance up to `span` on both sides, and room for a vector beyond; 0 without biases.
    pub fn len(span: usize) -> usize {
        if span == 0 { 0 } else { 2 * span + 1 + 2 * LANES }
    }

    /// The element of a distance in a head's line. Those after it are of the distances after it.
    #[inline(always)]
    unsafe fn at(&self, head: usize, distance: i32) -> *mut f32 {
        let span = self.span as i32;
        let near = distance.clamp(1 - LANES as i32 - span, span);
        self.data.add(head * Lines::len(self.span) + (near + span + LANES as i32) as usize)
    }

    /// The distance of an element.
    fn distance(&self, element: usize) -> i64 {
        let span = self.span as i64;
        (element as i64 - span - LANES as i64).clamp(-span, span)
    }

    /// Fills the lines of all heads with biases times `factor`, by the rows of distances.
    unsafe fn fill(&self, (bias, heads): (&Bias, usize), factor: f32, row: impl Fn(i64) -> usize) {
        let len = Lines::len(self.span);
        for head in 0..heads {
            for element in 0..len {
                let row = row(self.distance(element));
                *self.data.add(head * len + element) = *bias.table.add(row * bias.strides[0] + head) * factor;
            }
        }
    }

    /// Adds one head's line of sums by distances of queries from keys to its column of the table's gradient.
    ///
    /// # Safety
    /// The line has been filled, and there is a gradient with this head.
    pub unsafe fn collect(&self, (bias, buckets): (&Bias, Buckets), head: usize) {
        for element in 0..Lines::len(self.span) {
            let bucket = buckets.of(-self.distance(element));
            *bias.gradient.add(bucket * bias.strides[1] + head) += *self.data.add(element);
        }
    }
}

/// A block of scores, or of their gradients, with the terms of its heads.
pub struct BiasBlock<'a> {
    /// Rows of `KEYS`.
    pub s: *mut f32,
    pub rows: Edge<'a>,
    pub cols: Edge<'a>,
    /// Range of columns, multiples of 32.
    pub range: (usize, usize),
    /// Terms by the distances of columns from rows; the first are those of a token's first head here.
    pub terms: Terms,
}

/// Numbers of a vector's lanes.
const ASCENDING: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Adds biases to scores.
///
/// # Safety
/// The pointers cover the extents.
#[inline(always)]
pub unsafe fn add<S: Simd>(b: &BiasBlock<'_>) {
    match b.terms {
        Terms::Lines(lines) => each::<S>(
            b,
            |score, head, at| S::store(score, S::add(S::load(score), S::load(lines.at(head, at)))),
            |score, head, at| *score += *lines.at(head, at),
        ),
        Terms::Slopes(Slopes { data, factor }) => each::<S>(
            b,
            |score, head, at| {
                // Distances below 2^24 are exact, so that both closures round alike.
                let at = S::add(S::splat(at as f32), S::load(ASCENDING.as_ptr()));
                let term = S::mul(at, S::splat(*data.add(head) * factor));
                S::store(score, S::add(S::load(score), term));
            },
            |score, head, at| *score += at as f32 * (*data.add(head) * factor),
        ),
    }
}

/// Adds gradients of scores to lines of sums.
///
/// # Safety
/// The pointers cover the extents.
#[inline(always)]
pub unsafe fn sum<S: Simd>(b: &BiasBlock<'_>) {
    let Terms::Lines(lines) = b.terms else { return };
    each::<S>(
        b,
        |gradient, head, at| {
            let sum = lines.at(head, at);
            S::store(sum, S::add(S::load(sum), S::load(gradient)));
        },
        |gradient, head, at| *lines.at(head, at) += *gradient,
    );
}

/// Calls `vector` or `number` with the block's elements, their heads and their distances, in a fixed order.
#[inline(always)]
unsafe fn each<S: Simd>(
    b: &BiasBlock<'_>,
    vector: impl Fn(*mut f32, usize, i32),
    number: impl Fn(*mut f32, usize, i32),
) {
    let (rows_at, mut cols_at) = (b.rows.positions(), b.cols.positions());
    for past in b.cols.rows.max(1)..KEYS {
        cols_at[past] = cols_at[past - 1].wrapping_add(1);
    }
    let mut ascends = [false; KEYS / LANES];
    for (ascends, at) in ascends.iter_mut().zip(cols_at.chunks(LANES)) {
        *ascends = b.cols.group == 1 && at.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1));
    }
    for r in 0..b.rows.rows {
        let head = (b.rows.first + r) % b.rows.group;
        for c in (b.range.0..b.range.1).step_by(LANES) {
            let s = b.s.add(r * KEYS + c);
            if ascends[c / LANES] {
                vector(s, head, cols_at[c].wrapping_sub(rows_at[r]));
                continue;
            }
            for lane in 0..LANES {
                let head = head + (b.cols.first + c + lane) % b.cols.group;
                number(s.add(lane), head, cols_at[c + lane].wrapping_sub(rows_at[r]));
            }
        }
    }
}
