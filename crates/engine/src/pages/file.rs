//! Pages on disk, for sequences longer than the pages in memory: their keys and values in a file, layer by layer. The
//! file is unlinked, so it disappears with its process. One thread reads ahead and writes in the background
//! ([`super::ahead`]).

use std::cell::RefCell;
use std::fs::{File, OpenOptions, remove_file};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fathom_tensor::{Category, DType, Device, PAGE_ROWS, Tensor};

use super::ahead::{Ahead, Span};

/// Keys (0) or values (1) of a layer.
pub(super) type Side = (usize, usize);

/// Maximum bytes read ahead, and maximum bytes being written.
const AHEAD_BYTES: u64 = 16 << 20;

/// Maximum bytes of one read.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes of the buffers of a file with `pages` pages of `layer_page_bytes` bytes per layer: for reading ahead and for
/// writing, each at most half of a layer.
pub(super) fn buffers_bytes(pages: usize, layer_page_bytes: u64) -> u64 {
    2 * ahead_bytes(pages, layer_page_bytes)
}

fn ahead_bytes(pages: usize, layer_page_bytes: u64) -> u64 {
    AHEAD_BYTES.min(pages as u64 * layer_page_bytes / 2)
}

/// Number and size of the buffers: whole pages of keys or values.
fn buffers(pages: usize, layer_page_bytes: u64) -> (usize, usize) {
    let (all, page) = (ahead_bytes(pages, layer_page_bytes), (layer_page_bytes / 2).max(1));
    let each = (all / 8).min(PIECE_BYTES) / page * page;
    let each = each.max(page);
    ((all / each) as usize, each as usize)
}

pub(super) struct PageFile {
    file: Arc<File>,
    folder: PathBuf,
    /// By layer, offsets of keys and values, and the size of a row of each.
    starts: Vec<[u64; 2]>,
    row_bytes: Vec<[u64; 2]>,
    ahead: RefCell<Ahead>,
    /// Charges the buffers in the pool; the memory itself belongs to the host, since another thread uses it.
    _buffers: Tensor,
}

impl PageFile {
    /// Creates a file in a folder, for `pages` pages of layers with these row sizes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create(
        device: &Device,
        folder: &Path,
        row_bytes: Vec<[u64; 2]>,
        pages: usize,
    ) -> Result<PageFile> {
        let mut names = (0..).map(|number: u64| folder.join(format!(".pages-{number}")));
        let file = loop {
            let Some(name) = names.next() else { return Err(ErrorKind::AlreadyExists.into()) };
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&name);
            match file {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                file => {
                    let file = file?;
                    remove_file(&name)?;
                    break file;
                }
            }
        };
        let mut end = 0;
        let mut place = |bytes: u64| {
            let start = end;
            end += bytes * (pages * PAGE_ROWS) as u64;
            start
        };
        let starts = row_bytes.iter().map(|sides| sides.map(&mut place)).collect();
        file.set_len(end)?;
        let file = Arc::new(file);
        let page =
            row_bytes.iter().map(|sides| sides.iter().sum::<u64>()).max().unwrap_or(0) * PAGE_ROWS as u64;
        let ahead = RefCell::new(Ahead::start(file.clone(), buffers(pages, page))?);
        let bytes = buffers_bytes(pages, page) as usize;
        let _buffers = device.empty(1, bytes, DType::U8, Category::Staging);
        Ok(PageFile { file, folder: folder.to_path_buf(), starts, row_bytes, ahead, _buffers })
    }

    /// Maximum number of pages of keys or values per read.
    pub fn piece(&self, (layer, side): Side) -> usize {
        let bytes = self.ahead.borrow().buffer_bytes();
        (bytes / (self.row_bytes[layer][side] as usize * PAGE_ROWS).max(1)).max(1)
    }

    /// The byte range of some rows.
    fn span(&self, side: Side, (row, rows): (usize, usize)) -> Span {
        Span { at: self.at(side, row), bytes: rows * self.row_bytes[side.0][side.1] as usize }
    }

    /// Waits until everything is written to the file.
    ///
    /// # Panics
    /// Those of [`PageFile::read`].
    pub fn settle(&self) {
        let settled = self.ahead.borrow_mut().settle();
        self.done(settled);
    }

    /// Starts to read rows of some pieces in order, as far as there are buffers.
    ///
    /// # Panics
    /// Those of [`PageFile::read`].
    pub fn read_ahead(&self, pieces: impl Iterator<Item = (Side, (usize, usize))>) {
        let spans: Vec<Span> = pieces.map(|(side, rows)| self.span(side, rows)).collect();
        let started = self.ahead.borrow_mut().begin(&spans);
        self.done(started);
    }

    /// Reads rows of some pieces, each into its tensor: first those not read ahead, by several threads. Writes must
    /// have settled.
    ///
    /// # Panics
    /// Those of [`PageFile::read`].
    pub fn fill(&self, device: &Device, side: Side, pieces: Vec<((usize, usize), Tensor)>) {
        let mut ahead = self.ahead.borrow_mut();
        let spans = pieces.into_iter().map(|(rows, into)| (self.span(side, rows), into));
        let (started, rest): (Vec<_>, Vec<_>) = spans.partition(|(span, _)| ahead.has(*span));
        let (places, into): (Vec<u64>, Vec<Vec<Tensor>>) =
            rest.into_iter().map(|(span, into)| (span.at, vec![into])).unzip();
        let (file, failed) = (&self.file, Mutex::new(None));
        device.machine.fill(&into, &|index, bytes| {
            if let Err(error) =
                bytes.iter_mut().try_for_each(|bytes| file.read_exact_at(bytes, places[index]))
            {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
        self.done(failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err));
        for (span, into) in started {
            let taken = ahead.take(span, |bytes| device.machine.write(&into, bytes));
            self.done(taken.map(drop));
        }
    }

    fn at(&self, (layer, side): Side, row: usize) -> u64 {
        self.starts[layer][side] + row as u64 * self.row_bytes[layer][side]
    }

    /// Reads rows, counted over all pages.
    ///
    /// # Panics
    /// With the system's error, which ends the step.
    pub fn read(&self, side: Side, (row, rows): (usize, usize)) -> Vec<u8> {
        self.settle();
        let mut bytes = vec![0; rows * self.row_bytes[side.0][side.1] as usize];
        let read = self.file.read_exact_at(&mut bytes, self.at(side, row));
        self.done(read);
        bytes
    }

    /// Overwrites rows from `row` on, in the background.
    ///
    /// # Panics
    /// Those of [`PageFile::read`], if an earlier write failed.
    pub fn write(&self, side: Side, row: usize, bytes: Vec<u8>) {
        let started = self.ahead.borrow_mut().write(self.at(side, row), bytes);
        self.done(started);
    }

    fn done(&self, result: Result<()>) {
        result.unwrap_or_else(|error| {
            panic!("keys and values on disk, in {}: {error}; make room there", self.folder.display())
        });
    }
}
