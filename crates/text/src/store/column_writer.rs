//! Writes a column of a store.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::column::{Column, HEADER_BYTES, MAGIC, VERSION, WIDTH};
use super::reader::Store;
use super::{file, format_error, publish};
use crate::error::{OrIo, Result};

/// Writes a column; dropping it without [`ColumnWriter::finish`] removes the unfinished file.
#[derive(Debug)]
pub struct ColumnWriter {
    column: Column,
    path: PathBuf,
    out: BufWriter<File>,
    hasher: blake3::Hasher,
    made_by: [u8; 32],
    count: u64,
    finished: bool,
}

impl ColumnWriter {
    /// Starts a column next to `PREFIX.bin`. `made_by` identifies the origin of the values.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(prefix: &Path, column: Column, made_by: [u8; 32]) -> Result<Self> {
        let path = file(prefix, column.suffix());
        let temporary = file(&path, ".tmp");
        let mut out =
            BufWriter::with_capacity(1 << 20, File::create(&temporary).or_io("create", &temporary)?);
        out.write_all(&[0; HEADER_BYTES]).or_io("write", &temporary)?;
        let hasher = blake3::Hasher::new();
        Ok(Self { column, path, out, hasher, made_by, count: 0, finished: false })
    }

    /// Appends the values of the next tokens.
    ///
    /// # Errors
    /// The column does not allow a value, or the disk is full.
    pub fn push(&mut self, values: &[f32]) -> Result<()> {
        if let Some(wrong) = values.iter().position(|value| !self.column.admits(*value)) {
            let (at, reason) = (self.count + wrong as u64, format!("{} is not allowed", values[wrong]));
            return Err(format_error(&self.path, HEADER_BYTES as u64 + at * WIDTH as u64, "value", reason));
        }
        for value in values {
            self.hasher.update(&value.to_le_bytes());
            self.out.write_all(&value.to_le_bytes()).or_io("write", &file(&self.path, ".tmp"))?;
        }
        self.count += values.len() as u64;
        Ok(())
    }

    /// Number of values so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Publishes the column for an open store.
    ///
    /// # Errors
    /// The number of values does not match the tokens, or the disk cannot be written.
    pub fn finish(self, store: &Store) -> Result<()> {
        self.finish_for(store.num_tokens(), &store.fingerprint())
    }

    /// Like [`ColumnWriter::finish`], for a store that is not yet complete.
    pub(super) fn finish_for(mut self, count: u64, fingerprint: &[u8; 32]) -> Result<()> {
        let temporary = file(&self.path, ".tmp");
        let pairs = self.column == Column::Best
            && self
                .count
                .checked_div(2 * count)
                .is_some_and(|most| most > 0 && self.count == 2 * count * most);
        if self.count != count && !pairs {
            let reason = format!("{} values where {count} belong", self.count);
            return Err(format_error(&self.path, 16, "count", reason));
        }
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend(self.count.to_le_bytes());
        header.extend(fingerprint);
        header.extend(self.hasher.finalize().as_bytes());
        header.extend(self.made_by);
        let written = self.out.seek(SeekFrom::Start(0)).and_then(|_| self.out.write_all(&header));
        written.and_then(|()| self.out.flush()).or_io("write", &temporary)?;
        self.out.get_ref().sync_all().or_io("flush", &temporary)?;
        publish(&temporary, &self.path)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for ColumnWriter {
    fn drop(&mut self) {
        if !self.finished {
            // Never created or already removed: nothing to clean up.
            let _ = std::fs::remove_file(file(&self.path, ".tmp"));
        }
    }
}
