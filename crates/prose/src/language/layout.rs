//! Validates the layout of fastText files (`.bin`, and `.ftz` with product-quantized matrices) before they are
//! loaded, so that sizes announced in a header are not allocated for a file that is too short.

use crate::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const MAGIC: i32 = 793_712_314;
const HEADER_BYTES: u64 = 8 + 56 + 28;

/// Centroids of a sub-quantizer; a code is one byte.
const CENTROIDS: u64 = 256;

/// A file and the number of its remaining bytes.
struct Walk {
    file: BufReader<File>,
    left: u64,
}

/// The file is shorter than announced, or announces impossible values.
struct Damage(String);

impl From<std::io::Error> for Damage {
    fn from(error: std::io::Error) -> Damage {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Damage("the file ends too early; copy it again".to_string()),
            _ => Damage(error.to_string()),
        }
    }
}

/// Validates the file at `path` from its header to its last matrix.
///
/// # Errors
/// [`Error::Read`] if the file cannot be read, [`Error::BadFile`] if it is damaged or not a fastText model.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let file = File::open(path).map_err(|e| Error::read(path, e))?;
    let left = file.metadata().map_err(|e| Error::read(path, e))?.len();
    let mut walk = Walk { file: BufReader::new(file), left };
    walk.model().map_err(|Damage(detail)| Error::BadFile {
        path: path.to_path_buf(),
        kind: "fastText model",
        detail,
    })
}

impl Walk {
    fn model(&mut self) -> Result<(), Damage> {
        if self.left < HEADER_BYTES {
            return Err(Damage(format!("{} bytes are too few for a header", self.left)));
        }
        if self.i32()? != MAGIC {
            return Err(Damage("the first four bytes are not fastText's".to_string()));
        }
        // After the version: dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn,
        // lrUpdateRate, t.
        let mut fields = [0; 13];
        for field in &mut fields {
            *field = self.i32()?;
        }
        self.skip(8)?;
        let (dim, bucket) = (fields[1], fields[9]);
        let (entries, words, labels) = (self.i32()?, self.i32()?, self.i32()?);
        self.skip(8)?;
        let pruned = self.i64()?;
        let whole = words.checked_add(labels) == Some(entries);
        if dim <= 0 || bucket < 0 || words < 0 || labels < 0 || !whole {
            return Err(Damage(format!(
                "dimension {dim}, {bucket} buckets, {entries} entries, {words} words and {labels} labels cannot be"
            )));
        }
        if labels == 0 {
            return Err(Damage("it has no labels; give a supervised model".to_string()));
        }
        let (dim, words, labels) = (dim as u64, words as u64, labels as u64);
        self.dictionary(words + labels)?;
        // In a pruned model only the n-grams in a list have rows.
        let grams = match u64::try_from(pruned) {
            Ok(pruned) => {
                self.pruned(pruned)?;
                pruned
            }
            Err(_) => bucket as u64,
        };
        let quantised = self.flag("quantised input")?;
        self.matrix(quantised, (words + grams, dim))?;
        let quantised = self.flag("quantised output")? && quantised;
        self.matrix(quantised, (labels, dim))
    }

    /// Words, each zero-terminated and followed by its count (8 bytes) and type (1 byte).
    fn dictionary(&mut self, entries: u64) -> Result<(), Damage> {
        const LEAST: u64 = 1 + 8 + 1;
        if entries.saturating_mul(LEAST) > self.left {
            return Err(self.too_small(&format!("{entries} words and labels")));
        }
        for _ in 0..entries {
            let word = self.file.skip_until(0)? as u64;
            self.left = self.left.saturating_sub(word);
            self.skip(9)?;
        }
        Ok(())
    }

    /// Pairs of an n-gram's bucket and its row after the words.
    fn pruned(&mut self, pairs: u64) -> Result<(), Damage> {
        if pairs.saturating_mul(8) > self.left {
            return Err(self.too_small(&format!("{pairs} n-grams")));
        }
        for _ in 0..pairs {
            let (_, row) = (self.i32()?, self.i32()?);
            if u64::try_from(row).is_ok_and(|row| row < pairs) {
                continue;
            }
            return Err(Damage(format!("n-gram {row} of {pairs} cannot be")));
        }
        Ok(())
    }

    fn matrix(&mut self, quantised: bool, (rows, columns): (u64, u64)) -> Result<(), Damage> {
        let norms = quantised && self.flag("quantised norms")?;
        let (found_rows, found_columns) = (self.i64()?, self.i64()?);
        if u64::try_from(found_rows).ok() != Some(rows) || u64::try_from(found_columns).ok() != Some(columns)
        {
            return Err(Damage(format!(
                "a matrix has {found_rows} rows of {found_columns} numbers, the header says {rows} of {columns}"
            )));
        }
        if !quantised {
            return self.skip_numbers(rows, columns);
        }
        let bytes = u64::from(self.i32()?.unsigned_abs());
        self.skip(bytes)?;
        let found = self.quantiser(columns)?;
        if bytes != rows.saturating_mul(found) {
            return Err(Damage(format!("{bytes} codes of {rows} rows where each has {found}")));
        }
        if norms {
            self.skip(rows)?;
            self.quantiser(1)?;
        }
        Ok(())
    }

    /// A product quantizer of vectors of `dim` numbers; returns the number of parts per vector.
    fn quantiser(&mut self, dim: u64) -> Result<u64, Damage> {
        let mut fields = [0u64; 4];
        for field in &mut fields {
            *field = u64::from(self.i32()?.unsigned_abs());
        }
        let [found, parts, part, last] = fields;
        let fits = part > 0 && parts == dim.div_ceil(part) && last == dim - (parts - 1) * part;
        if found != dim || !fits {
            return Err(Damage(format!(
                "a quantiser of {found} numbers in {parts} parts of {part} and {last} does not fit {dim} numbers"
            )));
        }
        self.skip_numbers(CENTROIDS, dim)?;
        Ok(parts)
    }

    fn skip_numbers(&mut self, rows: u64, columns: u64) -> Result<(), Damage> {
        match rows.checked_mul(columns).and_then(|count| count.checked_mul(4)) {
            Some(bytes) if bytes <= self.left => self.skip(bytes),
            _ => Err(self.too_small(&format!("{rows} rows of {columns} numbers"))),
        }
    }

    fn too_small(&self, what: &str) -> Damage {
        Damage(format!("{what} do not fit into the {} bytes that are left; copy the file again", self.left))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Damage> {
        if bytes > self.left {
            return Err(Damage::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)));
        }
        self.left -= bytes;
        Ok(self.file.seek_relative(bytes.cast_signed())?)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.left = self.left.saturating_sub(N as u64);
        Ok(bytes)
    }

    fn i32(&mut self) -> Result<i32, Damage> {
        self.take().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, Damage> {
        self.take().map(i64::from_le_bytes)
    }

    fn flag(&mut self, of: &str) -> Result<bool, Damage> {
        match self.take()? {
            [byte @ 0..=1] => Ok(byte == 1),
            [byte] => Err(Damage(format!("{byte} for {of} is neither yes nor no"))),
        }
    }
}
