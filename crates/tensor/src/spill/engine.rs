//! State of an engine, shared by the handle and by values in flight.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::copies::HostBuffer;
use super::error::Result;
use super::file::Access;
use super::options::{EngineParts, Options};
use super::space::{PAGE, Space};
use super::stats::Stats;
use super::tag::Tag;
use super::worker::WorkerContext;
use crate::{Clock, Device, Machine, Tensor};

/// State of an engine.
pub(super) struct Engine {
    pub name: String,
    pub access: Access,
    pub piece_bytes: u64,
    pub in_memory: bool,
    pub space: Rc<RefCell<Space>>,
    pub stats: Cell<Stats>,
    pub transfers: Cell<u64>,
    pub recording: Cell<bool>,
    /// None on a machine without data.
    pub live: Option<Arc<WorkerContext>>,
    /// Provides the clock of a machine without data.
    machine: Arc<dyn Machine>,
    workers: Vec<JoinHandle<()>>,
    /// Outlives the workers, which are joined first.
    _staging: Vec<Tensor>,
    /// Also outlives the workers: staging that the machine supplied.
    _pinned: Vec<Box<dyn HostBuffer>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.stop();
        }
        for worker in self.workers.drain(..) {
            // Workers catch panics; there is nothing left to report to.
            let _ = worker.join();
        }
    }
}

impl Engine {
    /// See [`super::Spill::open`].
    pub fn start(device: &Device, options: &Options) -> Result<Engine> {
        options.check()?;
        let staging = options.charge_staging(device);
        let space = Space::new(options.capacity_bytes / PAGE * PAGE);
        let EngineParts { access, live, workers, pinned } = if device.machine.has_data() {
            options.start(device, &staging, space.capacity)?
        } else {
            EngineParts { access: Access::Nowhere, live: None, workers: Vec::new(), pinned: Vec::new() }
        };
        Ok(Engine {
            name: options.file_name(),
            access,
            piece_bytes: options.piece_bytes,
            in_memory: options.in_memory,
            space: Rc::new(RefCell::new(space)),
            stats: Cell::default(),
            transfers: Cell::new(0),
            recording: Cell::new(false),
            live,
            machine: device.machine.clone(),
            workers,
            _staging: staging,
            _pinned: pinned,
        })
    }

    pub fn live(&self) -> Option<&WorkerContext> {
        self.live.as_deref()
    }

    pub fn clock(&self) -> Option<&Clock> {
        self.machine.clock()
    }

    /// Retires on a machine without data, whose clock waits.
    pub fn pass(&self, ends_at: f64) {
        let mut stats = self.stats.get();
        stats.stall_s += self.clock().map_or(0.0, |clock| clock.wait_until(ends_at));
        self.stats.set(stats);
    }

    /// Counts a wait at a retire point.
    pub fn stalled(&self, tag: Tag, began: Instant) {
        let mut stats = self.stats.get();
        stats.stall_s += began.elapsed().as_secs_f64();
        self.stats.set(stats);
        if let (true, Some(live)) = (self.recording.get(), self.live()) {
            live.stalled(tag, began);
        }
    }
}
