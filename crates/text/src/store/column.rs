//! Numeric columns of a store: values per token, such as loss weights or another model's log-probabilities, and
//! values per document.
//!
//! A column is a file `PREFIX.weight`, `PREFIX.ref`, `PREFIX.best` or `PREFIX.values` next to `.bin` and `.idx`, little endian:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `FTHMCOLS` |
//! | 8 | 8 | version, u64 = 1 |
//! | 16 | 8 | number of values, u64 |
//! | 24 | 32 | [`Store::fingerprint`](super::Store::fingerprint) of the store that it belongs to |
//! | 56 | 32 | BLAKE3 of the values |
//! | 88 | 32 | hash of its origin: the reference model's hash, for best tokens the hash of teacher and settings, otherwise zeros |
//! | 120 | 4 n | one f32 per token in the order of `.bin`; in `.best` a fixed number of pairs per token, in `.values` a fixed number per document |
//!
//! A token's value refers to the token as a target: the weight of its loss given all preceding tokens, or its
//! log-probability.

use std::path::{Path, PathBuf};

use super::header::u64_at;
use super::map::Tokens;
use super::{file, format_error};
use crate::error::Result;

pub(super) const MAGIC: &[u8; 8] = b"FTHMCOLS";
pub(super) const VERSION: u64 = 1;
pub(super) const HEADER_BYTES: usize = 120;
/// Bytes of a value.
pub(super) const WIDTH: usize = 4;

/// Kind of column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// The weight of each token's loss, zero or more; tokens of weight zero are not trained on.
    Weight,
    /// Natural log-probability of each token under a reference model.
    Reference,
    /// A teacher's best tokens at the position of each token: alternating ids and natural log-probabilities.
    Best,
    /// Values of each document: [`super::Header::values`] numbers, NaN where unknown.
    Values,
}

impl Column {
    /// All columns.
    pub const ALL: [Column; 4] = [Column::Weight, Column::Reference, Column::Best, Column::Values];
    /// Columns with values per token.
    pub const OF_TOKENS: [Column; 3] = [Column::Weight, Column::Reference, Column::Best];

    /// File name suffix.
    pub fn suffix(self) -> &'static str {
        match self {
            Column::Weight => ".weight",
            Column::Reference => ".ref",
            Column::Best => ".best",
            Column::Values => ".values",
        }
    }

    /// Default for tokens without a value.
    pub fn absent(self) -> f32 {
        match self {
            Column::Weight => 1.0,
            Column::Reference | Column::Best => 0.0,
            Column::Values => f32::NAN,
        }
    }

    /// Returns true if the store at `prefix` has this column.
    pub fn exists(self, prefix: &Path) -> bool {
        file(prefix, self.suffix()).is_file()
    }

    pub(super) fn admits(self, value: f32) -> bool {
        match self {
            Column::Weight => value.is_finite() && value >= 0.0,
            Column::Reference | Column::Best => value.is_finite(),
            Column::Values => !value.is_infinite(),
        }
    }
}

/// A column file opened for reading.
#[derive(Debug)]
pub(super) struct ColumnFile {
    column: Column,
    path: PathBuf,
    values: Tokens,
    header: [u8; HEADER_BYTES],
}

impl ColumnFile {
    /// Opens a store's column, if it exists.
    pub(super) fn open(column: Column, prefix: &Path, count: u64) -> Result<Option<Self>> {
        if !column.exists(prefix) {
            return Ok(None);
        }
        let path = file(prefix, column.suffix());
        let values = Tokens::open(&path)?;
        let bad = |offset, field, reason| Err(format_error(&path, offset, field, reason));
        let expected = u128::from(count) * WIDTH as u128 + HEADER_BYTES as u128;
        let (found, more) = (u128::from(values.bytes()), u128::from(count) * 2 * WIDTH as u128);
        // The number of pairs per token follows from the file's size.
        let pairs = column == Column::Best
            && found
                .checked_sub(HEADER_BYTES as u128)
                .is_some_and(|rest| rest > 0 && more > 0 && rest % more == 0);
        if found != expected && !pairs {
            let reason = format!("{count} values need {expected} bytes, the file has {}", values.bytes());
            return bad(0, "size", reason);
        }
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&values.read(0..HEADER_BYTES, &path)?);
        if &header[..8] != MAGIC || u64_at(&header, 8) != VERSION {
            return bad(0, "magic", format!("this is no column of a store of version {VERSION}"));
        }
        Ok(Some(Self { column, path, values, header }))
    }

    /// Number of values per token (or document), given their `count`.
    pub(super) fn width(&self, count: u64) -> usize {
        ((self.values.bytes() - HEADER_BYTES as u64) / (WIDTH as u64 * count.max(1))) as usize
    }

    /// Kind of the column.
    pub(super) fn column(&self) -> Column {
        self.column
    }

    /// Rejects a column of another store.
    pub(super) fn check(&self, fingerprint: &[u8; 32]) -> Result<()> {
        if &self.header[24..56] == fingerprint {
            return Ok(());
        }
        let reason = "it belongs to a store of other documents; write it again".to_string();
        Err(format_error(&self.path, 24, "fingerprint", reason))
    }

    /// Hash of its origin, such as the reference model.
    pub(super) fn made_by(&self) -> [u8; 32] {
        let mut name = [0; 32];
        name.copy_from_slice(&self.header[88..]);
        name
    }

    /// Hashes of the values and of their origin.
    pub(super) fn name(&self) -> &[u8] {
        &self.header[56..]
    }

    /// Appends `len` values from `first` on to `out`.
    pub(super) fn read(&self, first: usize, len: usize, out: &mut Vec<f32>) -> Result<()> {
        let at = HEADER_BYTES + first * WIDTH;
        let bytes = self.values.read(at..at + len * WIDTH, &self.path)?;
        let begin = out.len();
        out.extend(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)));
        match out[begin..].iter().position(|value| !self.column.admits(*value)) {
            None => Ok(()),
            Some(wrong) => {
                let reason = format!("{} is value {}", out[begin + wrong], first + wrong);
                Err(format_error(&self.path, (at + wrong * WIDTH) as u64, "value", reason))
            }
        }
    }
}
