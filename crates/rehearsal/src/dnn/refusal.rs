//! What is refused, and the words of it.

use std::cell::RefCell;

use cudarc::cudnn::sys::cudnnStatus_t as Status;

use crate::device::complain;

/// A call that is not done.
#[derive(Debug)]
pub struct Refusal {
    /// What it answers.
    pub status: Status,
    /// Why.
    pub why: String,
}

/// What a call made, or why not.
pub type Outcome<T = ()> = Result<T, Refusal>;

thread_local! {
    /// The words of the last refusal of this thread that was not asked for yet.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn refuse<T>(status: Status, why: impl Into<String>) -> Outcome<T> {
    Err(Refusal { status, why: why.into() })
}

/// Refuses unless something holds.
///
/// # Errors
/// If it does not.
pub fn require(holds: bool, status: Status, why: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { refuse(status, why()) }
}

/// The status of a call, and its words where they are looked for.
pub fn answer(call: &str, outcome: Outcome) -> Status {
    let Err(Refusal { status, why }) = outcome else { return Status::CUDNN_STATUS_SUCCESS };
    complain(call, format!("{status:?}: {why}"));
    LAST.set(format!("{call}: {why}"));
    status
}

/// Takes the words of the last refusal.
pub fn last() -> String {
    LAST.take()
}
