//! Values that another thread reads from the file while other values are transferred: a checkpoint streams them during
//! the next step.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::{Error, Result, remedy};
use super::file::{IoFailure, Step, move_all};
use super::layout::Codec;
use super::space::Extent;
use super::worker::WorkerContext;
use super::{FileValue, Kind, PAGE, Spill, Tag};
use crate::share::{Reader, Share};

/// Transfer number of readers' operations in fault injection; no transfer has it.
const NO_TRANSFER: u64 = u64::MAX;

/// Locations in the file of consecutive values.
struct Source {
    live: Arc<WorkerContext>,
    /// Offset and bytes of each value.
    parts: Vec<(u64, u64)>,
    tag: Tag,
    row_bytes: u64,
    elem: u64,
    /// Holds the page-aligned buffer.
    buffer: Mutex<Vec<u8>>,
}

impl Spill {
    /// Lets another thread read values that, laid end to end, are rows x cols elements. They cannot be overwritten
    /// before the share ends, which waits until the reader is gone.
    ///
    /// # Panics
    /// If one is being written or is encoded, or if the number of elements differs.
    #[track_caller]
    pub fn share<'a>(
        &self,
        parts: impl IntoIterator<Item = &'a FileValue>,
        shape: [usize; 2],
    ) -> (Share, Reader) {
        let parts: Vec<&FileValue> = parts.into_iter().collect();
        let Some(first) = parts.first() else { panic!("spill share: nothing") };
        let (tag, dtype) = (first.tag, first.dtype());
        let bytes = |stored: &FileValue| stored.layout.moved_bytes(&(0..stored.layout.rows));
        let all: u64 = parts.iter().map(|stored| bytes(stored)).sum();
        let plain = parts.iter().all(|stored| stored.codec() == Codec::AsIs && stored.dtype() == dtype);
        let elem = dtype.bytes() as u64;
        let fits = plain && all == (shape[0] * shape[1]) as u64 * elem;
        assert!(fits, "spill share: {tag}: {all} bytes are not {dtype:?}{shape:?}, or are coded");
        let extents: Vec<Rc<Extent>> = parts.iter().map(|stored| stored.extent.clone()).collect();
        extents.iter().for_each(|extent| extent.begin(Kind::Read, tag));
        let places = parts.iter().map(|stored| (stored.extent.offset, bytes(stored))).collect();
        let source = self.0.live.clone().map(|live| {
            let (row_bytes, buffer) = (shape[1] as u64 * elem, Mutex::default());
            Source { live, parts: places, tag, row_bytes, elem, buffer }
        });
        let (share, pass) = Share::over(move || extents.iter().for_each(|extent| extent.end(Kind::Read)));
        let reader = Reader::of(shape, dtype, pass, move |rows, cols, out| match &source {
            Some(source) => source.read(rows, cols, out),
            None => Ok(()),
        });
        (share, reader)
    }
}

impl Source {
    fn read(&self, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let (first, end) = (cols.start as u64 * self.elem, cols.end as u64 * self.elem);
        if first == 0 && end == self.row_bytes {
            return self.stretch(rows.start as u64 * end..rows.end as u64 * end, out);
        }
        for row in rows {
            let at = row as u64 * self.row_bytes;
            self.stretch(at + first..at + end, out)?;
        }
        Ok(())
    }

    /// Appends bytes of the values laid end to end.
    fn stretch(&self, bytes: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let mut start = 0;
        for &(offset, len) in &self.parts {
            let (from, to) = (bytes.start.max(start), bytes.end.min(start + len));
            if from < to {
                self.append(offset + from - start..offset + to - start, out)?;
            }
            start += len;
        }
        Ok(())
    }

    /// Appends bytes of the file.
    fn append(&self, place: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let (page, direct) = (PAGE as usize, self.live.direct);
        let first = place.start - place.start % PAGE;
        let head = (place.start - first) as usize;
        let len = (place.end - place.start) as usize;
        let padded = (head + len).next_multiple_of(page);
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() < padded + page {
            buffer.resize(padded + page, 0);
        }
        let aligned = buffer.as_ptr().align_offset(page).min(page);
        let into = &mut buffer[aligned..aligned + padded];
        let moved = move_all(into.len(), direct, |at, attempt| {
            let step = Step { transfer: NO_TRANSFER, piece: 0, attempt };
            self.live.file.read_at(&mut into[at..], first + at as u64, step)
        });
        moved.map_err(|stopped| self.stopped(first, padded, stopped))?;
        out.extend_from_slice(&into[head..head + len]);
        Ok(())
    }

    fn stopped(&self, first: u64, len: usize, IoFailure { at, source }: IoFailure) -> Error {
        Error::Io {
            action: "read",
            file: self.live.name.clone(),
            offset: first + at as u64,
            bytes: (len - at) as u64,
            tag: self.tag,
            remedy: remedy(&source),
            source: Arc::<io::Error>::new(source),
        }
    }
}
