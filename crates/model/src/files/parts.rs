//! Parts of a tensor in files, and reading areas across them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::area::Area;
use super::header::TensorEntry;
use crate::error::Result;

/// Bytes of whole rows that are read at a time when only some columns are wanted.
const TOGETHER_BYTES: usize = 1 << 20;
/// Size from which the wanted bytes of a row are read separately, skipping the rest.
const ALONE_BYTES: usize = 16 << 10;

/// A part of a tensor: rows and columns, stored row-major in a file.
#[derive(Clone, Debug)]
pub(super) struct TensorPart {
    /// Index of the file.
    pub file: usize,
    /// Offset of its first byte in the file.
    pub start: u64,
    /// Its elements.
    pub area: Area,
}

pub(super) struct TensorParts {
    size: [usize; 2],
    element_bytes: usize,
    /// At least one.
    parts: Vec<TensorPart>,
    /// Whether one of them is the whole tensor.
    whole: bool,
}

/// Reads bytes of a file: file index, offset, destination.
pub(super) type ReadAt<'a> = &'a mut dyn FnMut(usize, u64, &mut [u8]) -> Result<()>;

impl TensorParts {
    /// A tensor with its first part.
    pub fn new(stored: &TensorEntry, part: TensorPart) -> TensorParts {
        // Overflowing shapes were refused when the part was read.
        let size = super::area::matrix(&stored.shape).unwrap_or_default();
        let whole = part.area == Area::of(size);
        TensorParts { size, element_bytes: stored.element_bytes, parts: vec![part], whole }
    }

    /// Adds a part.
    pub fn push(&mut self, part: TensorPart) {
        self.whole |= part.area == Area::of(self.size);
        self.parts.push(part);
    }

    /// Shifts file indices by the number of files before them.
    pub fn shift_files(&mut self, before: usize) {
        self.parts.iter_mut().for_each(|part| part.file += before);
    }

    /// Rows x columns of the whole tensor.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The parts.
    pub fn all(&self) -> &[TensorPart] {
        &self.parts
    }

    /// The part that comes first.
    pub fn first(&self) -> &TensorPart {
        &self.parts[0]
    }

    /// Indices of the files.
    pub fn files(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.iter().map(|part| part.file)
    }

    /// Returns whether one part is the whole tensor.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Sorts and checks the parts.
    ///
    /// # Errors
    /// If a part is missing or duplicated.
    pub fn check(&mut self) -> std::result::Result<(), String> {
        self.parts.sort_by_key(|part| (part.area.rows.start, part.area.cols.start));
        let elements: u128 = self.parts.iter().map(|part| part.area.len() as u128).sum();
        let all = Area::of(self.size).len() as u128;
        if elements < all {
            return Err(format!("has {elements} of {all} elements in the files: a part is missing"));
        }
        match overlap(self.parts.iter().map(|part| &part.area)) {
            Some([one, other]) => Err(format!("has {one:?} and {other:?}, which overlap")),
            None => Ok(()),
        }
    }

    /// Overwrites `out` with the elements of an area, row by row.
    pub fn read(&self, area: &Area, out: &mut [u8], read_at: ReadAt<'_>) -> Result<()> {
        for part in &self.parts {
            if let Some(both) = part.area.meet(area) {
                self.copy(part, &both, area, out, read_at)?;
            }
        }
        Ok(())
    }

    /// Copies the intersection of a part and the wanted area.
    fn copy(
        &self,
        part: &TensorPart,
        both: &Area,
        area: &Area,
        out: &mut [u8],
        read_at: ReadAt<'_>,
    ) -> Result<()> {
        let bytes = |cols: &Range<usize>| cols.len() * self.element_bytes;
        let (width, want, stride) = (bytes(&part.area.cols), bytes(&both.cols), bytes(&area.cols));
        let rows = both.rows.len();
        let first = part.start + ((both.rows.start - part.area.rows.start) as u64) * width as u64;
        let skip = (both.cols.start - part.area.cols.start) * self.element_bytes;
        let at = (both.rows.start - area.rows.start) * stride
            + (both.cols.start - area.cols.start) * self.element_bytes;
        if want == width && want == stride {
            return read_at(part.file, first, &mut out[at..at + rows * want]);
        }
        if want >= ALONE_BYTES {
            return (0..rows).try_for_each(|row| {
                let from = first + row as u64 * width as u64 + skip as u64;
                read_at(part.file, from, &mut out[at + row * stride..][..want])
            });
        }
        let together = (TOGETHER_BYTES / width.max(1)).max(1);
        let mut buffer = Vec::new();
        for start in (0..rows).step_by(together) {
            let group = rows.min(start + together) - start;
            // The last row is read only up to the wanted columns.
            buffer.resize((group - 1) * width + skip + want, 0);
            read_at(part.file, first + start as u64 * width as u64, &mut buffer)?;
            for row in 0..group {
                let to = at + (start + row) * stride;
                out[to..to + want].copy_from_slice(&buffer[row * width + skip..][..want]);
            }
        }
        Ok(())
    }
}

/// Finds two overlapping areas in areas sorted by first row. A sweep line moves down the rows; the areas that it
/// crosses are disjoint in columns, so a new one can overlap only its neighbours. A header may list too many parts
/// for pairwise comparison.
fn overlap<'a>(areas: impl Iterator<Item = &'a Area>) -> Option<[&'a Area; 2]> {
    // Crossed areas by first column, and by the row at which each ends.
    let mut crossed: BTreeMap<usize, &Area> = BTreeMap::new();
    let mut ends = BinaryHeap::new();
    for area in areas.filter(|area| !area.is_empty()) {
        while let Some(Reverse((_, first))) = ends.peek().filter(|Reverse((end, _))| *end <= area.rows.start)
        {
            crossed.remove(first);
            ends.pop();
        }
        let before = crossed.range(..=area.cols.start).next_back();
        let after = crossed.range(area.cols.start..).next();
        if let Some((_, met)) = before.into_iter().chain(after).find(|(_, other)| other.meet(area).is_some())
        {
            return Some([area, met]);
        }
        crossed.insert(area.cols.start, area);
        ends.push(Reverse((area.rows.end, area.cols.start)));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sorted(mut areas: Vec<Area>) -> Vec<Area> {
        areas.sort_by_key(|area| (area.rows.start, area.cols.start));
        areas
    }

    #[test]
    fn overlaps_are_those_of_pairs() {
        let mut state = 1u64;
        let mut draw = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        let mut found = [0; 2];
        for _ in 0..4000 {
            let mut area = || {
                let (row, col) = (draw(12), draw(12));
                Area { rows: row..row + 1 + draw(4), cols: col..col + 1 + draw(4) }
            };
            let areas = sorted((0..4).map(|_| area()).collect());
            let pairs = areas
                .iter()
                .enumerate()
                .any(|(at, area)| areas[at + 1..].iter().any(|other| area.meet(other).is_some()));
            assert_eq!(overlap(areas.iter()).is_some(), pairs, "{areas:?}");
            found[usize::from(pairs)] += 1;
        }
        assert!(found.iter().all(|count| *count > 100), "{found:?}");
    }

    /// Horizontally and vertically adjacent parts, as many as a header of 100 MiB can list.
    #[test]
    fn many_parts_take_no_time() {
        let (many, started) = (300_000, Instant::now());
        for lying in [true, false] {
            let area = |at: usize| {
                let (one, all) = (at..at + 1, 0..many);
                if lying { Area { rows: one, cols: all } } else { Area { rows: all, cols: one } }
            };
            let part = |at: usize| TensorPart { file: 0, start: 0, area: area(at) };
            let stored = TensorEntry {
                dtype_name: "F32".into(),
                element_bytes: 4,
                shape: vec![many, many],
                start: 0,
                bytes: 0,
            };
            let mut parts = TensorParts::new(&stored, part(0));
            for at in 1..many {
                assert!(!parts.is_whole());
                parts.push(part(at));
            }
            parts.check().unwrap();
            parts.push(part(7));
            assert!(parts.check().unwrap_err().contains("overlap"));
        }
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
}
