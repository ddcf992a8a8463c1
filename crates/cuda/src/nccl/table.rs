//! Who may call NCCL: one thread at a time for all communicators of the process, as they are on one device; and how all of them
//! end at once.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sys::{IN_PROGRESS, Nccl, SUCCESS};
use crate::driver::Driver;

/// A communicator that NCCL knows.
pub(super) struct Handle {
    pub address: usize,
    /// Destroyed or aborted.
    pub ended: AtomicBool,
    /// No call of it has failed or was given up.
    pub sound: AtomicBool,
}

impl Handle {
    pub fn new(address: usize) -> Arc<Handle> {
        Arc::new(Handle { address, ended: AtomicBool::new(false), sound: AtomicBool::new(true) })
    }

    pub fn raw(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

/// All communicators of the process.
#[derive(Default)]
pub(super) struct Table {
    live: Mutex<Vec<Arc<Handle>>>,
    /// Since when somebody has the turn.
    since: Mutex<Option<Instant>>,
    /// How many wait for their turn to end everything: whoever polls gives his back.
    aborting: AtomicUsize,
}

/// The right to call NCCL, and what lives.
pub(super) struct Turn<'a> {
    live: MutexGuard<'a, Vec<Arc<Handle>>>,
    since: &'a Mutex<Option<Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Turn<'a> {
    fn new(live: MutexGuard<'a, Vec<Arc<Handle>>>, since: &'a Mutex<Option<Instant>>) -> Turn<'a> {
        *lock(since) = Some(Instant::now());
        Turn { live, since }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(self.since) = None;
    }
}

impl Deref for Turn<'_> {
    type Target = Vec<Arc<Handle>>;
    fn deref(&self) -> &Vec<Arc<Handle>> {
        &self.live
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Vec<Arc<Handle>> {
        &mut self.live
    }
}

impl Nccl {
    /// Waits until no other thread calls NCCL. A turn lasts until NCCL has taken the call: before that no other may be made
    /// (`ncclCommGetAsyncError`).
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn::new(lock(&self.table.live), &self.table.since)
    }

    /// Somebody waits to end everything.
    pub(super) fn is_aborting(&self) -> bool {
        self.table.aborting.load(Ordering::SeqCst) > 0
    }

    /// Ends all communicators of the process and all that they do on the device, in one group: alone, each may wait for kernels of
    /// the others when it frees memory (NVIDIA/nccl issue 1013; groups of this from 2.22 on). No other thread is in a call then, as
    /// "Fault Tolerance" of NCCL's guide wants. Calls of the communicators fail from here on.
    pub(super) fn abort(&self, driver: &dyn Driver) {
        self.table.aborting.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.turn();
        let mut live = std::mem::take(&mut *turn);
        // NCCL waits in the call for what a communicator does in the background, which may wait for kernels of those before it.
        live.sort_by_key(|handle| !handle.sound.load(Ordering::SeqCst));
        // SAFETY: communicators that live, and are not used after this. What it returns changes nothing.
        let _ = driver.enter().map(|()| unsafe {
            (self.call.group_start)();
            for handle in live.iter().filter(|handle| !handle.ended.swap(true, Ordering::SeqCst)) {
                (self.call.abort)(handle.raw());
            }
            (self.call.group_end)()
        });
        self.table.aborting.fetch_sub(1, Ordering::SeqCst);
    }

    /// What went wrong behind our back, if anything did; a call that has not come back for so long is that, too.
    pub fn failure(&self, patience: Duration) -> Option<String> {
        let Ok(live) = self.table.live.try_lock() else {
            // Somebody who makes a call sees its failure there.
            let seconds = (*lock(&self.table.since))?.elapsed();
            return (seconds > patience)
                .then(|| format!("a call of NCCL has not come back for {:.0} s", seconds.as_secs_f64()));
        };
        let turn = Turn::new(live, &self.table.since);
        turn.iter().filter(|handle| handle.sound.load(Ordering::SeqCst)).find_map(|handle| {
            let (raw, mut now) = (handle.raw(), SUCCESS);
            // SAFETY: a communicator that lives; NCCL writes a number.
            let asked = unsafe { (self.call.async_error)(raw, &mut now) };
            let status = if asked == SUCCESS { now } else { asked };
            if status == IN_PROGRESS {
                return None;
            }
            self.check("ncclCommGetAsyncError", status, raw).err().map(|error| error.to_string())
        })
    }
}
