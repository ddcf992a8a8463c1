//! A glance at a log: its beginning, its end, and lines at even distances between.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::facts::Facts;
use super::series::Series;
use super::tail::Tail;
use crate::error::{Error, Result};

/// Bytes of the beginning, which has the recipe and the model, and of the end, which has measurements.
const HEAD: usize = 256 << 10;
const END: u64 = 64 << 10;
/// Lines between them, and the bytes read to find one.
const LINES: u64 = 160;
const BLOCK: usize = 4096;

/// Reads enough of a log of more than a mebibyte for a table and a first curve.
///
/// # Errors
/// A log that cannot be read.
pub(super) fn glance(log: &Path) -> Result<(Facts, Series)> {
    let failed = |error| Error::read(log, error);
    let file = File::open(log).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let (mut facts, mut series) = (Facts::default(), Series::default());
    Tail::new(log).read(HEAD, &mut |line| facts.read(line, &mut series))?;
    // A log that another one took the place of may be shorter than a glance.
    let to = length.saturating_sub(END);
    let from = to.min(HEAD as u64);
    let mut block = vec![0; BLOCK];
    for at in 0..LINES {
        let offset = from + (to - from) * at / LINES;
        let read = file.read_at(&mut block, offset).map_err(failed)?;
        // A line that begins and ends inside the block.
        let mut lines = block[..read].split(|byte| *byte == b'\n').skip(1);
        if let (Some(line), Some(_)) = (lines.next(), lines.next()) {
            facts.read(line, &mut series);
        }
    }
    let mut end = vec![0; END as usize];
    let read = file.read_at(&mut end, to).map_err(failed)?;
    let mut lines = end[..read].split(|byte| *byte == b'\n').skip(1).peekable();
    while let Some(line) = lines.next() {
        // The last one is torn, or empty.
        if lines.peek().is_some() {
            facts.read(line, &mut series);
        }
    }
    Ok((facts, series))
}
