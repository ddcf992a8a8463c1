//! Streams weights into place: many concurrent reads, each straight into the machine's memory if the stored type is
//! the wanted one, otherwise through a small conversion buffer. The model is never held twice; weights on disk are
//! written chunk by chunk (`load_chunks`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use fathom_grad::{ParamId, Params};
use fathom_tensor::{DType, Device, Meta, Profile, Tensor};

use super::area::Area;
use super::convert::{convert_into, is_convertible, transpose};
use super::load_chunks::load_chunks;
use super::slot::{Job, Slot, split};
use super::source::{Source, Stream};
use super::tied::check_tied;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::patch::patches;
use crate::pieces::Piece;
use crate::portion::Portion;
use crate::weight::Kind;

/// Target size of a read that is converted or copied afterwards; fits the L2 cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes of the file that one thread reads in one go. Large, so that the system reads ahead; less for small models,
/// so that all threads end together.
const GROUP_BYTES: std::ops::RangeInclusive<usize> = 1 << 20..=64 << 20;

impl Job {
    /// Size of its data in the file.
    pub fn bytes(&self) -> usize {
        self.patch.area.len() * self.dtype.bytes()
    }

    /// Splits it into areas that are read at a time, with their elements' places in the value. Transposed patches are
    /// read whole: each row of the weight has an element of each of their rows.
    fn parts(&self, group_bytes: usize) -> Vec<(Area, Range<usize>)> {
        let Area { rows, cols } = &self.patch.area;
        if self.patch.transpose {
            return vec![(self.patch.area.clone(), self.first..self.first + self.patch.area.len())];
        }
        let parts = split(&self.patch.area, self.dtype.bytes(), group_bytes);
        let place = |part: Range<usize>| {
            let first = self.first + (part.start - rows.start) * cols.len();
            let len = part.len() * cols.len();
            (Area { rows: part, cols: cols.clone() }, first..first + len)
        };
        parts.map(place).collect()
    }

    /// Reads an area of the tensor as elements of type `to`.
    fn read(&self, stream: &mut dyn Stream, area: &Area, to: DType, out: &mut [u8]) -> Result<()> {
        if !self.patch.transpose && self.dtype == to {
            return stream.read_area(&self.name, area, out);
        }
        let (mut buffer, mut turned) = (Vec::new(), Vec::new());
        if self.patch.transpose {
            buffer.resize(area.len() * self.dtype.bytes(), 0);
            stream.read_area(&self.name, area, &mut buffer)?;
            transpose(&buffer, [area.rows.len(), area.cols.len()], self.dtype.bytes(), &mut turned);
            convert_into(self.dtype, &turned, to, out);
            return Ok(());
        }
        let mut rest = out;
        for rows in split(area, self.dtype.bytes(), CHUNK_BYTES) {
            let part = Area { rows, cols: area.cols.clone() };
            let (now, later) = rest.split_at_mut(part.len() * to.bytes());
            buffer.resize(part.len() * self.dtype.bytes(), 0);
            stream.read_area(&self.name, &part, &mut buffer)?;
            convert_into(self.dtype, &buffer, to, now);
            rest = later;
        }
        Ok(())
    }
}

/// Work of one thread: consecutive areas of jobs in file order.
#[derive(Default)]
struct Group<'a> {
    parts: Vec<(&'a Job, Area, DType)>,
    targets: Vec<Tensor>,
    bytes: usize,
}

fn groups<'a>(jobs: &'a [Job], slots: &[Slot]) -> Vec<Group<'a>> {
    let all: usize = jobs.iter().map(Job::bytes).sum();
    let most = (all / 8).clamp(*GROUP_BYTES.start(), *GROUP_BYTES.end());
    let mut groups: Vec<Group<'a>> = Vec::new();
    for job in jobs {
        let slot = &slots[job.slot];
        let Some(value) = slot.value.resident().filter(|_| slot.coded.is_none()) else { continue };
        let flat = value.reshape(1, value.len());
        for (area, place) in job.parts(most) {
            if groups.last().is_none_or(|group| group.bytes >= most) {
                groups.push(Group::default());
            }
            let Some(group) = groups.last_mut() else { continue };
            group.bytes += area.len() * job.dtype.bytes();
            group.targets.push(flat.view_cols(place));
            group.parts.push((job, area, value.dtype()));
        }
    }
    groups
}

/// Fills all weights of a model from a source.
///
/// # Errors
/// If a tensor is missing, has another shape or a type that is not a float, is there and not needed (buffers that
/// older files carry, blocks that predict further tokens and a tied model's head that is the embedding excepted), or
/// cannot be read. Some weights may have been written.
///
/// # Panics
/// If `params` are not this model's.
pub fn load(device: &Device, model: &Model, params: &mut Params, source: &dyn Source) -> Result<()> {
    if device.machine.has_data() {
        check_tied(model, source)?;
    }
    let slot = |(id, param): (ParamId, &fathom_grad::Param)| {
        let value = param.value.clone();
        Slot { id, range: 0..value.len(), value, coded: None }
    };
    let given = adapter_given(model, source);
    let slots = params.iter().map(slot).filter(|slot| given[slot.id.index()]);
    let slots: Vec<Slot> = slots.collect();
    load_slots(device, model, &slots, source)?;
    params.disk().map_or(Ok(()), |disk| disk.check().map_err(Error::Spill))
}

/// Per weight, whether the source must have it: all but an adapter's, which may be missing altogether.
fn adapter_given(model: &Model, source: &dyn Source) -> Vec<bool> {
    let (mut of_adapter, pieces) = (Vec::new(), model.pieces());
    model.visit(&mut |_, _, weight| of_adapter.push(weight.kind == Kind::Adapter));
    let there = |piece: &Piece| source.shape(&piece.name).is_some();
    let some = pieces.iter().zip(&of_adapter).any(|(pieces, of)| *of && pieces.iter().any(there));
    of_adapter.into_iter().map(|of| !of || some).collect()
}

/// Fills slots of a model's weights, or of values with the same names and shapes. Nothing else is read.
///
/// # Errors
/// Those of [`load`]; errors of the disk behind the values must be queried separately.
///
/// # Panics
/// If a value's size differs from its range's.
pub fn load_slots(device: &Device, model: &Model, slots: &[Slot], source: &dyn Source) -> Result<()> {
    let jobs = plan(model, slots, source)?;
    if !device.machine.has_data() {
        return Ok(());
    }
    let groups = groups(&jobs, slots);
    let (parts, targets): (Vec<_>, Vec<_>) =
        groups.into_iter().map(|group| (group.parts, group.targets)).unzip();
    // The first failure in file order is reported, whichever thread failed first.
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let failure = || failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    device.machine.fill(&targets, &|index, elements| {
        if failure().as_ref().is_some_and(|(first, _)| *first < index) {
            return;
        }
        let mut stream = source.stream();
        let mut parts = parts[index].iter().zip(elements);
        let read =
            parts.try_for_each(|((job, area, dtype), out)| job.read(stream.as_mut(), area, *dtype, out));
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
    load_chunks(device, slots, &jobs, (source, model))
}

/// Checks every tensor before any is read, and orders the jobs by place in the files.
fn plan(model: &Model, slots: &[Slot], source: &dyn Source) -> Result<Vec<Job>> {
    let family = model.spec.family;
    let names = source.names();
    let order: BTreeMap<&str, usize> = names.iter().enumerate().map(|(index, name)| (*name, index)).collect();
    let (pieces, shapes) = (model.pieces(), model.shapes());
    let mut jobs = Vec::new();
    for (index, slot) in slots.iter().enumerate() {
        let (shape, held) = (shapes[slot.id.index()], slot.range.len());
        assert_eq!(slot.value.len(), held, "load: elements of {:?}, weight {:?}", slot.value, slot.id);
        for patch in patches(&pieces[slot.id.index()], shape, slot.range.clone()) {
            let short = patch.name.strip_prefix(family.names.base).filter(|name| order.contains_key(name));
            let name =
                if order.contains_key(patch.name.as_str()) { Some(patch.name.as_str()) } else { short };
            let Some(name) = name.map(str::to_string) else {
                let what = format!("is missing; {} needs it with shape {:?}", model.spec.family, patch.shape);
                return Err(Error::tensor(source.place(&patch.name), &patch.name, what));
            };
            let refuse = |what: String| Err(Error::tensor(source.place(&name), &name, what));
            let shape_there = source.shape(&name).unwrap_or_default();
            if shape_there != patch.shape {
                return refuse(format!(
                    "has shape {shape_there:?}, the configuration says {:?}",
                    patch.shape
                ));
            }
            let Some(dtype) = source.dtype(&name).filter(|dtype| is_convertible(*dtype)) else {
                return refuse("is not stored as F32, BF16 or F16, the types that can be loaded".into());
            };
            let first = patch.local.rows.start * shape[1] + patch.local.cols.start - slot.range.start;
            let order = order[name.as_str()];
            jobs.push(Job { slot: index, patch, first, name, dtype, order });
        }
    }
    let held: usize = slots.iter().map(|slot| slot.range.len()).sum();
    let whole = model.portion == Portion::whole(&model.spec)
        && held == shapes.iter().map(|[rows, cols]| rows * cols).sum::<usize>();
    check_used(model, source, &jobs, whole)?;
    jobs.sort_by_key(|job| (job.order, job.patch.area.rows.start, job.patch.area.cols.start));
    Ok(jobs)
}

/// Checks that every tensor of the source is used or known to be superfluous.
fn check_used(model: &Model, source: &dyn Source, jobs: &[Job], whole: bool) -> Result<()> {
    let names = &model.spec.family.names;
    let mut used: BTreeSet<String> = jobs.iter().map(|job| job.name.clone()).collect();
    if !whole {
        // Tensors for other ranks.
        let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
        let (whole, _) = Model::declare(&nowhere, &model.spec, DType::F32);
        for piece in whole.pieces().into_iter().flatten() {
            used.extend(piece.name.strip_prefix(names.base).map(str::to_string));
            used.insert(piece.name);
        }
    }
    let head = format!("{}.weight", names.head);
    let superfluous = |name: &str| {
        let buffer = names.ignored.iter().any(|end| name.ends_with(end))
            || names.ignored_starts.iter().any(|start| name.starts_with(start));
        let bias = model.spec.scores > 0 && name == format!("{}.bias", names.head);
        buffer || bias || (model.spec.tied && name == head) || is_further(model, source, name)
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

/// Returns whether a tensor belongs to a multi-token prediction block after the last.
fn is_further(model: &Model, source: &dyn Source, name: &str) -> bool {
    let names = &model.spec.family.names;
    let Some(mark) = names.further else { return false };
    let (base, rest) = match name.strip_prefix(names.base) {
        Some(rest) => (names.base, rest),
        None => ("", name),
    };
    let block = rest.strip_prefix(names.layers).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
    block.is_some_and(|(index, _)| {
        let behind = index.parse().is_ok_and(|index: usize| index >= model.spec.layers.len());
        behind && source.shape(&format!("{base}{}.{index}.{mark}", names.layers)).is_some()
    })
}
