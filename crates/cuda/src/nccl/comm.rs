//! A communicator: ranks connected by NCCL. Its calls never block; each is polled until NCCL has accepted it, and only
//! one thread of the process is in any call at a time ([`super::table`]).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::sys::{BYTES, Config, IN_PROGRESS, Nccl, RawComm, SUCCESS, SUM, UniqueId};
use super::table::Handle;
use crate::driver::{Driver, Stream};
use crate::{Error, Result};

/// Interval between polls of a pending call.
const NAP: Duration = Duration::from_micros(50);

/// Element types for NCCL's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 32 bits.
    F32,
    /// bfloat16.
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

/// A rank's end of a communicator, destroyed when the last reference is dropped.
pub struct Communicator {
    nccl: Arc<Nccl>,
    driver: Arc<dyn Driver>,
    handle: Arc<Handle>,
    deadline: Duration,
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Communicator {
    /// Joins the communicator of this id as `rank` of `ranks`; all must join within the deadline. One of its kernels
    /// uses at most `ctas` blocks of the device.
    ///
    /// # Errors
    /// If NCCL refuses (two ranks on one device, say), or a rank does not join.
    pub fn join(
        nccl: &Arc<Nccl>,
        driver: &Arc<dyn Driver>,
        id: UniqueId,
        [rank, ranks]: [usize; 2],
        ctas: Option<i32>,
        deadline: Duration,
    ) -> Result<Communicator> {
        let call = "ncclCommInitRankConfig";
        driver.enter()?;
        let (mut raw, mut config): (RawComm, _) = (std::ptr::null_mut(), Config::polled(ctas));
        let mut turn = nccl.turn();
        // SAFETY: NCCL reads the configuration and writes a handle.
        let status = unsafe { (nccl.call.init)(&mut raw, ranks as c_int, id, rank as c_int, &mut config) };
        if raw.is_null() {
            nccl.check(call, status, raw)?;
            return Err(Error::Nccl { call, message: "no communicator".into() });
        }
        // A handle now exists, whatever the call returns: on later failure it is destroyed with the value.
        let handle = Handle::new(raw.expose_provenance());
        turn.push(handle.clone());
        let joined = Communicator { nccl: nccl.clone(), driver: driver.clone(), handle, deadline };
        let settled = joined.settle(call, status);
        drop(turn);
        settled.map(|()| joined)
    }

    /// Waits until NCCL has accepted a call, for which the caller has the turn.
    fn settle(&self, call: &'static str, status: c_int) -> Result<()> {
        let (started, raw, mut status) = (Instant::now(), self.handle.raw(), status);
        let given_up = loop {
            if status != IN_PROGRESS {
                break None;
            }
            if self.nccl.is_aborting() {
                break Some("the communicator was ended meanwhile".to_string());
            }
            if started.elapsed() > self.deadline {
                break Some(format!("not taken within {:.0} s", started.elapsed().as_secs_f64()));
            }
            std::thread::sleep(NAP);
            let mut now = SUCCESS;
            // SAFETY: a communicator that lives; NCCL writes a number.
            let asked = unsafe { (self.nccl.call.async_error)(raw, &mut now) };
            status = if asked == SUCCESS { now } else { asked };
        };
        let settled = match given_up {
            Some(message) => Err(Error::Nccl { call, message }),
            None => self.nccl.check(call, status, raw),
        };
        settled.inspect_err(|_| self.handle.sound.store(false, Ordering::SeqCst))
    }

    /// Runs a call with the handle, unless the communicator has ended.
    fn with(&self, name: &'static str, call: impl FnOnce(RawComm) -> c_int) -> Result<()> {
        let _turn = self.nccl.turn();
        if self.handle.ended.load(Ordering::SeqCst) {
            return Err(Error::Nccl { call: name, message: "the communicator was ended".into() });
        }
        self.driver.enter()?;
        self.settle(name, call(self.handle.raw()))
    }

    /// Sends bytes to a rank of the communicator.
    ///
    /// # Safety
    /// Like all calls of this type: the memory is the device's and lives until the stream has executed the call, and
    /// nothing else uses a destination until then.
    ///
    /// # Errors
    /// Like all calls of this type: NCCL's message.
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
    /// See [`Communicator::send`].
    pub unsafe fn receive(&self, into: u64, bytes: usize, from: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclRecv", |raw| unsafe {
            (self.nccl.call.receive)(pointer(into), bytes, BYTES, from as c_int, raw, pointer(stream.0))
        })
    }

    /// Sends to one rank and receives from another concurrently; neither waits for the other.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See [`Communicator::send`].
    pub unsafe fn swap(
        &self,
        (from, to): (u64, usize),
        (into, of): (u64, usize),
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let call = &self.nccl.call;
        // SAFETY: the caller's promise.
        let swapped = self.with("ncclGroupEnd", |raw| unsafe {
            let queue = pointer(stream.0);
            let started = (call.group_start)();
            let sent = (call.send)(pointer(from), bytes, BYTES, to as c_int, raw, queue);
            let received = (call.receive)(pointer(into), bytes, BYTES, of as c_int, raw, queue);
            let ended = (call.group_end)();
            let failed = |status: &c_int| *status != SUCCESS && *status != IN_PROGRESS;
            [started, sent, received].into_iter().find(failed).unwrap_or(ended)
        });
        // An invalid argument fails only that call: the other half has been launched and would wait forever.
        swapped.inspect_err(|_| self.abort())
    }

    /// Sums `count` elements over all ranks, for all ranks.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See [`Communicator::send`].
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
    /// See [`Communicator::send`].
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

    /// Gathers `bytes` of each rank, for all ranks.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See [`Communicator::send`].
    pub unsafe fn all_gather(&self, from: u64, into: u64, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with("ncclAllGather", |raw| unsafe {
            (self.nccl.call.all_gather)(pointer(from), pointer(into), bytes, BYTES, raw, pointer(stream.0))
        })
    }

    /// Copies the data of `root` to all ranks.
    ///
    /// # Safety
    /// See [`Communicator::send`].
    ///
    /// # Errors
    /// See [`Communicator::send`].
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

    /// Closes the communicator in order; all of its ranks must do so. Later calls fail.
    ///
    /// # Errors
    /// NCCL's message, or that other ranks did not close within the deadline. The communicator must then be aborted,
    /// with all others of the process or on drop.
    pub fn close(&self) -> Result<()> {
        let mut turn = self.nccl.turn();
        if self.handle.ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.driver.enter()?;
        let raw = self.handle.raw();
        let (call, message) = ("ncclCommFinalize", "a call before it has failed".to_string());
        if !self.handle.sound.load(Ordering::SeqCst) {
            return Err(Error::Nccl { call, message });
        }
        // SAFETY: a communicator that lives, with nothing in flight.
        self.settle(call, unsafe { (self.nccl.call.finalize)(raw) })?;
        self.forget(&mut turn);
        // SAFETY: finalized, and not used after this.
        let status = unsafe { (self.nccl.call.destroy)(raw) };
        self.nccl.check("ncclCommDestroy", status, std::ptr::null_mut())
    }

    /// Aborts only this communicator and its work on the device; nothing else may be in flight there.
    fn abort(&self) {
        let mut turn = self.nccl.turn();
        // A thread waiting to abort all communicators will abort this one too.
        if self.handle.ended.load(Ordering::SeqCst) || self.nccl.is_aborting() {
            return;
        }
        self.forget(&mut turn);
        // SAFETY: a communicator that lives, and is not used after this. The result is irrelevant.
        let _ = self.driver.enter().map(|()| unsafe { (self.nccl.call.abort)(self.handle.raw()) });
    }

    fn forget(&self, live: &mut Vec<Arc<Handle>>) {
        self.handle.ended.store(true, Ordering::SeqCst);
        live.retain(|handle| !Arc::ptr_eq(handle, &self.handle));
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // There is no caller to report a failure to.
        if self.close().is_err() {
            self.abort();
        }
    }
}
