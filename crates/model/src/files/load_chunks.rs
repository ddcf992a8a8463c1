//! Streams weights that are on disk to their place, chunk by chunk: nothing of them is whole in memory, but for a tensor that
//! has to be transposed. Values that are codes are made the same way.

use std::ops::Range;
use std::sync::Mutex;

use fathom_tensor::moments::{BLOCK, NEAREST, encode_block};
use fathom_tensor::{DType, Device, Tensor};

use super::convert::{convert_into, transpose};
use super::load::{Coded, Job, Slot};
use super::load_blocked::load_blocked;
use super::load_packed::load_packed;
use super::source::Source;
use crate::error::{Error, Result};
use crate::model::Model;

/// Stretches of a chunk that threads read at the same time.
const STRETCHES: usize = 4;

/// A patch of a weight, with its elements if they had to be transposed.
pub(super) struct WeightPatch<'a> {
    job: &'a Job,
    turned: Option<Vec<u8>>,
}

/// Elements that become codes at once.
const CODED: usize = 1 << 18;

/// Fills all values that are not in memory, and those that are codes.
///
/// # Errors
/// If the source cannot be read.
pub(super) fn load_chunks(
    device: &Device,
    slots: &[Slot],
    jobs: &[Job],
    (source, model): (&dyn Source, &Model),
) -> Result<()> {
    let (shapes, double) = (model.shapes(), model.quantized.as_ref().is_some_and(|how| how.double));
    let wanted = |slot: &Slot| slot.value.resident().is_none() || slot.coded.is_some();
    for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| wanted(slot)) {
        let own = || jobs.iter().filter(|job| job.slot == index);
        if load_blocked(device, slot, &own().collect::<Vec<&Job>>(), source)? {
            continue;
        }
        if load_packed(
            device,
            slot,
            &own().collect::<Vec<&Job>>(),
            (source, shapes[slot.id.index()], double),
        )? {
            continue;
        }
        let parts = parts(own(), source)?;
        if let Some(coded) = &slot.coded {
            let mut made = Ok(());
            slot.value.fill(|range, chunk| {
                if made.is_ok() {
                    made = encode(device, &parts, source, coded, (range, chunk));
                }
            });
            made?;
            continue;
        }
        let mut filled = Ok(());
        slot.value.fill(|range, chunk| {
            if filled.is_ok() {
                filled = fill_chunk(device, &parts, source, (range, chunk));
            }
        });
        filled?;
    }
    Ok(())
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

/// Makes the codes of a chunk of a value, which begins with a block.
fn encode(
    device: &Device,
    parts: &[WeightPatch<'_>],
    source: &dyn Source,
    coded: &Coded,
    (range, chunk): (Range<usize>, &Tensor),
) -> Result<()> {
    let scales = coded.scales.tensor();
    for start in range.clone().step_by(CODED) {
        let len = CODED.min(range.end - start);
        let mut bytes = vec![0; 4 * len];
        read(parts, source, start..start + len, DType::F32, &mut bytes)?;
        let values = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
        let mut values: Vec<f32> = values.collect();
        let (mut codes, mut factors) = (vec![0; len], Vec::new());
        for (block, codes) in values.chunks_mut(BLOCK).zip(codes.chunks_mut(BLOCK)) {
            factors.extend(encode_block(block, coded.root, |_| NEAREST, codes).to_le_bytes());
        }
        device.machine.write(&chunk.view_cols(start - range.start..start - range.start + len), &codes);
        let blocks = start / BLOCK..(start + len).div_ceil(BLOCK);
        device.machine.write(&scales.view_cols(blocks), &factors);
    }
    Ok(())
}

/// Patches of a value, ready to be read.
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

/// Elements of a value, as elements of type `to`.
fn read(
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
