//! Loads weights that keep their file's format: rows of blocks, or of codes with scales, without decoding. Rows that
//! products read by eight are interleaved in place, with a buffer of eight rows.

use std::sync::Mutex;

use fathom_tensor::ggml::octets::{OCTET, interleave};
use fathom_tensor::{BlockFormat, Device, Packing, Tensor};

use super::area::{Area, of_stack};
use super::slot::{Job, Slot, split};
use super::source::Source;
use crate::error::{Error, Result};

/// Bytes that one thread reads in one go.
const TOGETHER_BYTES: usize = 16 << 20;

/// Fills a packed value from its jobs; returns false for other values.
///
/// # Errors
/// If the source has no such blocks, or cannot be read.
pub(super) fn load_blocked(device: &Device, slot: &Slot, jobs: &[&Job], source: &dyn Source) -> Result<bool> {
    let Some((bytes, packing)) = slot.value.as_blocked().and_then(|bytes| Some((bytes, bytes.packing()?)))
    else {
        return Ok(false);
    };
    let (mut parts, mut targets): (Vec<_>, Vec<Vec<Tensor>>) = Default::default();
    for job in jobs {
        for (area, first) in stretches(job, packing) {
            let row_bytes = packing.row(first).1.row_bytes(packing.cols);
            for rows in split(&area, row_bytes.div_ceil(packing.cols.max(1)), TOGETHER_BYTES) {
                let (at, _) = packing.row(first + rows.start - area.rows.start);
                targets.push(vec![bytes.view_cols(at..at + rows.len() * row_bytes)]);
                parts.push((job, Area { rows, cols: area.cols.clone() }));
            }
        }
    }
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    device.machine.fill(&targets, &|index, out| {
        let (job, area) = &parts[index];
        let read = match source.blocks(&job.name) {
            Some(format) => {
                // [experts, in, out] is stored with rows of `in`.
                let stored = job.patch.shape.iter().rev().nth(usize::from(packing.turned));
                let cols = stored.copied().unwrap_or(packing.cols);
                read_blocks(source, &job.name, (format, cols, area), out[0])
            }
            None => source.stream().read_area(&job.name, area, out[0]),
        };
        if let Err(error) = read {
            failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        return Err(error);
    }
    interleave_rows(device, bytes, packing);
    Ok(true)
}

/// The stored areas of a job's tensor, each with its first row of the packing. Turned tensors are stored as [experts,
/// out, in]; if ranks split rows, each expert has an area.
fn stretches(job: &Job, packing: &Packing) -> Vec<(Area, usize)> {
    let (there, here) = (&job.patch.area, &job.patch.local.rows);
    let stack = match job.patch.shape[..] {
        [_, inner, out] if packing.turned => of_stack(&there.rows, inner).zip(Some(out)),
        _ => None,
    };
    let Some(((experts, columns), out)) = stack else { return vec![(there.clone(), here.start)] };
    // Logical rows of the weight, [experts x in, out].
    let own = there.cols.len();
    let first = here.start / columns.len().max(1) * own;
    if own == out {
        return vec![(Area { rows: experts.start * out..experts.end * out, cols: columns }, first)];
    }
    let area = |(at, expert): (usize, usize)| {
        let rows = expert * out + there.cols.start..expert * out + there.cols.end;
        (Area { rows, cols: columns.clone() }, first + at * own)
    };
    experts.enumerate().map(area).collect()
}

/// Reads rows stored as blocks of `all` columns, or some of their columns.
fn read_blocks(
    source: &dyn Source,
    name: &str,
    (format, all, Area { rows, cols }): (BlockFormat, usize, &Area),
    out: &mut [u8],
) -> Result<()> {
    if *cols == (0..all) {
        return source.read_blocks(name, rows.clone(), out);
    }
    let (wide, own) = (format.row_bytes(all), format.row_bytes(cols.len()));
    let mut whole = vec![0; rows.len() * wide];
    source.read_blocks(name, rows.clone(), &mut whole)?;
    for (row, out) in whole.chunks_exact(wide).zip(out.chunks_exact_mut(own)) {
        format.take_columns(row, (all, cols.clone()), out);
    }
    Ok(())
}

/// Interleaves the rows of the runs that need it, once all bytes are in order.
fn interleave_rows(device: &Device, bytes: &Tensor, packing: &Packing) {
    let (mut parts, mut targets): (Vec<_>, Vec<Vec<Tensor>>) = Default::default();
    let mut row = 0;
    for (format, rows) in &packing.runs {
        if let BlockFormat::Octets(kind) = *format {
            let (octet, (mut at, _)) = (OCTET * format.row_bytes(packing.cols), packing.row(row));
            let (end, most) = (at + rows / OCTET * octet, (TOGETHER_BYTES / octet).max(1) * octet);
            while at < end {
                let part = most.min(end - at);
                targets.push(vec![bytes.view_cols(at..at + part)]);
                parts.push((kind, octet));
                at += part;
            }
        }
        row += rows;
    }
    device.machine.fill(&targets, &|index, out| {
        let (kind, octet) = parts[index];
        out[0].chunks_exact_mut(octet).for_each(|rows| interleave(kind, rows));
    });
}
