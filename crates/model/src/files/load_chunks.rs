//! Streams weights that are on disk to their place, chunk by chunk: nothing of them is whole in memory, but for a tensor that
//! has to be transposed.

use std::ops::Range;
use std::sync::Mutex;

use fathom_grad::{ParamId, Params};
use fathom_tensor::{DType, Device, Tensor};

use super::convert::{convert_into, transpose};
use super::load::Job;
use super::source::{Source, Stream};
use crate::error::{Error, Result};

/// Stretches of a chunk that threads read at the same time.
const STRETCHES: usize = 4;

/// A piece of a weight, with its elements if they had to be transposed.
struct Part<'a> {
    job: &'a Job,
    turned: Option<Vec<u8>>,
}

/// Fills all weights that are not in memory.
///
/// # Errors
/// If the source cannot be read.
pub(super) fn load_chunks(device: &Device, params: &Params, jobs: &[Job], source: &dyn Source) -> Result<()> {
    for (id, param) in params.iter().filter(|(_, param)| param.value.resident().is_none()) {
        let parts = parts(jobs, id, source)?;
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        param.value.fill(|range, chunk| {
            let (dtype, share) = (chunk.dtype(), range.len().div_ceil(STRETCHES));
            let cuts: Vec<Range<usize>> = (0..range.len())
                .step_by(share.max(1))
                .map(|start| start..range.len().min(start + share))
                .collect();
            let targets: Vec<Vec<Tensor>> =
                cuts.iter().map(|cut| vec![chunk.view_cols(cut.clone())]).collect();
            device.machine.fill(&targets, &|index, out| {
                let cut = range.start + cuts[index].start..range.start + cuts[index].end;
                if let Err(error) = read(&parts, source, cut, dtype, out[0]) {
                    failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                }
            });
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            return Err(error);
        }
    }
    Ok(())
}

fn parts<'a>(jobs: &'a [Job], id: ParamId, source: &dyn Source) -> Result<Vec<Part<'a>>> {
    let mut parts = Vec::new();
    for job in jobs.iter().filter(|job| job.id == id) {
        let mut turned = None;
        if job.piece.transpose {
            let mut bytes = vec![0; job.bytes()];
            job.fetch(source.stream().as_mut(), job.piece.rows.clone(), &mut bytes)?;
            let into = turned.insert(Vec::new());
            transpose(&bytes, [job.piece.rows.len(), job.piece.row_len()], job.dtype.bytes(), into);
        }
        parts.push(Part { job, turned });
    }
    Ok(parts)
}

/// Elements of a weight, row by row, as elements of type `to`.
fn read(
    parts: &[Part<'_>],
    source: &dyn Source,
    range: Range<usize>,
    to: DType,
    out: &mut [u8],
) -> Result<()> {
    let mut stream = source.stream();
    let mut buffer = Vec::new();
    for Part { job, turned } in parts {
        let piece = &job.piece;
        // Elements of the weight from one step of `param_row` to the next.
        let width = if piece.transpose { piece.rows.len() } else { piece.row_len() };
        let first = piece.param_row * width;
        let len = piece.rows.len() * piece.row_len();
        let (from, end) = (range.start.max(first), range.end.min(first + len));
        if from >= end {
            continue;
        }
        let (at, count, size) = (from - first, end - from, job.dtype.bytes());
        let out = &mut out[(from - range.start) * to.bytes()..][..count * to.bytes()];
        if let Some(turned) = turned {
            convert_into(job.dtype, &turned[at * size..][..count * size], to, out);
            continue;
        }
        if piece.row_len() < piece.row_width() {
            ragged(job, stream.as_mut(), at..at + count, to, out)?;
            continue;
        }
        let start = ((piece.rows.start * piece.row_len() + at) * size) as u64;
        if job.dtype == to {
            stream.read(&job.name, start, out)?;
            continue;
        }
        buffer.resize(count * size, 0);
        stream.read(&job.name, start, &mut buffer)?;
        convert_into(job.dtype, &buffer, to, out);
    }
    Ok(())
}

/// Elements of a piece that has only some columns of its tensor, by whole rows that hold them.
fn ragged(job: &Job, stream: &mut dyn Stream, range: Range<usize>, to: DType, out: &mut [u8]) -> Result<()> {
    let (width, size) = (job.piece.row_len(), job.dtype.bytes());
    let rows = range.start / width..range.end.div_ceil(width);
    let mut buffer = vec![0; rows.len() * width * size];
    let first = job.piece.rows.start;
    job.fetch(stream, first + rows.start..first + rows.end, &mut buffer)?;
    let skip = (range.start - rows.start * width) * size;
    convert_into(job.dtype, &buffer[skip..][..range.len() * size], to, out);
    Ok(())
}
