//! Options of an engine, and its start.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::chaos::{Adverse, Chaos};
use super::copies::HostBuffer;
use super::error::{Error, Result, remedy};
use super::file::{self, Access, Backing};
use super::memory::Memory;
use super::space::PAGE;
use super::worker::{StagingBuffers, WorkerContext};
use crate::{Category, DType, Device, Tensor};

/// Options of a spill file.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the file; not created.
    pub folder: PathBuf,
    /// Rank of the file, for messages.
    pub rank: usize,
    /// Size of the file, allocated when it is opened; a value that does not fit is refused.
    pub capacity_bytes: u64,
    /// Number of threads, each with one operation at a time: the device's queue depth.
    pub num_workers: usize,
    /// Most bytes of one operation; whole pages.
    pub piece_bytes: u64,
    /// Uses direct IO if the file system allows it, else the page cache.
    pub direct: bool,
    /// Fault injection for tests.
    pub chaos: Option<Chaos>,
    /// Uses host memory instead of a file, for machines with memory of their own.
    pub in_memory: bool,
}

/// Room beyond a piece in a staging buffer, to begin and end at page boundaries of memory and of the file.
const MARGIN: u64 = 3 * PAGE;

/// Parts of an engine that has been opened.
pub(super) struct EngineParts {
    pub access: Access,
    pub live: Option<Arc<WorkerContext>>,
    pub workers: Vec<JoinHandle<()>>,
    /// Staging outside the pool.
    pub pinned: Vec<Box<dyn HostBuffer>>,
}

impl Options {
    /// Options of a file of rank 0 with direct IO, two workers and pieces of 4 MiB.
    pub fn new(folder: impl Into<PathBuf>, capacity_bytes: u64) -> Options {
        let (num_workers, piece_bytes) = (2, 4 << 20);
        Options {
            folder: folder.into(),
            rank: 0,
            capacity_bytes,
            num_workers,
            piece_bytes,
            direct: true,
            chaos: None,
            in_memory: false,
        }
    }

    /// Options of host memory, allocated as it is first written, or at once if a machine pins it.
    pub fn in_memory(capacity_bytes: u64) -> Options {
        Options { in_memory: true, direct: false, ..Options::new("", capacity_bytes) }
    }

    /// Number of staging buffers and bytes of each: two per worker, each a piece and three pages.
    pub fn staging(&self) -> (usize, u64) {
        (2 * self.num_workers, self.piece_bytes + MARGIN)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.num_workers == 0 {
            return Err(Error::refused("num_workers", 0, "it has to be at least 1"));
        }
        if self.piece_bytes == 0 || !self.piece_bytes.is_multiple_of(PAGE) {
            let message = "it has to be a multiple of 4096, and not 0";
            return Err(Error::refused("piece_bytes", self.piece_bytes, message));
        }
        Ok(())
    }

    /// Name of the file in messages.
    pub(super) fn file_name(&self) -> String {
        if self.in_memory {
            format!("the host memory of rank {}", self.rank)
        } else {
            format!("the spill file of rank {} in {}", self.rank, self.folder.display())
        }
    }

    pub(super) fn charge_staging(&self, device: &Device) -> Vec<Tensor> {
        let (count, bytes) = self.staging();
        (0..count).map(|_| device.empty(1, bytes as usize, DType::U8, Category::Staging)).collect()
    }

    /// Opens the file and starts the workers.
    pub(super) fn start(&self, device: &Device, staging: &[Tensor], capacity: u64) -> Result<EngineParts> {
        let no_copies = || Error::NoCopies { machine: device.machine.profile().name.clone() };
        let copies = device.machine.copies().ok_or_else(no_copies)?;
        let mut pinned = Vec::new();
        let mut reach = |buffer: &Tensor| -> Option<usize> {
            let Some(own) = copies.staging(buffer.bytes() as usize) else {
                return copies.host(buffer.address()).map(|start| start.addr());
            };
            let start = own.start().expose_provenance();
            pinned.push(own);
            Some(start)
        };
        let buffers: Vec<usize> =
            staging.iter().map(&mut reach).collect::<Option<_>>().ok_or_else(no_copies)?;
        let aligned: Vec<usize> = buffers.iter().map(|start| start.next_multiple_of(PAGE as usize)).collect();
        let len = (self.piece_bytes + 2 * PAGE) as usize;
        let mut slots: Vec<StagingBuffers> = aligned
            .chunks_exact(2)
            .map(|pair| StagingBuffers { near: pair[0], near_len: len, far: pair[1], far_len: len })
            .collect();
        let (under, access): (Box<dyn Backing>, Access) = if self.in_memory {
            (Box::new(Memory::of(capacity, &copies)), Access::Memory)
        } else {
            let page = slots[0].first_page();
            let (file, access) = file::open(&self.folder, capacity, self.direct, page)?;
            (Box::new(file), access)
        };
        let direct = access == Access::Direct;
        let backing: Box<dyn Backing> = match self.chaos {
            Some(chaos) => Box::new(Adverse { chaos, under, direct }),
            None => under,
        };
        let mut shared = WorkerContext::new(backing, self.file_name(), direct, copies);
        shared.chaos = self.chaos;
        let shared = Arc::new(shared);
        let mut engine = EngineParts { access, live: Some(shared.clone()), workers: Vec::new(), pinned };
        for (index, slot) in slots.into_iter().enumerate() {
            let shared_with = shared.clone();
            let name = format!("spill-{}.{index}", self.rank);
            match std::thread::Builder::new().name(name).spawn(move || shared_with.serve(slot)) {
                Ok(worker) => engine.workers.push(worker),
                Err(source) => {
                    shared.stop();
                    engine.workers.drain(..).for_each(|worker| drop(worker.join()));
                    return Err(Error::Open {
                        action: "start the threads of",
                        folder: self.folder.clone(),
                        bytes: capacity,
                        remedy: remedy(&source),
                        source: Arc::new(source),
                    });
                }
            }
        }
        Ok(engine)
    }
}
