//! The devices: memory, streams, events, and when work runs.
//!
//! Libraries use three functions of this module: [`submit`] puts work on a stream, [`check_memory`] checks whether
//! addresses are accessible, [`computes`] returns whether anything is computed. Work that fails when it runs makes the
//! device fail, like an illegal address: every later call of the driver returns that error.

mod memory;
mod settings;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::compiler::Program;

pub use memory::{CONTEXT, GRANULE};
pub use memory::{Range, Reservation};
pub use settings::{Settings, settings};
pub use streams::{
    Capture, EventState, Mark, Op, StreamState, after_submit, drive, drive_all, drive_event, nudge,
};

/// Work of a stream. It may run more than once, as part of a graph. An error makes the device fail.
pub type Work = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Condition for work to proceed; polled until true.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// A kernel of a loaded program.
#[derive(Clone)]
pub struct Function {
    /// Program that contains it.
    pub program: Arc<Program>,
    /// Its name.
    pub name: Arc<str>,
    /// Largest dynamic shared memory that it may be launched with.
    pub shared_bytes: u32,
}

/// State of all devices.
#[derive(Default)]
pub struct State {
    /// The last handle; handles are never reused.
    last_handle: u64,
    /// Reservations by first address.
    pub reservations: BTreeMap<u64, Reservation>,
    /// Physical memory by handle: device and bytes.
    pub physical: BTreeMap<u64, (usize, u64)>,
    /// Plain allocations of devices by address: device, bytes, and bytes of the host mapping.
    pub allocations: BTreeMap<u64, (usize, u64, u64)>,
    /// Pinned memory of the host: address and bytes.
    pub pinned: BTreeMap<u64, u64>,
    /// Bytes in use on each device.
    pub used: Vec<u64>,
    /// Streams by handle.
    pub streams: BTreeMap<u64, StreamState>,
    /// Events by handle.
    pub events: BTreeMap<u64, EventState>,
    /// Devices whose primary context is retained.
    pub contexts: BTreeSet<usize>,
    /// The error after a permanent failure.
    pub failed: Option<CUresult>,
    /// Captured graphs by handle.
    pub graphs: BTreeMap<u64, Vec<Op>>,
    /// Executable graphs by handle.
    pub runnable: BTreeMap<u64, Vec<Op>>,
    /// Loaded programs by handle.
    pub modules: BTreeMap<u64, Arc<Program>>,
    /// Kernels by handle.
    pub functions: BTreeMap<u64, Function>,
    /// Random state of a seeded schedule.
    random: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let settings = settings();
    Mutex::new(State { used: vec![0; settings.devices], random: settings.seed(), ..State::default() })
});

/// Notified when work ran or was submitted.
static MOVED: Condvar = Condvar::new();

/// The state of all devices, locked for as long as the guard lives.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A unique number that looks like an address but is not one.
    pub fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        0x7000_0000_0000_0000 + 16 * self.last_handle
    }

    /// The next random number of a seeded schedule.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Reports a violation of the documentation on standard error.
pub fn complain(call: &str, why: impl std::fmt::Display) {
    eprintln!("rehearsal: {call}: {why}");
}

/// False if nothing is computed or copied, and memory must not be accessed.
pub fn computes() -> bool {
    !settings().dry
}

/// Puts work on a stream; `what` names it in messages. During a capture of the stream the work becomes part of the
/// graph. If nothing is computed, the work only takes its turn.
///
/// # Errors
/// If there is no such stream, or the device has failed.
pub fn submit(stream: u64, what: &str, work: Work) -> Result<(), CUresult> {
    submit_when(stream, what, None, work)
}

/// Like [`submit`], for work that also waits for something outside this process's streams.
///
/// # Errors
/// See [`submit`].
pub fn submit_when(stream: u64, what: &str, ready: Option<Ready>, work: Work) -> Result<(), CUresult> {
    let mut state = state();
    state.alive()?;
    let work: Work = if computes() { work } else { Arc::new(|| Ok(())) };
    state.push(stream, Op::Work { what: what.into(), ready, work })?;
    drop(state);
    streams::after_submit();
    Ok(())
}

/// Checks that a device may read and write all of these bytes: memory that is mapped and accessible, allocated or
/// pinned.
///
/// # Errors
/// The reason that it may not.
pub fn check_memory(address: u64, bytes: u64) -> Result<(), String> {
    state().check(address, bytes)
}
