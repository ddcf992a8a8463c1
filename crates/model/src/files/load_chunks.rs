//! Streams weights on disk to their place, chunk by chunk. No tensor is held in memory as a whole, except those to be
//! transposed. e4m3-coded values are written the same way.

use std::ops::Range;

use fathom_tensor::moments::{BLOCK, NEAREST, encode_block};
use fathom_tensor::{DType, Device, Tensor};

use super::chunk::{WeightPatch, fill_chunk, parts, read};
use super::load_blocked::load_blocked;
use super::load_packed::load_packed;
use super::slot::{CodeScales, Job, Slot};
use super::source::Source;
use crate::error::Result;
use crate::model::Model;

/// Elements that are encoded at a time.
const CODED: usize = 1 << 18;

/// Fills all values that are not in memory, and those that are coded.
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

/// Encodes a chunk of a value, from the start of a block.
fn encode(
    device: &Device,
    parts: &[WeightPatch<'_>],
    source: &dyn Source,
    coded: &CodeScales,
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
