//! The state of the device: its memory, its streams and their work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use cudarc::driver::sys::CUresult;

use super::settings::settings;
use crate::compiler::Program;

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
pub(super) static MOVED: Condvar = Condvar::new();

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
    pub(crate) fn draw(&mut self) -> u64 {
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

/// A point of a stream, as recorded by an event.
pub struct Mark {
    /// Handle of the stream.
    pub stream: u64,
    /// Time at which the point was passed.
    pub over: OnceLock<Instant>,
}

/// An operation of a stream.
#[derive(Clone)]
pub enum Op {
    /// Runs work.
    Work {
        /// Name for messages.
        what: Arc<str>,
        /// Condition to wait for first.
        ready: Option<Ready>,
        /// The work.
        work: Work,
    },
    /// Passes a point.
    Record(Arc<Mark>),
    /// Waits for a point of another stream.
    Wait(Arc<Mark>),
}

/// Capture of a stream.
pub struct Capture {
    /// Captured work, in order.
    pub ops: Vec<Op>,
    /// The thread that began it, which must not make blocking calls.
    pub owner: ThreadId,
    /// True if an operation was requested that a graph cannot contain.
    pub broken: bool,
}

/// The queue of a stream.
#[derive(Default)]
pub struct StreamState {
    pub(crate) ops: VecDeque<Op>,
    /// Number of operations issued.
    pub(crate) issued: u64,
    /// Number of operations finished.
    pub(crate) finished: u64,
    /// True while an operation runs.
    pub(crate) busy: bool,
    /// Present during a capture of the stream.
    pub capture: Option<Capture>,
}

impl StreamState {
    /// True if all issued operations have finished.
    pub fn is_idle(&self) -> bool {
        self.finished == self.issued
    }
}

/// An event with the point at which it was last recorded.
pub struct EventState {
    /// True if it records timestamps.
    pub timed: bool,
    /// The last recorded point; `None` if never recorded.
    pub last: Option<Arc<Mark>>,
}

/// The mapping of a part of a reservation.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Size in bytes.
    pub bytes: u64,
    /// Handle of the physical memory.
    pub handle: u64,
    /// True if it can be read and written.
    pub open: bool,
}

/// Reserved addresses.
#[derive(Clone, Debug, Default)]
pub struct Reservation {
    /// Size in bytes.
    pub bytes: u64,
    /// Mappings by first address.
    pub ranges: BTreeMap<u64, Range>,
}

/// False if nothing is computed or copied, and memory must not be accessed.
pub fn computes() -> bool {
    !settings().dry
}
