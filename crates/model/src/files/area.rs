//! Rectangles of tensors, and the names of stored parts of tensors.
//!
//! A tensor is seen as a matrix whose columns are its last dimension; a vector's elements are rows of one column. A
//! part is stored under `NAME[r0:r1,c0:c1]`, with the whole tensor's shape in the file's `__metadata__` under `NAME`;
//! whole tensors have their plain names, so a file without parts is an ordinary Hugging Face file.

use std::ops::Range;

/// A range of rows and of columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Area {
    /// Rows.
    pub rows: Range<usize>,
    /// Columns.
    pub cols: Range<usize>,
}

/// A shape as rows x columns; `None` if the row count overflows.
pub(crate) fn matrix(shape: &[usize]) -> Option<[usize; 2]> {
    match shape {
        [] => Some([1, 1]),
        [len] => Some([*len, 1]),
        [outer @ .., cols] => {
            Some([outer.iter().try_fold(1usize, |rows, size| rows.checked_mul(*size))?, *cols])
        }
    }
}

impl Area {
    /// The whole area of rows x columns.
    pub fn of([rows, cols]: [usize; 2]) -> Area {
        Area { rows: 0..rows, cols: 0..cols }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The intersection, if not empty.
    pub fn meet(&self, other: &Area) -> Option<Area> {
        let both = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start)..a.end.min(b.end);
        let met = Area { rows: both(&self.rows, &other.rows), cols: both(&self.cols, &other.cols) };
        (met.rows.start < met.rows.end && met.cols.start < met.cols.end).then_some(met)
    }

    /// Splits a range of its elements, counted row by row, into areas: part of a row, whole rows, part of a row.
    pub fn stretch(&self, range: Range<usize>) -> Vec<Area> {
        let width = self.cols.len();
        let mut areas = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (row, col) = (at / width, at % width);
            let end = if col > 0 || range.end - at < width {
                range.end.min((row + 1) * width)
            } else {
                range.end / width * width
            };
            let rows = self.rows.start + row..self.rows.start + (end - 1) / width + 1;
            let cols = match rows.len() {
                1 => self.cols.start + col..self.cols.start + col + (end - at),
                _ => self.cols.clone(),
            };
            areas.push(Area { rows, cols });
            at = end;
        }
        areas
    }
}

/// Splits rows of a stack [experts, `inner`, ..] into experts and the rows within each: all rows of one or several
/// experts, or some rows of one; `None` otherwise.
pub(crate) fn of_stack(rows: &Range<usize>, inner: usize) -> Option<(Range<usize>, Range<usize>)> {
    let first = rows.start.checked_div(inner)?;
    let within = rows.start - first * inner..rows.end.checked_sub(first * inner)?;
    if within.end <= inner {
        return Some((first..first + 1, within));
    }
    let whole = within.start == 0 && within.end.is_multiple_of(inner);
    whole.then(|| (first..first + within.end / inner, 0..inner))
}

/// The name of a stored part of a tensor.
pub(crate) fn part_name(name: &str, Area { rows, cols }: &Area) -> String {
    format!("{name}[{}:{},{}:{}]", rows.start, rows.end, cols.start, cols.end)
}

/// The tensor's name and the part in a stored name; `None` for a name without a part.
pub(crate) fn parse_part(stored: &str) -> Option<(&str, Area)> {
    let (name, part) = stored.strip_suffix(']')?.rsplit_once('[')?;
    let (rows, cols) = part.split_once(',')?;
    let range = |text: &str| -> Option<Range<usize>> {
        let (from, to) = text.split_once(':')?;
        let range = from.parse().ok()?..to.parse().ok()?;
        (range.start < range.end).then_some(range)
    };
    Some((name, Area { rows: range(rows)?, cols: range(cols)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_their_elements_in_order() {
        let area = Area { rows: 3..7, cols: 2..7 };
        for start in 0..20 {
            for end in start..=20 {
                let areas = area.stretch(start..end);
                assert!(areas.len() <= 3, "{start}..{end}: {areas:?}");
                let flat = areas.iter().flat_map(|part| {
                    part.rows.clone().flat_map(|row| part.cols.clone().map(move |col| (row, col)))
                });
                let expected = (start..end).map(|at| (3 + at / 5, 2 + at % 5));
                assert!(flat.eq(expected), "{start}..{end}: {areas:?}");
            }
        }
    }

    #[test]
    fn rows_of_stacks_are_experts_or_parts_of_one() {
        assert_eq!(of_stack(&(0..12), 4), Some((0..3, 0..4)));
        assert_eq!(of_stack(&(4..12), 4), Some((1..3, 0..4)));
        assert_eq!(of_stack(&(4..8), 4), Some((1..2, 0..4)));
        assert_eq!(of_stack(&(6..8), 4), Some((1..2, 2..4)));
        assert_eq!(of_stack(&(2..8), 4), None);
        assert_eq!(of_stack(&(4..10), 4), None);
        assert_eq!(of_stack(&(0..0), 0), None);
    }

    #[test]
    fn names_say_parts_and_come_back() {
        let area = Area { rows: 4..8, cols: 0..16 };
        let name = part_name("a.b[0].weight", &area);
        assert_eq!(name, "a.b[0].weight[4:8,0:16]");
        assert_eq!(parse_part(&name), Some(("a.b[0].weight", area)));
        for plain in ["a.weight", "a[1]", "a[1:2]", "a[2:1,0:1]", "a[1:2,x:3]", "]", "a[-1:2,0:1]"] {
            assert_eq!(parse_part(plain), None, "{plain}");
        }
        assert_eq!(matrix(&[3, 4, 5]), Some([12, 5]));
        assert_eq!(matrix(&[7]), Some([7, 1]));
        assert_eq!(matrix(&[usize::MAX, 3, 5]), None);
    }
}
