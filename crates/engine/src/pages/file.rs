//! Pages of sequences that are longer than the pages in memory: their keys and values in a file, layer by layer. The file has no name, so it
//! is gone with its process.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fathom_tensor::PAGE_ROWS;

/// Keys (0) or values (1) of a layer.
pub(super) type Side = (usize, usize);

/// The file.
pub(super) struct PageFile {
    file: File,
    folder: PathBuf,
    /// By layer, where keys and values begin, and bytes of a row of each.
    starts: Vec<[u64; 2]>,
    row_bytes: Vec<[u64; 2]>,
}

impl PageFile {
    /// A file in a folder for so many pages of layers with rows of so many bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn create(folder: &Path, row_bytes: Vec<[u64; 2]>, pages: usize) -> Result<PageFile> {
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
        Ok(PageFile { file, folder: folder.to_path_buf(), starts, row_bytes })
    }

    fn at(&self, (layer, side): Side, row: usize) -> u64 {
        self.starts[layer][side] + row as u64 * self.row_bytes[layer][side]
    }

    /// Rows from one of them on, counted over all pages.
    ///
    /// # Panics
    /// With the system's reason, which ends the step.
    pub fn read(&self, side: Side, (row, rows): (usize, usize)) -> Vec<u8> {
        let mut bytes = vec![0; rows * self.row_bytes[side.0][side.1] as usize];
        let read = self.file.read_exact_at(&mut bytes, self.at(side, row));
        self.done(read);
        bytes
    }

    /// Overwrites rows from one of them on.
    ///
    /// # Panics
    /// As [`PageFile::read`].
    pub fn write(&self, side: Side, row: usize, bytes: &[u8]) {
        self.done(self.file.write_all_at(bytes, self.at(side, row)));
    }

    fn done(&self, result: Result<()>) {
        result.unwrap_or_else(|error| {
            panic!("keys and values on disk, in {}: {error}; make room there", self.folder.display())
        });
    }
}
