//! Offload of weights and optimizer state: one file for both, and the ring of buffers that they pass through.
//!
//! An offloaded value is cut into chunks of [`CHUNK`] elements, whatever its shape, so a vocabulary's matrix is never
//! whole in memory for an update. A sweep processes chunks in a fixed order: while one is in use, the next is being
//! read and the previous one written. Transfers depend on the sweep alone, and the ring is allocated before the first
//! step, so a slow disk causes waits but never needs more memory.
//!
//! After a failed transfer a sweep continues with meaningless values: call [`StateDisk::check`] before using any.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use fathom_tensor::spill::{
    Codec, Error, FileRead, FileValue, FileWrite, Options, Result, Spill, Stats, Tag,
};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::optimizer::Moments;
use crate::visit::Visit;

/// Elements per transfer; f32: 4 MiB, one operation of the file.
pub const CHUNK: usize = 1 << 20;

/// Chunks of each kind in memory: one in use, one being read, one being written.
const RING: usize = 3;

/// The parts of a model that are offloaded while unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDisk {
    /// Weights, outside the segments that need them.
    pub weights: bool,
    /// Moments and masters, outside the update.
    pub optimizer: bool,
    /// In host memory instead, pinned if the machine is a GPU.
    pub in_host: bool,
    /// Share of the optimizer's state that stays on the machine, in percent of its elements.
    pub stays_percent: u32,
}

impl OnDisk {
    /// True if anything is offloaded.
    pub fn any(self) -> bool {
        self.weights || self.optimizer
    }

    /// Options for opening it: a file in a folder, or host memory.
    pub fn options(self, folder: &Path, bytes: u64) -> Options {
        if self.in_host { Options::in_memory(bytes) } else { Options::new(folder, bytes) }
    }
}

/// Role of a value among a weight's state; each role has its own buffers in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Weight,
    Moment1,
    Moment2,
    Master,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Weight => "weight",
            Role::Moment1 => "moment 1",
            Role::Moment2 => "moment 2",
            Role::Master => "master",
        }
    }
}

/// The file and the ring, shared by all weights and state of a model, and of others over the same base.
pub struct StateDisk {
    spill: Spill,
    what: OnDisk,
    /// Buffers of each slot by role, [1, CHUNK].
    ring: RefCell<[[Option<Tensor>; 4]; RING]>,
    /// The error if the file is full.
    full: RefCell<Option<Error>>,
}

/// A value on disk: its chunks, and its elements while they are in memory.
pub(crate) struct DiskValue {
    pub disk: Rc<StateDisk>,
    pub role: Role,
    pub dtype: DType,
    pub chunks: Vec<FileValue>,
    pub layer: i32,
    pub visit: RefCell<Visit>,
}

/// Where a chunk is outside a sweep.
pub(crate) enum ChunkHome<'a> {
    /// In memory: its elements, [1, n].
    Memory(Tensor),
    Disk(&'a DiskValue),
}

/// A chunk of a value in a sweep.
pub(crate) struct SweptChunk<'a> {
    pub home: ChunkHome<'a>,
    /// Its elements.
    pub range: Range<usize>,
    pub read: bool,
    pub write: bool,
}

impl SweptChunk<'_> {
    /// Its elements, if they are in memory.
    pub fn in_memory(self) -> Option<Tensor> {
        match self.home {
            ChunkHome::Memory(tensor) => Some(tensor),
            ChunkHome::Disk(_) => None,
        }
    }
}

impl StateDisk {
    /// Opens the file and allocates the ring, for weights of `dtype`.
    ///
    /// # Errors
    /// Those of [`Spill::open`].
    pub fn open(device: &Device, options: &Options, what: OnDisk, dtype: DType) -> Result<Rc<StateDisk>> {
        device.pool.enter("state on disk", -1);
        let spill = Spill::open(device, options)?;
        let buffer = |wanted: bool, dtype| wanted.then(|| device.empty(1, CHUNK, dtype, Category::Staging));
        let slot = || {
            let weight = buffer(what.weights, dtype);
            [weight, None, None, buffer(what.optimizer && dtype != DType::F32, DType::F32)]
        };
        let ring = RefCell::new([slot(), slot(), slot()]);
        Ok(Rc::new(StateDisk { spill, what, ring, full: RefCell::new(None) }))
    }

    /// Allocates the ring of the moments; optimizers that take turns share one.
    pub(crate) fn make_moments(&self, device: &Device, moments: Moments) {
        if !self.what.optimizer {
            return;
        }
        let buffer = || device.empty(1, CHUNK, moments.dtype, Category::Staging);
        let serves = |made: &Option<Tensor>| made.as_ref().is_some_and(|made| made.dtype() == moments.dtype);
        for slot in self.ring.borrow_mut().iter_mut() {
            for (role, wanted) in [(Role::Moment1, true), (Role::Moment2, moments.second)] {
                let at = &mut slot[role as usize];
                if wanted && !serves(at) {
                    *at = Some(buffer());
                }
            }
        }
    }

    /// The offloaded parts.
    pub fn what(&self) -> OnDisk {
        self.what
    }

    /// Totals since it was opened.
    pub fn stats(&self) -> Stats {
        self.spill.stats()
    }

    /// The engine, for recordings of its transfers.
    pub fn spill(&self) -> &Spill {
        &self.spill
    }

    /// The first failure, if there was one: to be checked before and after an update.
    ///
    /// # Errors
    /// That failure.
    pub fn check(&self) -> Result<()> {
        self.full.borrow().clone().map_or(Ok(()), Err)?;
        self.spill.check()
    }

    /// Reserves space for a value of `len` elements, in chunks; if there is none, the failure is stored, and the result
    /// is empty.
    pub(crate) fn reserve(&self, len: usize, dtype: DType, role: Role, layer: i32) -> Vec<FileValue> {
        let tag = Tag { name: role.name(), layer };
        let chunk = |range: Range<usize>| self.spill.reserve([1, range.len()], dtype, Codec::AsIs, tag);
        chunks(len).map(chunk).collect::<Result<_>>().unwrap_or_else(|error| {
            self.full.borrow_mut().get_or_insert(error);
            Vec::new()
        })
    }

    /// A view of a slot's buffer; bytes of packed weights use the buffer of weights.
    fn buffer(&self, slot: usize, role: Role, dtype: DType, len: usize) -> Tensor {
        match &self.ring.borrow()[slot][role as usize] {
            Some(buffer) if dtype == DType::U8 => buffer.as_bytes().view_cols(0..len),
            Some(buffer) => buffer.view_cols(0..len),
            None => panic!("no ring was made for the {} of a model on disk", role.name()),
        }
    }

    /// The elements of a part: in the tensor if it is in memory, else in a slot's buffer.
    fn view(&self, part: &SweptChunk<'_>, slot: usize) -> Tensor {
        match &part.home {
            ChunkHome::Disk(value) => self.buffer(slot, value.role, value.dtype, part.range.len()),
            ChunkHome::Memory(tensor) => tensor.clone(),
        }
    }

    /// The parts that pass through the ring, with their locations.
    fn moving<'a>(
        &'a self,
        parts: &'a [SweptChunk<'a>],
        slot: usize,
    ) -> impl Iterator<Item = (&'a SweptChunk<'a>, &'a FileValue, Tensor)> {
        parts.iter().filter_map(move |part| {
            let ChunkHome::Disk(value) = part.home else { return None };
            let stored = value.chunks.get(part.range.start / CHUNK)?;
            Some((part, stored, self.buffer(slot, value.role, value.dtype, part.range.len())))
        })
    }

    fn begin_reads(&self, parts: &[SweptChunk<'_>], slot: usize) -> Vec<FileRead> {
        let moving = self.moving(parts, slot).filter(|(part, ..)| part.read);
        moving.filter_map(|(_, stored, buffer)| self.spill.read(stored, buffer).ok()).collect()
    }

    fn begin_writes(&self, parts: &[SweptChunk<'_>], slot: usize) -> Vec<FileWrite> {
        let moving = self.moving(parts, slot).filter(|(part, ..)| part.write);
        moving.filter_map(|(_, stored, buffer)| self.spill.rewrite(stored, buffer).ok()).collect()
    }

    /// Calls `work(item, its parts' elements)` for `items` items in order, where `parts(item)` are the parts of an
    /// item, [1, n] each. Everything is written back when this returns.
    pub(crate) fn sweep<'a>(
        &self,
        items: usize,
        parts: &dyn Fn(usize) -> Vec<SweptChunk<'a>>,
        work: &mut dyn FnMut(usize, &[Tensor]),
    ) {
        let mut leaving: [Vec<FileWrite>; RING] = Default::default();
        let mut now = if items > 0 { parts(0) } else { Vec::new() };
        let mut coming = self.begin_reads(&now, 0);
        for item in 0..items {
            let (slot, next) = (item % RING, (item + 1) % RING);
            let after = if item + 1 < items { parts(item + 1) } else { Vec::new() };
            // Failures are the engine's first error, reported by `check`.
            leaving[next].drain(..).for_each(|writing| drop(writing.retire()));
            let ahead = self.begin_reads(&after, next);
            coming.drain(..).for_each(|reading| drop(reading.retire()));
            let views: Vec<Tensor> = now.iter().map(|part| self.view(part, slot)).collect();
            work(item, &views);
            drop(views);
            leaving[slot] = self.begin_writes(&now, slot);
            (now, coming) = (after, ahead);
        }
        leaving.into_iter().flatten().for_each(|writing| drop(writing.retire()));
    }
}

/// The chunks of a value of `len` elements.
pub(crate) fn chunks(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(CHUNK).map(move |start| start..len.min(start + CHUNK))
}
