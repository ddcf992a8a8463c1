//! The parts in which a tensor lies in files, and how areas are read from them.

use std::ops::Range;

use super::area::Area;
use super::header::Stored;
use crate::error::Result;

/// Bytes of whole rows that are read together to take some of their columns.
const TOGETHER_BYTES: usize = 1 << 20;
/// From this many bytes on, what is wanted of a row is read alone and the rest skipped.
const ALONE_BYTES: usize = 16 << 10;

/// A part: rows and columns that lie row by row in a file.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Which file.
    pub file: usize,
    /// Its first byte there.
    pub start: u64,
    /// Which elements.
    pub area: Area,
}

/// All parts of a tensor.
pub(super) struct Parts {
    size: [usize; 2],
    element_bytes: usize,
    /// At least one.
    parts: Vec<Part>,
}

/// Reads bytes of a file: its number, where, and into what.
pub(super) type ReadAt<'a> = &'a mut dyn FnMut(usize, u64, &mut [u8]) -> Result<()>;

impl Parts {
    /// The first part of a tensor.
    pub fn new(stored: &Stored, part: Part) -> Parts {
        // Shapes that cannot be counted were refused when the part was read.
        let size = super::area::matrix(&stored.shape).unwrap_or_default();
        Parts { size, element_bytes: stored.element_bytes, parts: vec![part] }
    }

    /// One more.
    pub fn push(&mut self, part: Part) {
        self.parts.push(part);
    }

    /// Rows x columns of the whole.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The part that begins first.
    pub fn first(&self) -> &Part {
        &self.parts[0]
    }

    /// Numbers of the files.
    pub fn files(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.iter().map(|part| part.file)
    }

    /// Whether one part is everything.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().any(|part| part.area == Area::of(self.size))
    }

    /// Orders the parts.
    ///
    /// # Errors
    /// If something is missing or there twice.
    pub fn check(&mut self) -> std::result::Result<(), String> {
        self.parts.sort_by_key(|part| (part.area.rows.start, part.area.cols.start));
        let elements: u128 = self.parts.iter().map(|part| part.area.len() as u128).sum();
        let all = Area::of(self.size).len() as u128;
        if elements < all {
            return Err(format!("has {elements} of {all} elements in the files: a part is missing"));
        }
        for (index, part) in self.parts.iter().enumerate() {
            let near = self.parts[index + 1..].iter();
            let mut near = near.take_while(|other| other.area.rows.start < part.area.rows.end);
            if let Some(other) = near.find(|other| other.area.meet(&part.area).is_some()) {
                return Err(format!("has {:?} and {:?}, which overlap", part.area, other.area));
            }
        }
        Ok(())
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

    /// What is in a part and in the area that is read.
    fn copy(&self, part: &Part, both: &Area, area: &Area, out: &mut [u8], read_at: ReadAt<'_>) -> Result<()> {
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
            // The last row ends where the wanted columns do.
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
