//! Streams weights into place: many reads at once, each straight into the machine's memory where the stored type is the
//! wanted one, through a small buffer where it has to be converted. No second copy of the model; weights on disk go there
//! chunk by chunk (`load_chunks`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use fathom_grad::{ParamId, Params};
use fathom_tensor::{DType, Device, Meta, Profile, Tensor};

use super::convert::{convert_into, is_convertible, transpose};
use super::load_chunks::load_chunks;
use super::source::{Source, Stream};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::model::Model;
use crate::pieces::Piece;
use crate::portion::Portion;

/// Bytes that one read aims at when it is written or converted afterwards: it is still in the second cache then.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes of the file that one thread reads in one go. Large, so that the system reads ahead; less for small models, so that
/// all threads end together.
const GROUP_BYTES: std::ops::RangeInclusive<usize> = 1 << 20..=64 << 20;

/// One piece, with where it comes from and goes to.
pub(super) struct Job {
    pub id: ParamId,
    pub piece: Piece,
    /// The name in the source, which may lack the family's prefix.
    pub name: String,
    pub dtype: DType,
    /// Place of the tensor in the order of the source.
    order: usize,
}

impl Job {
    /// Bytes of its data in the file.
    pub fn bytes(&self) -> usize {
        self.piece.rows.len() * self.row_bytes()
    }

    fn row_bytes(&self) -> usize {
        self.piece.row_len() * self.dtype.bytes()
    }

    /// Rows of the tensor that are read one by one, because only some of their columns are wanted.
    fn is_ragged(&self) -> bool {
        self.piece.row_len() < self.piece.row_width()
    }

    /// Reads the piece's columns of some rows of the tensor, as they are stored.
    pub fn fetch(&self, stream: &mut dyn Stream, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let width = self.piece.row_width() * self.dtype.bytes();
        if !self.is_ragged() {
            return stream.read(&self.name, (rows.start * width) as u64, out);
        }
        let cols = self.piece.cols.start * self.dtype.bytes()..self.piece.cols.end * self.dtype.bytes();
        let together = (CHUNK_BYTES / width).max(1);
        let mut whole = Vec::new();
        for (index, out) in out.chunks_mut(together * cols.len()).enumerate() {
            whole.resize(out.len() / cols.len() * width, 0);
            let first = rows.start + index * together;
            stream.read(&self.name, (first * width) as u64, &mut whole)?;
            for (row, out) in whole.chunks(width).zip(out.chunks_mut(cols.len())) {
                out.copy_from_slice(&row[cols.clone()]);
            }
        }
        Ok(())
    }

    /// Rows of the tensor that are read at once. A transposed piece is read whole: each row of the weight has an element
    /// of each of its rows.
    fn parts(&self, group_bytes: usize) -> Vec<Range<usize>> {
        match self.piece.transpose {
            true => vec![self.piece.rows.clone()],
            false => split(&self.piece, self.dtype.bytes(), group_bytes).collect(),
        }
    }

    /// The rows of the weight, without gaps, that some rows of the tensor fill.
    fn target(&self, weight: &Tensor, rows: Range<usize>) -> Tensor {
        match self.piece.transpose {
            true => weight.view_rows(self.piece.param_row..self.piece.param_row + self.piece.row_len()),
            false => self.piece.view(weight, rows),
        }
    }

    /// Reads rows of the tensor as elements of type `to`.
    fn read(&self, stream: &mut dyn Stream, rows: Range<usize>, to: DType, out: &mut [u8]) -> Result<()> {
        let start = rows.start * self.row_bytes();
        if !self.piece.transpose && self.dtype == to {
            return self.fetch(stream, rows, out);
        }
        let mut buffer = Vec::new();
        if self.piece.transpose || self.is_ragged() {
            let mut turned = Vec::new();
            buffer.resize(rows.len() * self.row_bytes(), 0);
            self.fetch(stream, rows.clone(), &mut buffer)?;
            if !self.piece.transpose {
                convert_into(self.dtype, &buffer, to, out);
                return Ok(());
            }
            transpose(&buffer, [rows.len(), self.piece.row_len()], self.dtype.bytes(), &mut turned);
            convert_into(self.dtype, &turned, to, out);
            return Ok(());
        }
        let step = CHUNK_BYTES / 4;
        for (index, out) in out.chunks_mut(step * to.bytes()).enumerate() {
            buffer.resize(out.len() / to.bytes() * self.dtype.bytes(), 0);
            let at = start + index * step * self.dtype.bytes();
            stream.read(&self.name, at as u64, &mut buffer)?;
            convert_into(self.dtype, &buffer, to, out);
        }
        Ok(())
    }
}

/// What one thread reads in one go: rows of jobs, as they follow each other in the file.
#[derive(Default)]
struct Group<'a> {
    parts: Vec<(&'a Job, Range<usize>, DType)>,
    targets: Vec<Tensor>,
    bytes: usize,
}

fn groups<'a>(jobs: &'a [Job], params: &Params) -> Vec<Group<'a>> {
    let all: usize = jobs.iter().map(Job::bytes).sum();
    let most = (all / 8).clamp(*GROUP_BYTES.start(), *GROUP_BYTES.end());
    let mut groups: Vec<Group<'a>> = Vec::new();
    for job in jobs {
        let Some(weight) = params.get(job.id).value.resident() else { continue };
        for rows in job.parts(most) {
            if groups.last().is_none_or(|group| group.bytes >= most) {
                groups.push(Group::default());
            }
            let Some(group) = groups.last_mut() else { continue };
            group.bytes += rows.len() * job.row_bytes();
            group.targets.push(job.target(weight, rows.clone()));
            group.parts.push((job, rows, weight.dtype()));
        }
    }
    groups
}

/// Parts of a piece's rows of about `bytes`.
fn split(piece: &Piece, element_bytes: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = (bytes / (piece.row_len() * element_bytes).max(1)).max(1);
    let rows = piece.rows.clone();
    rows.clone().step_by(step).map(move |start| start..rows.end.min(start.saturating_add(step)))
}

/// Rows of one chunk of a piece.
pub(super) fn chunks(piece: &Piece, element_bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    split(piece, element_bytes, CHUNK_BYTES)
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
    let groups = groups(&jobs, params);
    let (parts, targets): (Vec<_>, Vec<_>) =
        groups.into_iter().map(|group| (group.parts, group.targets)).unzip();
    // Of several failures the first in the order of the file is told, whichever thread met one first.
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let failure = || failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    device.machine.fill(&targets, &|index, elements| {
        if failure().as_ref().is_some_and(|(first, _)| *first < index) {
            return;
        }
        let mut stream = source.stream();
        let mut parts = parts[index].iter().zip(elements);
        let read = parts
            .try_for_each(|((job, rows, dtype), out)| job.read(stream.as_mut(), rows.clone(), *dtype, out));
        if let Err(error) = read {
            let mut first = failure();
            if first.as_ref().is_none_or(|(first, _)| index < *first) {
                *first = Some((index, error));
            }
        }
    });
    failed
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .map_or(Ok(()), |(_, error)| Err(error))?;
    load_chunks(device, params, &jobs, source)?;
    params.disk().map_or(Ok(()), |disk| disk.check().map_err(Error::Spill))
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
    let mut used: BTreeSet<String> = jobs.iter().map(|job| job.name.clone()).collect();
    if model.portion != Portion::whole(&model.spec) {
        // What other ranks want.
        let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
        let (whole, _) = Model::declare(&nowhere, &model.spec, DType::F32);
        for piece in whole.pieces().into_iter().flatten() {
            used.extend(piece.name.strip_prefix(names.base).map(str::to_string));
            used.insert(piece.name);
        }
    }
    let head = format!("{}.weight", names.head);
    let superfluous = |name: &str| {
        let buffer = names.ignored.iter().any(|end| name.ends_with(end));
        buffer || (model.spec.tied && name == head)
    };
    let extra: Vec<&str> =
        source.names().into_iter().filter(|name| !used.contains(*name) && !superfluous(name)).collect();
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
