//! Keys of the bands of all chunks of an index, in ascending order, in a file: an update merges those of its new segments
//! into it, and reads no other segment.
//!
//! The file is named by the segments that it is of. It is made from them, so that one that is lost or damaged is written
//! again. Its layout: 8 bytes of magic, 32 of the BLAKE3 hash of the rest, then a key (u64) and a chunk (u32) for each band.

use std::path::{Path, PathBuf};

use super::{BAND_COUNT, Bands};
use crate::error::Result;
use crate::files;
use crate::manifest::{SEGMENTS, SegmentEntry};

/// First bytes of the file, with the version of its format.
const MAGIC: &[u8; 8] = b"FATHOMK1";
/// Bytes before the keys.
const HEAD_BYTES: usize = 40;
/// Bytes of a key with its chunk.
const RECORD: usize = 12;
/// Ending of the file's name.
const ENDING: &str = "keys";

/// Keys of bands with their chunks, in ascending order, as the file has them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Keys(Vec<u8>);

fn pair(record: &[u8; RECORD]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *record;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes([i, j, k, l]))
}

impl Keys {
    /// Path of the file of these segments.
    pub fn path(folder: &Path, segments: &[SegmentEntry]) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"fathom keys\n");
        segments.iter().for_each(|entry| _ = hasher.update(entry.name.as_bytes()));
        folder.join(SEGMENTS).join(format!("{}.{ENDING}", hasher.finalize().to_hex()))
    }

    /// Keys of these segments; `None` if the file is not there, or not what was written.
    pub fn read(folder: &Path, segments: &[SegmentEntry]) -> Option<Keys> {
        let mut bytes = std::fs::read(Keys::path(folder, segments)).ok()?;
        let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
        let chunks: u64 = segments.iter().map(|entry| entry.chunks).sum();
        let is_whole = head.starts_with(MAGIC)
            && head[MAGIC.len()..] == *blake3::hash(body).as_bytes()
            && body.len() as u64 == chunks * (BAND_COUNT * RECORD) as u64;
        is_whole.then(|| Keys(bytes.split_off(HEAD_BYTES)))
    }

    /// Writes the file of these segments. It need not survive a crash of the machine.
    pub fn write(&self, folder: &Path, segments: &[SegmentEntry]) -> Result<()> {
        files::replace(&Keys::path(folder, segments), &[MAGIC, blake3::hash(&self.0).as_bytes(), &self.0])
    }

    /// The keys after an update: chunks have the numbers that `moved` names, in the order of the old ones, and there are new
    /// ones. Also the keys of those that are gone.
    pub fn updated(&self, moved: impl Fn(u32) -> Option<u32>, mut new: Vec<(u64, u32)>) -> (Keys, Vec<u64>) {
        new.sort_unstable();
        let (mut body, mut gone) = (Vec::with_capacity(self.0.len() + RECORD * new.len()), Vec::new());
        let mut write = |(key, chunk): (u64, u32)| {
            body.extend(key.to_le_bytes());
            body.extend(chunk.to_le_bytes());
        };
        let mut new = new.into_iter().peekable();
        for (key, chunk) in self.0.as_chunks().0.iter().map(pair) {
            match moved(chunk) {
                Some(chunk) => {
                    while let Some(earlier) = new.next_if(|it| *it < (key, chunk)) {
                        write(earlier);
                    }
                    write((key, chunk));
                }
                None => gone.push(key),
            }
        }
        new.for_each(write);
        (Keys(body), gone)
    }

    /// The chunks of each key that several have.
    pub fn shared(&self) -> impl Iterator<Item = Vec<u32>> {
        let groups = self.0.as_chunks().0.chunk_by(|a, b| a[..8] == b[..8]);
        let several = groups.filter(|group: &&[[u8; RECORD]]| group.len() > 1);
        several.map(|group| group.iter().map(|record| pair(record).1).collect())
    }

    /// The chunks of a key.
    pub fn of(&self, key: u64) -> impl Iterator<Item = u32> {
        let all = self.0.as_chunks().0;
        let start = all.partition_point(|record| pair(record).0 < key);
        all[start..].iter().map(pair).take_while(move |(own, _)| *own == key).map(|(_, chunk)| chunk)
    }
}

/// Keys of a chunk's bands, each with the chunk.
pub(crate) fn keys_of(chunk: u32, bands: Bands) -> impl Iterator<Item = (u64, u32)> {
    bands.into_iter().map(move |key| (key, chunk))
}
