//! The index of a long log, in a file next to it: facts and steps of its beginning, so that a board that is opened again
//! reads only what was added since.
//!
//! The file is a line of JSON and the numbers of the steps. It names the bytes of the log that it is about by their number,
//! and by a checksum of the first and the last of them; a log that was written again does not have them, and is read from its
//! beginning.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::series::Series;

/// Name of the file.
pub(super) const NAME: &str = "metrics.index";
/// Version of its layout; other versions are not read.
const FORMAT: u32 = 1;
/// Bytes at both ends of the part of the log that the checksum is of.
const MARK: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Bytes of the log, up to the end of a line.
    bytes: u64,
    checksum: u32,
    facts: Facts,
    /// Names of the metrics, in the order of their numbers.
    names: Vec<String>,
    width: u32,
}

/// Checksum of the ends of the first `bytes` bytes of a log; `None` if it has fewer, or cannot be read.
fn checksum(log: &Path, bytes: u64) -> Option<u32> {
    let file = File::open(log).ok()?;
    let length = bytes.min(MARK) as usize;
    let mut ends = vec![0; 2 * length];
    let (first, last) = ends.split_at_mut(length);
    file.read_exact_at(first, 0).ok()?;
    file.read_exact_at(last, bytes - length as u64).ok()?;
    Some(crc32c::crc32c(&ends))
}

/// Facts and steps of the first bytes of a log, and the number of these bytes; `None` without an index of this log.
pub(super) fn load(folder: &Path, log: &Path) -> Option<(Facts, Series, u64)> {
    let file = std::fs::read(folder.join(NAME)).ok()?;
    let end = file.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&file[..end]).ok()?;
    if head.format != FORMAT || checksum(log, head.bytes)? != head.checksum {
        return None;
    }
    let series = Series::from_bytes(&file[end + 1..], head.names, head.width)?;
    Some((head.facts, series, head.bytes))
}

/// Writes the index of the first `bytes` bytes of a log. A folder that cannot be written has none.
pub(super) fn save(folder: &Path, log: &Path, (facts, series): (&Facts, &Series), bytes: u64) {
    let Some(checksum) = checksum(log, bytes) else { return };
    let (names, width, numbers) = series.to_bytes();
    let head = Head { format: FORMAT, bytes, checksum, facts: facts.clone(), names, width };
    let Ok(mut file) = serde_json::to_vec(&head) else { return };
    file.push(b'\n');
    file.extend(numbers);
    _ = fathom_base::files::write(&folder.join(NAME), &file);
}
