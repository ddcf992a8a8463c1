//! The way from Python into the rest of Fathom: without the interpreter's lock, with panics as errors, and with Ctrl-C.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use fathom_app::{Error, Result, caught};
use pyo3::prelude::*;

use crate::error;

/// Interval at which a waiting thread looks for signals.
pub const POLL: Duration = Duration::from_millis(50);

/// Stack of a thread that loads models and plans.
const STACK: usize = 16 << 20;

/// Set in a child process that was forked from one with handles: their threads are not in it.
static FORKED: AtomicBool = AtomicBool::new(false);
static QUIET: Once = Once::new();

thread_local! {
    /// Place of the last panic of this thread.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Marks this process as forked.
pub fn mark_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Refuses to go on in a forked process.
///
/// # Errors
/// `ForkedError`.
pub fn check_fork(py: Python<'_>) -> PyResult<()> {
    if !FORKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(error::make(
        py,
        "ForkedError",
        "this handle belongs to the process that this one was forked from, and its threads are not here; begin child processes by \
         spawn (multiprocessing.set_start_method(\"spawn\")), and open the model in them",
        &[],
    ))
}

/// Place of the last panic on this thread.
pub fn place() -> String {
    PLACE.with(|place| place.borrow().clone())
}

/// Runs work that may panic. The panic's message becomes an error, and nothing is printed.
///
/// # Errors
/// Those of the work.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    QUIET.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let at = info.location().map(ToString::to_string).unwrap_or_default();
            PLACE.with(|place| *place.borrow_mut() = at);
        }));
    });
    caught(work).map_err(|error| match error {
        Error::Panicked(text) => Error::Panicked(format!("{text} (at {})", place())),
        error => error,
    })
}

/// Runs work without the interpreter's lock.
///
/// # Errors
/// Those of the work, as exceptions.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    check_fork(py)?;
    py.detach(|| guarded(work)).map_err(|error| error::raise(py, &error))
}

/// A result that another thread will put here.
pub struct PendingResult<T> {
    state: Mutex<Option<T>>,
    there: Condvar,
}

impl<T> PendingResult<T> {
    /// An empty place.
    pub fn new() -> Arc<PendingResult<T>> {
        Arc::new(PendingResult { state: Mutex::new(None), there: Condvar::new() })
    }

    /// Puts the result.
    pub fn put(&self, result: T) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.there.notify_all();
    }

    /// Takes the result; waits for it at most this long.
    pub fn take(&self, most: Duration) -> Option<T> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.there.wait_timeout_while(state, most, |state| state.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// Starts a thread with the stack of a program's main one.
///
/// # Errors
/// The system has no room for it.
pub fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(format!("fathom {name}")).stack_size(STACK).spawn(work)
}

/// Runs a verb on a thread of its own, and waits for it. Ctrl-C sets the verb's flag and returns at once; the thread
/// ends where the verb next looks at it.
///
/// # Errors
/// Those of the work, as exceptions; `KeyboardInterrupt`.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    check_fork(py)?;
    let (stop, pending) = (Arc::new(AtomicBool::new(false)), PendingResult::new());
    let (asked, to) = (stop.clone(), pending.clone());
    thread(name, move || to.put(guarded(|| work(&asked))))?;
    loop {
        if let Some(done) = py.detach(|| pending.take(POLL)) {
            return done.map_err(|error| error::raise(py, &error));
        }
        if let Err(interrupt) = py.check_signals() {
            stop.store(true, Ordering::Relaxed);
            return Err(interrupt);
        }
    }
}
