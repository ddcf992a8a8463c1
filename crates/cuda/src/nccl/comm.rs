//! One communicator: some ranks that NCCL has connected. Its calls never block; each is polled until NCCL has taken it.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::sys::{BYTES, Config, IN_PROGRESS, Nccl, RawComm, SUCCESS, SUM};
use crate::driver::{Driver, Stream};
use crate::{Error, Result};

/// Between two looks at a call that NCCL works on.
const NAP: Duration = Duration::from_micros(50);

/// What those who join a communicator have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    /// `NCCL_UNIQUE_ID_BYTES`.
    pub const BYTES: usize = 128;
}

impl Default for UniqueId {
    fn default() -> UniqueId {
        UniqueId([0; UniqueId::BYTES])
    }
}

/// Types that NCCL adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 32 bits.
    F32,
    /// The upper half of them.
    Bf16,
}

impl Kind {
    fn code(self) -> c_int {
        match self {
            Kind::F32 => 7,
            Kind::Bf16 => 9,
        }
    }
}

/// A rank's end of a communicator. Ended with the last that holds it.
pub struct Communicator {
    nccl: Arc<Nccl>,
    driver: Arc<dyn Driver>,
    /// The handle's address. NCCL allows one caller at a time.
    handle: Mutex<usize>,
    ended: AtomicBool,
    deadline: Duration,
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Communicator {
    /// Joins the communicator of this name as `rank` of `ranks`: all do, within the deadline. A kernel of it takes at most
    /// `ctas` blocks of the device.
    ///
    /// # Errors
    /// If NCCL refuses (two ranks on one device, say), or somebody does not come.
    pub fn join(
        nccl: &Arc<Nccl>,
        driver: &Arc<dyn Driver>,
        id: UniqueId,
        [rank, ranks]: [usize; 2],
        ctas: Option<i32>,
        deadline: Duration,
    ) -> Result<Communicator> {
        driver.enter()?;
        let (mut raw, mut config): (RawComm, _) = (std::ptr::null_mut(), Config::polled(ctas));
        // SAFETY: NCCL reads the configuration and writes a handle.
        let status = unsafe { (nccl.call.init)(&mut raw, ranks as c_int, id, rank as c_int, &mut config) };
        if status != SUCCESS && status != IN_PROGRESS {
            nccl.check("ncclCommInitRankConfig", status, std::ptr::null_mut())?;
        }
        let handle = Mutex::new(raw.expose_provenance());
        let (nccl, driver) = (nccl.clone(), driver.clone());
        let joined = Communicator { nccl, driver, handle, ended: AtomicBool::new(false), deadline };
        joined.settle("ncclCommInitRankConfig", raw, status)?;
        Ok(joined)
    }

    /// Waits until NCCL has taken a call.
    fn settle(&self, call: &'static str, raw: RawComm, status: c_int) -> Result<()> {
        let begun = Instant::now();
        let mut status = status;
        while status == IN_PROGRESS {
            if begun.elapsed() > self.deadline || self.ended.load(Ordering::Acquire) {
                let message = format!("not taken within {:.0} s", begun.elapsed().as_secs_f64());
                return Err(Error::Nccl { call, message });
            }
            std::thread::sleep(NAP);
            let mut now = SUCCESS;
            // SAFETY: a communicator that lives; NCCL writes a number.
            let asked = unsafe { (self.nccl.call.async_error)(raw, &mut now) };
            status = if asked == SUCCESS { now } else { asked };
        }
        self.nccl.check(call, status, raw)
    }

    /// Runs a call with the handle, unless the communicator was ended.
    fn with(&self, name: &'static str, call: impl FnOnce(RawComm) -> c_int) -> Result<()> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended.load(Ordering::Acquire) {
            return Err(Error::Nccl { call: name, message: "the communicator was ended".into() });
        }
        self.driver.enter()?;
        let raw = pointer(*handle as u64);
        let status = call(raw);
        self.settle(name, raw, status)
    }

    /// Sends bytes to a rank of the communicator.
    ///
    /// # Safety
    /// As for all calls of this: the memory is the device's, lives until the stream has come there, and what is written is
    /// not used by others until then.
    ///
    /// # Errors
    /// As for all calls of this: NCCL's words.
    pub unsafe fn send(&self, from: u64, bytes: usize, to: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclSend", |raw| unsafe {
            (self.nccl.call.send)(pointer(from), bytes, BYTES, to as c_int, raw, pointer(stream.0))
        })
    }

    /// Receives bytes from a rank of the communicator.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See there.
    pub unsafe fn receive(&self, into: u64, bytes: usize, from: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclRecv", |raw| unsafe {
            (self.nccl.call.receive)(pointer(into), bytes, BYTES, from as c_int, raw, pointer(stream.0))
        })
    }

    /// Sends to one rank and receives from another at once: neither waits for the other.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See there.
    pub unsafe fn swap(
        &self,
        (from, to): (u64, usize),
        (into, of): (u64, usize),
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let call = &self.nccl.call;
        // SAFETY: the caller's promise. A call that fails inside a group fails at its end too.
        self.with("ncclGroupEnd", |raw| unsafe {
            let queue = pointer(stream.0);
            let begun = (call.group_start)();
            let sent = (call.send)(pointer(from), bytes, BYTES, to as c_int, raw, queue);
            let received = (call.receive)(pointer(into), bytes, BYTES, of as c_int, raw, queue);
            let ended = (call.group_end)();
            let failed = |status: &c_int| *status != SUCCESS && *status != IN_PROGRESS;
            [begun, sent, received].into_iter().find(failed).unwrap_or(ended)
        })
    }

    /// Sums `count` elements of all ranks, for all.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See there.
    pub unsafe fn all_reduce(
        &self,
        from: u64,
        into: u64,
        count: usize,
        kind: Kind,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclAllReduce", |raw| unsafe {
            let queue = pointer(stream.0);
            (self.nccl.call.all_reduce)(pointer(from), pointer(into), count, kind.code(), SUM, raw, queue)
        })
    }

    /// Sums `count` elements for each rank.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See there.
    pub unsafe fn reduce_scatter(
        &self,
        from: u64,
        into: u64,
        count: usize,
        kind: Kind,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclReduceScatter", |raw| unsafe {
            let queue = pointer(stream.0);
            (self.nccl.call.reduce_scatter)(pointer(from), pointer(into), count, kind.code(), SUM, raw, queue)
        })
    }

    /// Collects `bytes` of each rank, for all.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See there.
    pub unsafe fn all_gather(&self, from: u64, into: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclAllGather", |raw| unsafe {
            (self.nccl.call.all_gather)(pointer(from), pointer(into), bytes, BYTES, raw, pointer(stream.0))
        })
    }

    /// Gives all ranks what `root` has.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See there.
    pub unsafe fn broadcast(
        &self,
        from: u64,
        into: u64,
        bytes: usize,
        root: usize,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclBroadcast", |raw| unsafe {
            let (root, queue) = (root as c_int, pointer(stream.0));
            (self.nccl.call.broadcast)(pointer(from), pointer(into), bytes, BYTES, root, raw, queue)
        })
    }

    /// What went wrong behind our back, if anything did.
    pub fn failure(&self) -> Option<String> {
        // Somebody who makes a call sees its failure there.
        let handle = self.handle.try_lock().ok()?;
        if self.ended.load(Ordering::Acquire) {
            return None;
        }
        let (raw, mut now) = (pointer(*handle as u64), SUCCESS);
        // SAFETY: a communicator that lives; NCCL writes a number.
        let asked = unsafe { (self.nccl.call.async_error)(raw, &mut now) };
        let status = if asked == SUCCESS { now } else { asked };
        if status == IN_PROGRESS {
            return None;
        }
        self.nccl.check("ncclCommGetAsyncError", status, raw).err().map(|error| error.to_string())
    }

    /// Ends all work that is under way, on the device too. Calls after this fail.
    pub fn abort(&self) {
        // A caller that waits for NCCL looks at this.
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a communicator that lives, and is not used after this. What it returns changes nothing.
        let _ = self.driver.enter().map(|()| unsafe { (self.nccl.call.abort)(pointer(*handle as u64)) });
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if *self.ended.get_mut() {
            return;
        }
        let raw = pointer(*self.handle.get_mut().unwrap_or_else(PoisonError::into_inner) as u64);
        if self.driver.enter().is_err() {
            return;
        }
        // SAFETY: nobody holds the communicator any more. Without an orderly end it is ended in the other way; nobody is left
        // to be told of a failure.
        unsafe {
            let status = (self.nccl.call.finalize)(raw);
            match self.settle("ncclCommFinalize", raw, status) {
                Ok(()) => (self.nccl.call.destroy)(raw),
                Err(_) => (self.nccl.call.abort)(raw),
            };
        }
    }
}
