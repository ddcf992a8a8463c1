//! A global shuffle in bounded memory: records are partitioned into files by the leading bits of a random key, then
//! each file is sorted in memory.
//!
//! Records are ordered by key, a hash of seed and id, so the result depends neither on the order of arrival nor on
//! the number of files. A file that is still too large is partitioned again by the next bits.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::error::Error;

/// Limit of files written at once, in bits; with their buffers 16 MiB.
const MOST_FILES_BITS: u32 = 8;
const BUFFER_BYTES: usize = 64 << 10;
/// Size of the key and length that precede each record.
const HEAD_BYTES: u64 = 16;

/// Options of a shuffle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShuffleOptions {
    /// Seed of the order.
    pub seed: u64,
    /// Bytes of records held in memory at once; a single larger record is still held.
    pub memory_bytes: u64,
}

impl Default for ShuffleOptions {
    fn default() -> Self {
        Self { seed: 0, memory_bytes: 256 << 20 }
    }
}

/// Sort key of a document in the shuffled order. A document that is drawn several times needs a distinct id for each
/// copy, or its copies end up adjacent.
pub fn shuffle_key(seed: u64, id: &str) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, id.as_bytes())
}

/// Accepts records in any order. Dropping it removes its files.
#[derive(Debug)]
pub struct Shuffler {
    options: ShuffleOptions,
    parts: ShuffleFiles,
}

impl Shuffler {
    /// Starts a shuffle with its files in `folder`, which must exist. `expected_bytes` determines the number of
    /// files; a wrong estimate costs another partitioning pass, not memory.
    ///
    /// # Errors
    /// The files cannot be created.
    pub fn create(folder: &Path, expected_bytes: u64, options: &ShuffleOptions) -> Result<Self, Error> {
        let parts =
            ShuffleFiles::create(&folder.join("shuffle"), 0, bits_for(expected_bytes, options.memory_bytes))?;
        Ok(Self { options: options.clone(), parts })
    }

    /// Adds a record under the key of `id`.
    ///
    /// # Errors
    /// The disk is full.
    pub fn push(&mut self, id: &str, record: &[u8]) -> Result<(), Error> {
        self.parts.push(shuffle_key(self.options.seed, id), record)
    }

    /// Returns the records in shuffled order.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(self) -> Result<ShuffledRecords, Error> {
        let mut waiting = self.parts.close()?;
        waiting.reverse();
        Ok(ShuffledRecords {
            memory_bytes: self.options.memory_bytes,
            waiting,
            bytes: Vec::new(),
            places: Vec::new(),
        })
    }
}

/// Iterator over the records of a [`Shuffler`]: by key, then by content. Its files are removed as they are read.
#[derive(Debug)]
pub struct ShuffledRecords {
    memory_bytes: u64,
    /// Files still to be read, the next one last.
    waiting: Vec<ShuffleFile>,
    bytes: Vec<u8>,
    /// Records of the loaded file, the next one last.
    places: Vec<std::ops::Range<usize>>,
}

impl Iterator for ShuffledRecords {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(place) = self.places.pop() {
                return Some(Ok(self.bytes[place].to_vec()));
            }
            let part = self.waiting.pop()?;
            if let Err(error) = self.open(part) {
                self.waiting.clear();
                return Some(Err(error));
            }
        }
    }
}

impl ShuffledRecords {
    /// Loads a file, or partitions it if it is too large.
    fn open(&mut self, part: ShuffleFile) -> Result<(), Error> {
        let bits = bits_for(part.bytes, self.memory_bytes).min(64 - part.first_bit);
        if part.bytes > self.memory_bytes && part.records > 1 && bits > 0 {
            let mut parts = ShuffleFiles::create(&part.path, part.first_bit, bits)?;
            let file = File::open(&part.path).map_err(|e| Error::read(&part.path, e))?;
            let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
            let mut record = Vec::new();
            for _ in 0..part.records {
                let (key, length) = head(&mut input).map_err(|e| Error::read(&part.path, e))?;
                record.resize(length, 0);
                input.read_exact(&mut record).map_err(|e| Error::read(&part.path, e))?;
                parts.push(key, &record)?;
            }
            // Removed now: its name is a prefix of the new files' names, and they need its space.
            drop(part);
            self.waiting.extend(parts.close()?.into_iter().rev());
            return Ok(());
        }
        self.bytes = std::fs::read(&part.path).map_err(|e| Error::read(&part.path, e))?;
        let mut keyed = Vec::with_capacity(part.records as usize);
        let mut at = 0;
        while at < self.bytes.len() {
            let (key, length) = head(&mut &self.bytes[at..]).map_err(|e| Error::read(&part.path, e))?;
            let start = at + HEAD_BYTES as usize;
            at = start + length;
            keyed.push((key, start..at));
        }
        let record = |place: &std::ops::Range<usize>| &self.bytes[place.clone()];
        keyed.sort_by(|(a, in_a), (b, in_b)| b.cmp(a).then_with(|| record(in_b).cmp(record(in_a))));
        self.places = keyed.into_iter().map(|(_, place)| place).collect();
        Ok(())
    }
}

/// Key bits that partition `bytes` into files of half the memory limit, leaving headroom for uneven sizes.
fn bits_for(bytes: u64, memory_bytes: u64) -> u32 {
    let files = (2 * bytes.min(1 << 60)).div_ceil(memory_bytes.max(1)).next_power_of_two();
    files.trailing_zeros().min(MOST_FILES_BITS)
}

fn head(input: &mut impl Read) -> std::io::Result<(u64, usize)> {
    let (mut key, mut length) = ([0; 8], [0; 8]);
    input.read_exact(&mut key)?;
    input.read_exact(&mut length)?;
    Ok((u64::from_le_bytes(key), u64::from_le_bytes(length) as usize))
}

/// A closed file; dropping it removes it.
#[derive(Debug)]
struct ShuffleFile {
    path: PathBuf,
    /// Number of leading key bits that its records share.
    first_bit: u32,
    bytes: u64,
    records: u64,
}

impl Drop for ShuffleFile {
    fn drop(&mut self) {
        // A file that is already gone needs no removal.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Files being written, in ascending key order.
#[derive(Debug)]
struct ShuffleFiles {
    first_bit: u32,
    bits: u32,
    files: Vec<(ShuffleFile, BufWriter<File>)>,
}

impl ShuffleFiles {
    fn create(prefix: &Path, first_bit: u32, bits: u32) -> Result<Self, Error> {
        let files = (0..1u32 << bits).map(|number| {
            let mut name = prefix.as_os_str().to_owned();
            name.push(format!(".{number:03}"));
            let path = PathBuf::from(name);
            let file = File::create(&path).map_err(|e| Error::write("create", &path, e))?;
            let part = ShuffleFile { path, first_bit: first_bit + bits, bytes: 0, records: 0 };
            Ok((part, BufWriter::with_capacity(BUFFER_BYTES, file)))
        });
        Ok(Self { first_bit, bits, files: files.collect::<Result<_, Error>>()? })
    }

    fn push(&mut self, key: u64, record: &[u8]) -> Result<(), Error> {
        let number = match self.bits {
            0 => 0,
            bits => (key << self.first_bit >> (64 - bits)) as usize,
        };
        let (part, file) = &mut self.files[number];
        part.records += 1;
        part.bytes += HEAD_BYTES + record.len() as u64;
        file.write_all(&key.to_le_bytes())
            .and_then(|()| file.write_all(&(record.len() as u64).to_le_bytes()))
            .and_then(|()| file.write_all(record))
            .map_err(|e| Error::write("write", &part.path, e))
    }

    fn close(self) -> Result<Vec<ShuffleFile>, Error> {
        let close = |(part, mut file): (ShuffleFile, BufWriter<File>)| {
            file.flush().map_err(|e| Error::write("write", &part.path, e))?;
            Ok(part)
        };
        self.files.into_iter().map(close).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use super::*;

    fn shuffled(
        numbers: impl Iterator<Item = u32>,
        expected: u64,
        memory_bytes: u64,
        seed: u64,
    ) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let options = ShuffleOptions { seed, memory_bytes };
        let mut shuffler = Shuffler::create(folder.path(), expected, &options).unwrap();
        for number in numbers {
            let record = format!("{number} {}", "x".repeat(number as usize % 40));
            shuffler.push(&number.to_string(), record.as_bytes()).unwrap();
        }
        let records = shuffler.finish().unwrap().map(|record| String::from_utf8(record.unwrap()).unwrap());
        let records: Vec<String> = records.collect();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
        records
    }

    #[test]
    fn order_depends_on_seed_and_ids_alone() {
        let reference = shuffled(0..3000, 0, 1 << 20, 1);
        let mut sorted = reference.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 3000);
        for (expected, memory) in [(100_000, 10_000), (0, 5000), (1 << 40, 1000), (0, 400)] {
            assert_eq!(shuffled((0..3000).rev(), expected, memory, 1), reference, "{expected} {memory}");
        }
        assert_ne!(shuffled(0..3000, 0, 1 << 20, 2), reference);
        let stayed = reference.iter().enumerate().filter(|(at, r)| r.starts_with(&format!("{at} "))).count();
        assert!(stayed < 12, "{stayed} of 3000 stayed");
        assert!(shuffled(0..0, 5, 5, 1).is_empty());
    }

    #[test]
    fn equal_ids_are_ordered_by_content_and_never_divided_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let options = ShuffleOptions { seed: 0, memory_bytes: 10 };
        let mut shuffler = Shuffler::create(folder.path(), 0, &options).unwrap();
        for record in ["c", "a", "b", "a"] {
            shuffler.push("same", record.as_bytes()).unwrap();
        }
        let records: Vec<Vec<u8>> = shuffler.finish().unwrap().map(Result::unwrap).collect();
        assert_eq!(records, [b"a", b"a", b"b", b"c"]);
    }

    #[test]
    fn a_dropped_shuffle_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut shuffler = Shuffler::create(folder.path(), 100, &ShuffleOptions::default()).unwrap();
        shuffler.push("a", b"a").unwrap();
        drop(shuffler);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let missing = Shuffler::create(&folder.path().join("none"), 0, &ShuffleOptions::default());
        assert!(missing.unwrap_err().to_string().contains("cannot create"));
    }
}
