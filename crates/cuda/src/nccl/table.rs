//! Serialisation of NCCL calls: one thread at a time for all communicators of the process, as they are on one device;
//! and aborting all of them at once.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A communicator known to NCCL.
pub(super) struct Handle {
    pub address: usize,
    /// True once destroyed or aborted.
    pub ended: AtomicBool,
    /// True as long as no call on it has failed or been given up.
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
    pub(crate) live: Mutex<Vec<Arc<Handle>>>,
    /// Start of the current turn.
    pub(crate) since: Mutex<Option<Instant>>,
    /// Number of threads waiting for their turn to abort everything; polling threads yield their turn to them.
    pub(crate) aborting: AtomicUsize,
}

/// The right to call NCCL, with the live communicators.
pub(super) struct Turn<'a> {
    live: MutexGuard<'a, Vec<Arc<Handle>>>,
    since: &'a Mutex<Option<Instant>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Turn<'a> {
    pub(crate) fn new(live: MutexGuard<'a, Vec<Arc<Handle>>>, since: &'a Mutex<Option<Instant>>) -> Turn<'a> {
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
