//! Calls of NCCL that take turns.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::sys::{IN_PROGRESS, Nccl, SUCCESS};
use super::table::{Turn, lock};
use crate::driver::Driver;

impl Nccl {
    /// Waits until no other thread calls NCCL. A turn lasts until NCCL has accepted the call: no other may be made
    /// before that (`ncclCommGetAsyncError`).
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn::new(lock(&self.table.live), &self.table.since)
    }

    /// True if a thread waits to abort everything.
    pub(super) fn is_aborting(&self) -> bool {
        self.table.aborting.load(Ordering::SeqCst) > 0
    }

    /// Aborts all communicators of the process and their work on the device, in one group: on its own, each might wait
    /// for kernels of the others when it frees memory (NVIDIA/nccl issue 1013; groups of aborts from 2.22 on). No other
    /// thread is in a call meanwhile, as "Fault Tolerance" of NCCL's guide requires. Later calls on the communicators
    /// fail.
    pub(super) fn abort(&self, driver: &dyn Driver) {
        self.table.aborting.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.turn();
        let mut live = std::mem::take(&mut *turn);
        // NCCL's call waits for a communicator's background work, which may wait for kernels of those before it.
        live.sort_by_key(|handle| !handle.sound.load(Ordering::SeqCst));
        // SAFETY: communicators that live, and are not used after this. The results are irrelevant.
        let _ = driver.enter().map(|()| unsafe {
            (self.call.group_start)();
            for handle in live.iter().filter(|handle| !handle.ended.swap(true, Ordering::SeqCst)) {
                (self.call.abort)(handle.raw());
            }
            (self.call.group_end)()
        });
        self.table.aborting.fetch_sub(1, Ordering::SeqCst);
    }

    /// An asynchronous failure, if there was one; a call that has not returned within `patience` counts as one.
    pub fn failure(&self, patience: Duration) -> Option<String> {
        let Ok(live) = self.table.live.try_lock() else {
            // The thread making a call sees its failure itself.
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
