//! The devices: memory, streams, events, and when work runs.
//!
//! Libraries ask three things of this module: [`submit`] puts work on a stream, [`check_memory`] says whether addresses may be
//! touched, [`computes`] whether there is anything to compute. Work that is refused when it runs fails the device, as an
//! illegal address does: every later call of the driver returns that error.

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

/// Work of a stream. It may run more than once, as part of a graph. An error is what a device would fail by.
pub type Work = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Whether work can go on; asked again and again while not.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// A kernel of a loaded program.
#[derive(Clone)]
pub struct Function {
    /// Of this program.
    pub program: Arc<Program>,
    /// Its name.
    pub name: Arc<str>,
    /// Dynamic shared memory that it may be launched with.
    pub shared_bytes: u32,
}

/// Everything that is known of all devices.
#[derive(Default)]
pub struct State {
    /// Handles are numbers that are given once.
    last_handle: u64,
    /// Addresses, by their first.
    pub reservations: BTreeMap<u64, Reservation>,
    /// Physical memory by handle: device and bytes.
    pub physical: BTreeMap<u64, (usize, u64)>,
    /// Plain allocations of devices by address: device, bytes, and how many bytes of the host are behind them.
    pub allocations: BTreeMap<u64, (usize, u64, u64)>,
    /// Pinned memory of the host: address and bytes.
    pub pinned: BTreeMap<u64, u64>,
    /// Bytes taken of each device.
    pub used: Vec<u64>,
    /// By handle.
    pub streams: BTreeMap<u64, StreamState>,
    /// By handle.
    pub events: BTreeMap<u64, EventState>,
    /// Devices whose primary context is retained.
    pub contexts: BTreeSet<usize>,
    /// What failed for good.
    pub failed: Option<CUresult>,
    /// What captures made, by handle.
    pub graphs: BTreeMap<u64, Vec<Op>>,
    /// And what can be launched of them.
    pub runnable: BTreeMap<u64, Vec<Op>>,
    /// Loaded programs by handle.
    pub modules: BTreeMap<u64, Arc<Program>>,
    /// Kernels by handle.
    pub functions: BTreeMap<u64, Function>,
    /// Of a schedule with a seed.
    random: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let settings = settings();
    Mutex::new(State { used: vec![0; settings.devices], random: settings.seed(), ..State::default() })
});

/// Something ran, or was submitted.
static MOVED: Condvar = Condvar::new();

/// The devices, for as long as the guard lives.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A number that nothing else has. Looks like an address and is none.
    pub fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        0x7000_0000_0000_0000 + 16 * self.last_handle
    }

    /// A number of the schedule's seed.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Says on standard error what a document forbids.
pub fn complain(call: &str, why: impl std::fmt::Display) {
    eprintln!("rehearsal: {call}: {why}");
}

/// False if nothing is computed or copied, and memory must not be touched.
pub fn computes() -> bool {
    !settings().dry
}

/// Puts work on a stream, behind what is there; `what` names it in messages. While the stream is captured the work becomes part of
/// the graph. Without anything to compute it only takes its turn.
///
/// # Errors
/// If there is no such stream, or the device has failed.
pub fn submit(stream: u64, what: &str, work: Work) -> Result<(), CUresult> {
    submit_when(stream, what, None, work)
}

/// The same for work that also waits for something outside of this process's streams.
///
/// # Errors
/// As [`submit`].
pub fn submit_when(stream: u64, what: &str, ready: Option<Ready>, work: Work) -> Result<(), CUresult> {
    let mut state = state();
    state.alive()?;
    let work: Work = if computes() { work } else { Arc::new(|| Ok(())) };
    state.push(stream, Op::Work { what: what.into(), ready, work })?;
    drop(state);
    streams::after_submit();
    Ok(())
}

/// Whether all of these bytes may be read and written by a device: memory that is mapped and accessible, allocated or pinned.
///
/// # Errors
/// Why not, in words.
pub fn check_memory(address: u64, bytes: u64) -> Result<(), String> {
    state().check(address, bytes)
}
