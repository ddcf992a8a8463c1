//! Loads quantized weights: tensors packed the same way in the file are taken as they are; others are quantized chunk
//! by chunk, in stored order.

use std::ops::Range;

use fathom_grad::Value;
use fathom_tensor::blocks::NF4_BLOCK;
use fathom_tensor::{BlockFormat, DType, Device, Tensor};

use super::area::{Area, matrix};
use super::chunk::{fill_chunk, parts};
use super::convert::convert_into;
use super::nested::NestedScales;
use super::quantized::QuantizedTensor;
use super::slot::{Job, Slot};
use super::source::Source;
use crate::error::Result;

/// Rows of a tensor that are read at a time to compute its scales.
const ROWS: usize = 256;

/// Fills a packed value from its jobs; returns false for other values. With `double`, scales computed here are
/// quantized too.
///
/// # Errors
/// If the source cannot be read.
pub(super) fn load_packed(
    device: &Device,
    slot: &Slot,
    jobs: &[&Job],
    (source, shape, double): (&dyn Source, [usize; 2], bool),
) -> Result<bool> {
    let Some((format, bytes)) = slot.value.as_packed() else { return Ok(false) };
    let stored: Option<Vec<&QuantizedTensor>> = jobs
        .iter()
        .map(|job| {
            source.quantised(&job.name).filter(|stored| stored.format == format && !job.patch.transpose)
        })
        .collect();
    if let Some(stored) = stored {
        let mut packed = PackedBytes::new(format, shape);
        for (job, stored) in jobs.iter().zip(stored) {
            packed.take(job, stored, source)?;
        }
        bytes.fill(|range, chunk| device.machine.write(chunk, &packed.bytes[range]));
        return Ok(true);
    }
    quantise(device, &slot.value, jobs, (source, shape[1], double && format == BlockFormat::Nf4))?;
    Ok(true)
}

/// A run of elements contiguous both in a tensor and in the rank's part of a weight: its start in each, and its
/// length.
struct Run {
    there: usize,
    here: usize,
    len: usize,
}

/// The shape of a job's tensor and the runs of its area, in the weight's orientation; the rank's part has `cols`
/// columns.
fn runs(job: &Job, cols: usize) -> ([usize; 2], Vec<Run>) {
    let [rows, wide] = matrix(&job.patch.shape).unwrap_or_default();
    let Area { rows: tall, cols: part } = &job.patch.area;
    let turned = job.patch.transpose;
    let ([rows, wide], tall, part) =
        if turned { ([wide, rows], part, tall) } else { ([rows, wide], tall, part) };
    if part.len() == wide && cols == wide {
        let run = Run { there: tall.start * wide, here: job.first, len: tall.len() * wide };
        return ([rows, wide], vec![run]);
    }
    let run = |(index, row): (usize, usize)| Run {
        there: row * wide + part.start,
        here: job.first + index * cols,
        len: part.len(),
    };
    ([rows, wide], tall.clone().enumerate().map(run).collect())
}

/// A packed weight's bytes, copied from packed tensors.
struct PackedBytes {
    format: BlockFormat,
    shape: [usize; 2],
    bytes: Vec<u8>,
}

impl PackedBytes {
    fn new(format: BlockFormat, shape: [usize; 2]) -> PackedBytes {
        let bytes = vec![0; format.packed_shape(shape).iter().product()];
        PackedBytes { format, shape, bytes }
    }

    /// Copies an area of a tensor, line by line.
    fn take(&mut self, job: &Job, stored: &QuantizedTensor, source: &dyn Source) -> Result<()> {
        let (format, [_, width]) = (self.format, self.format.lines(self.shape));
        let (row_bytes, block) = (format.row_bytes(width), format.block(width));
        let mut stream = source.stream();
        for Run { there, here, len } in runs(job, self.shape[1]).1 {
            let mut done = 0;
            while done < len {
                let (line, col) = ((here + done) / width, (here + done) % width);
                let part = (len - done).min(width - col);
                let elements = there + done..there + done + part;
                let row = &mut self.bytes[line * row_bytes..][..row_bytes];
                let codes = &mut row[format.code_bytes(col)..][..format.code_bytes(part)];
                stored.read_codes(stream.as_mut(), elements.clone(), codes)?;
                let scales = stored.read_scales(stream.as_mut(), elements)?;
                let to = &mut row[format.scales_at(width) + 4 * (col / block)..][..4 * scales.len()];
                for (to, scale) in to.as_chunks_mut::<4>().0.iter_mut().zip(scales) {
                    *to = scale.to_le_bytes();
                }
                done += part;
            }
        }
        Ok(())
    }
}

/// Quantizes a value; `double` also quantizes its scales.
fn quantise(
    device: &Device,
    value: &Value,
    jobs: &[&Job],
    (source, cols, double): (&dyn Source, usize, bool),
) -> Result<()> {
    let parts = parts(jobs.iter().copied(), source)?;
    let mut filled = Ok(());
    let mut work = |range: Range<usize>, chunk: &Tensor| {
        if filled.is_ok() {
            filled = fill_chunk(device, &parts, source, (range, chunk));
        }
    };
    if !double {
        value.fill(&mut work);
        return filled;
    }
    let mut nested = Ok(());
    value.fill_packed(&mut work, &mut |scales| nested = nest(jobs, source, cols, scales));
    filled.and(nested)
}

/// Quantizes the scales of a rank's part of a weight, tensor by tensor. If the part has only some of a tensor, the
/// scales of the rest are computed as well: the mean is over all of them.
fn nest(jobs: &[&Job], source: &dyn Source, cols: usize, scales: &mut [f32]) -> Result<()> {
    let mut names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (mut shape, mut all_runs, mut first) = ([0; 2], Vec::new(), None);
        for job in jobs.iter().filter(|job| job.name == name) {
            let (size, runs) = runs(job, cols);
            (shape, first) = (size, Some(*job));
            all_runs.extend(runs);
        }
        let Some(job) = first else { continue };
        let elements = shape[0] * shape[1];
        let held: usize = all_runs.iter().map(|run| run.len).sum();
        let mut all = if held == elements {
            vec![0.0; elements.div_ceil(NF4_BLOCK)]
        } else {
            largest(job, source, shape)?
        };
        let blocks = |at: usize, run: &Run| at / NF4_BLOCK..at / NF4_BLOCK + run.len.div_ceil(NF4_BLOCK);
        for run in &all_runs {
            all[blocks(run.there, run)].copy_from_slice(&scales[blocks(run.here, run)]);
        }
        let all = NestedScales::of(&all).decode();
        for run in &all_runs {
            scales[blocks(run.here, run)].copy_from_slice(&all[blocks(run.there, run)]);
        }
    }
    Ok(())
}

/// Largest magnitude of each block of a whole tensor, in the weight's orientation; blocks do not cross its rows.
fn largest(job: &Job, source: &dyn Source, [rows, wide]: [usize; 2]) -> Result<Vec<f32>> {
    let mut all = vec![0.0f32; rows * wide / NF4_BLOCK];
    let (tall, width) = if job.patch.transpose { (wide, rows) } else { (rows, wide) };
    let mut stream = source.stream();
    for first in (0..tall).step_by(ROWS) {
        let area = Area { rows: first..tall.min(first + ROWS), cols: 0..width };
        let (mut raw, mut bytes) = (vec![0; area.len() * job.dtype.bytes()], vec![0; 4 * area.len()]);
        stream.read_area(&job.name, &area, &mut raw)?;
        convert_into(job.dtype, &raw, DType::F32, &mut bytes);
        for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let (row, col) = (first + index / width, index % width);
            let at = if job.patch.transpose { col * wide + row } else { row * wide + col };
            let most = &mut all[at / NF4_BLOCK];
            *most = most.max(f32::from_le_bytes(*word).abs());
        }
    }
    Ok(all)
}
