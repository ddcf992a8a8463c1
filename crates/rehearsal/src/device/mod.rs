//! The devices: memory, streams, events, and when work runs.
//!
//! Libraries use three functions of this module: [`submit`] puts work on a stream, [`check_memory`] checks whether
//! addresses are accessible, [`computes`] returns whether anything is computed. Work that fails when it runs makes the
//! device fail, like an illegal address: every later call of the driver returns that error.

mod memory;
mod settings;
mod state;
mod streams;

pub use memory::{CONTEXT, GRANULE};
pub use settings::{Settings, settings};
pub use state::computes;
pub use state::{Capture, EventState, Mark, Op, StreamState};
pub use state::{Function, Ready, State, Work, complain, state};
pub use state::{Range, Reservation};
pub use streams::{after_submit, drive, drive_all, drive_event, nudge};
pub use streams::{submit, submit_when};

/// Checks that a device may read and write all of these bytes: memory that is mapped and accessible, allocated or
/// pinned.
///
/// # Errors
/// The reason that it may not.
pub fn check_memory(address: u64, bytes: u64) -> Result<(), String> {
    state().check(address, bytes)
}
