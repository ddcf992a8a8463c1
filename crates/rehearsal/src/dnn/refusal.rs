//! Refusals and their messages.

use std::cell::RefCell;

use cudarc::cudnn::sys::cudnnStatus_t as Status;

use crate::device::complain;

/// A refused call.
#[derive(Debug)]
pub struct Refusal {
    /// Returned status.
    pub status: Status,
    /// Message.
    pub why: String,
}

/// Result of a call.
pub type Outcome<T = ()> = Result<T, Refusal>;

thread_local! {
    /// Message of this thread's last refusal that has not been queried yet.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Refuses a call.
///
/// # Errors
/// Always.
pub fn refuse<T>(status: Status, why: impl Into<String>) -> Outcome<T> {
    Err(Refusal { status, why: why.into() })
}

/// Refuses a call unless a condition holds.
///
/// # Errors
/// If it does not hold.
pub fn require(holds: bool, status: Status, why: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { refuse(status, why()) }
}

/// Converts an outcome to a status and stores the message.
pub fn answer(call: &str, outcome: Outcome) -> Status {
    let Err(Refusal { status, why }) = outcome else { return Status::CUDNN_STATUS_SUCCESS };
    complain(call, format!("{status:?}: {why}"));
    LAST.set(format!("{call}: {why}"));
    status
}

/// Takes the message of the last refusal.
pub fn last() -> String {
    LAST.take()
}
