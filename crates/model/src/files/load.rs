//! Streams weights into place, chunk by chunk: no second copy of the model, reading ahead of converting by one chunk.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::mpsc;

use fathom_grad::{ParamId, Params};
use fathom_tensor::{DType, Device};

use super::convert::{convert, is_convertible, transpose};
use super::source::Source;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::model::Model;
use crate::pieces::Piece;

/// Bytes that one read aims at: what was read is still in the second cache when it is converted and written.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// One piece, with where it comes from and goes to.
struct Job {
    id: ParamId,
    piece: Piece,
    /// The name in the source, which may lack the family's prefix.
    name: String,
    dtype: DType,
    /// Place of the tensor in the order of the source.
    order: usize,
}

/// Rows of one chunk of a piece.
pub(super) fn chunks(piece: &Piece, element_bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = (CHUNK_BYTES / (piece.row_len() * element_bytes).max(1)).max(1);
    let rows = piece.rows.clone();
    rows.clone().step_by(step).map(move |start| start..rows.end.min(start.saturating_add(step)))
}

/// Fills all weights of a model from a source.
///
/// # Errors
/// If a tensor is missing, has another shape or a type that is not a float, is there and not needed (buffers that
/// older files carry and the head of a tied model excepted), or cannot be read. Some weights may have been written.
///
/// # Panics
/// If `params` are not this model's.
pub fn load(device: &Device, model: &Model, params: &mut Params, source: &dyn Source) -> Result<()> {
    let jobs = plan(model, source)?;
    if !device.machine.has_data() {
        return Ok(());
    }
    let params = &*params;
    std::thread::scope(|threads| {
        let (sender, receiver) = mpsc::sync_channel::<Result<Vec<u8>>>(1);
        let (give_back, used) = mpsc::channel::<Vec<u8>>();
        let jobs = &jobs;
        threads.spawn(move || {
            for job in jobs {
                for rows in chunks(&job.piece, job.dtype.bytes()) {
                    let mut bytes = used.try_recv().unwrap_or_default();
                    let read = source.read_rows(&job.name, rows, &mut bytes).map(|()| bytes);
                    if sender.send(read).is_err() {
                        return;
                    }
                }
            }
        });
        let (mut turned, mut converted) = (Vec::new(), Vec::new());
        for job in jobs {
            let weight = params.tensor(job.id);
            for rows in chunks(&job.piece, job.dtype.bytes()) {
                let Ok(read) = receiver.recv() else { return Ok(()) };
                let bytes = read?;
                let mut elements = &bytes;
                if job.piece.transpose {
                    transpose(elements, [rows.len(), job.piece.row_len()], job.dtype.bytes(), &mut turned);
                    elements = &turned;
                }
                if job.dtype != weight.dtype() {
                    convert(job.dtype, elements, weight.dtype(), &mut converted);
                    elements = &converted;
                }
                device.machine.write(&job.piece.view(weight, rows), elements);
                let _ = give_back.send(bytes);
            }
        }
        Ok(())
    })
}

/// Checks every tensor before any is read, and orders the work as the data lies.
fn plan(model: &Model, source: &dyn Source) -> Result<Vec<Job>> {
    let family = Family::of(&model.spec);
    let names = source.names();
    let order: std::collections::BTreeMap<&str, usize> =
        names.iter().enumerate().map(|(index, name)| (*name, index)).collect();
    let mut jobs = Vec::new();
    for (index, pieces) in model.pieces().into_iter().enumerate() {
        for piece in pieces {
            let short = piece.name.strip_prefix(family.names.base).filter(|name| order.contains_key(name));
            let name =
                if order.contains_key(piece.name.as_str()) { Some(piece.name.as_str()) } else { short };
            let Some(name) = name.map(str::to_string) else {
                let what = format!("is missing; {} needs it with shape {:?}", model.spec.family, piece.shape);
                return Err(Error::tensor(source.place(&piece.name), &piece.name, what));
            };
            let refuse = |what: String| Err(Error::tensor(source.place(&name), &name, what));
            let shape = source.shape(&name).unwrap_or_default();
            if shape != piece.shape {
                return refuse(format!("has shape {shape:?}, the configuration says {:?}", piece.shape));
            }
            let Some(dtype) = source.dtype(&name).filter(|dtype| is_convertible(*dtype)) else {
                return refuse("is not stored as F32, BF16 or F16, the types that can be loaded".into());
            };
            let order = order[name.as_str()];
            jobs.push(Job { id: ParamId(index as u32), piece, name, dtype, order });
        }
    }
    check_used(model, source, &jobs)?;
    jobs.sort_by_key(|job| (job.order, job.piece.rows.start));
    Ok(jobs)
}

/// Every tensor of the source must have been wanted, or be known to be superfluous.
fn check_used(model: &Model, source: &dyn Source, jobs: &[Job]) -> Result<()> {
    let names = &Family::of(&model.spec).names;
    let used: BTreeSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    let head = format!("{}.weight", names.head);
    let superfluous = |name: &str| {
        let buffer = names.ignored.iter().any(|end| name.ends_with(end));
        buffer || (model.spec.tied && name == head)
    };
    let extra: Vec<&str> =
        source.names().into_iter().filter(|name| !used.contains(name) && !superfluous(name)).collect();
    match extra.first() {
        None => Ok(()),
        Some(first) => {
            let others =
                if extra.len() > 1 { format!(" (and {} more)", extra.len() - 1) } else { String::new() };
            let what =
                format!("{others} is no weight of a {} model with this configuration", model.spec.family);
            Err(Error::tensor(source.place(first), first, what.trim_start()))
        }
    }
}
