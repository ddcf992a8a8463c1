//! Loads weights that are held as a file has them: rows of blocks, or of codes with scales, none of them unpacked.

use std::sync::Mutex;

use fathom_tensor::{Device, Tensor};

use super::load::{Job, Slot, split};
use super::source::Source;
use crate::error::{Error, Result};

/// Bytes that one thread reads in one go.
const TOGETHER_BYTES: usize = 16 << 20;

/// Fills a value that is held as blocks from its jobs; of another value nothing, and false.
///
/// # Errors
/// If the source does not have its blocks, or cannot be read.
pub(super) fn load_blocked(device: &Device, slot: &Slot, jobs: &[&Job], source: &dyn Source) -> Result<bool> {
    let Some((bytes, packing)) = slot.value.as_blocked().and_then(|bytes| Some((bytes, bytes.packing()?)))
    else {
        return Ok(false);
    };
    let (mut parts, mut targets): (Vec<_>, Vec<Vec<Tensor>>) = Default::default();
    for job in jobs {
        let (there, here) = (&job.patch.area, &job.patch.local.rows);
        let (_, format) = packing.row(here.start);
        let row_bytes = format.row_bytes(packing.cols);
        for rows in split(there, row_bytes.div_ceil(packing.cols.max(1)), TOGETHER_BYTES) {
            let (at, _) = packing.row(here.start + rows.start - there.rows.start);
            targets.push(vec![bytes.view_cols(at..at + rows.len() * row_bytes)]);
            parts.push((job.name.as_str(), rows));
        }
    }
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    device.machine.fill(&targets, &|index, out| {
        let (name, rows) = &parts[index];
        if let Err(error) = source.read_blocks(name, rows.clone(), out[0]) {
            failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(true), Err)
}
