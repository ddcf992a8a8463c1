//! Concurrent reading of a chunk of a value by several threads.

use std::ops::Range;
use std::sync::Mutex;

use fathom_tensor::{DType, Device, Tensor};

use super::convert::{convert_into, transpose};
use super::slot::Job;
use super::source::Source;
use crate::error::{Error, Result};

/// Parts of a chunk that are read concurrently.
const STRETCHES: usize = 4;

/// A patch of a weight, and its elements if they had to be transposed.
pub(super) struct WeightPatch<'a> {
    job: &'a Job,
    turned: Option<Vec<u8>>,
}

/// Reads elements of a value into a chunk, by several threads.
///
/// # Errors
/// If the source cannot be read.
pub(super) fn fill_chunk(
    device: &Device,
    parts: &[WeightPatch<'_>],
    source: &dyn Source,
    (range, chunk): (Range<usize>, &Tensor),
) -> Result<()> {
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let (dtype, share) = (chunk.dtype(), range.len().div_ceil(STRETCHES));
    let cuts: Vec<Range<usize>> =
        (0..range.len()).step_by(share.max(1)).map(|start| start..range.len().min(start + share)).collect();
    let targets: Vec<Vec<Tensor>> = cuts.iter().map(|cut| vec![chunk.view_cols(cut.clone())]).collect();
    device.machine.fill(&targets, &|index, out| {
        let cut = range.start + cuts[index].start..range.start + cuts[index].end;
        if let Err(error) = read(parts, source, cut, dtype, out[0]) {
            failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
}

/// Patches of a value, prepared for reading.
///
/// # Errors
/// If the source cannot be read.
pub(super) fn parts<'a>(
    jobs: impl Iterator<Item = &'a Job>,
    source: &dyn Source,
) -> Result<Vec<WeightPatch<'a>>> {
    let mut parts = Vec::new();
    for job in jobs {
        let mut turned = None;
        if job.patch.transpose {
            let area = &job.patch.area;
            let mut bytes = vec![0; job.bytes()];
            source.stream().read_area(&job.name, area, &mut bytes)?;
            let into = turned.insert(Vec::new());
            transpose(&bytes, [area.rows.len(), area.cols.len()], job.dtype.bytes(), into);
        }
        parts.push(WeightPatch { job, turned });
    }
    Ok(parts)
}

/// Reads elements of a value, converted to type `to`.
pub(super) fn read(
    parts: &[WeightPatch<'_>],
    source: &dyn Source,
    range: Range<usize>,
    to: DType,
    out: &mut [u8],
) -> Result<()> {
    let mut stream = source.stream();
    let mut buffer = Vec::new();
    for WeightPatch { job, turned } in parts {
        let first = job.first;
        let (from, end) = (range.start.max(first), range.end.min(first + job.patch.area.len()));
        if from >= end {
            continue;
        }
        let (at, count, size) = (from - first, end - from, job.dtype.bytes());
        let mut out = &mut out[(from - range.start) * to.bytes()..][..count * to.bytes()];
        if let Some(turned) = turned {
            convert_into(job.dtype, &turned[at * size..][..count * size], to, out);
            continue;
        }
        for area in job.patch.area.stretch(at..at + count) {
            let (now, later) = out.split_at_mut(area.len() * to.bytes());
            out = later;
            if job.dtype == to {
                stream.read_area(&job.name, &area, now)?;
                continue;
            }
            buffer.resize(area.len() * size, 0);
            stream.read_area(&job.name, &area, &mut buffer)?;
            convert_into(job.dtype, &buffer, to, now);
        }
    }
    Ok(())
}
