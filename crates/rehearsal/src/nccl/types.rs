//! Constants of `nccl.h`, and failures of calls.

use std::ffi::{CString, c_char, c_int};
use std::sync::Mutex;

use crate::device::complain;

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// `ncclSuccess`.
    Success = 0,
    /// `ncclUnhandledCudaError`.
    Cuda = 1,
    /// `ncclSystemError`.
    System = 2,
    /// `ncclInternalError`.
    Internal = 3,
    /// `ncclInvalidArgument`.
    Argument = 4,
    /// `ncclInvalidUsage`.
    Usage = 5,
    /// `ncclRemoteError`.
    Remote = 6,
    /// `ncclInProgress`.
    Progress = 7,
}

impl Status {
    /// The status of a number.
    pub fn of(number: c_int) -> Status {
        use Status::*;
        let all = [Success, Cuda, System, Internal, Argument, Usage, Remote, Progress];
        usize::try_from(number).ok().and_then(|at| all.get(at)).copied().unwrap_or(Internal)
    }
}

/// Message of the last failure, for `ncclGetLastError`; messages live as long as the process.
static LAST: Mutex<usize> = Mutex::new(0);

/// Reports why a call fails, and returns its status.
pub fn refuse<T>(call: &str, why: impl std::fmt::Display, status: Status) -> Result<T, Status> {
    complain(call, &why);
    let text = CString::new(format!("{call}: {why}")).unwrap_or_default();
    *LAST.lock().unwrap_or_else(|broken| broken.into_inner()) = text.into_raw().expose_provenance();
    Err(status)
}

/// The message of the last failure.
pub fn last() -> *const c_char {
    let at = *LAST.lock().unwrap_or_else(|broken| broken.into_inner());
    if at == 0 { c"".as_ptr() } else { std::ptr::with_exposed_provenance(at) }
}

/// The number returned by a call.
pub fn code(result: Result<(), Status>) -> c_int {
    result.err().unwrap_or(Status::Success) as c_int
}

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type(pub u8);

impl Type {
    /// The type of a number, if valid.
    pub fn of(call: &str, number: c_int) -> Result<Type, Status> {
        match u8::try_from(number) {
            Ok(number) if number < 12 => Ok(Type(number)),
            _ => refuse(call, format!("{number} is no ncclDataType_t"), Status::Argument),
        }
    }

    /// Bytes per element.
    pub fn bytes(self) -> u64 {
        [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1][usize::from(self.0)]
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `ncclSend` to `root`, or `ncclRecv` at the other end.
    Point = 0,
    /// `ncclAllReduce`.
    AllReduce = 1,
    /// `ncclAllGather`.
    AllGather = 2,
    /// `ncclReduceScatter`.
    ReduceScatter = 3,
    /// `ncclBroadcast`.
    Broadcast = 4,
}

/// Properties that both ends of a message must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of operation, as a number, since it may come from another process.
    pub kind: u8,
    /// `ncclDataType_t`.
    pub dtype: u8,
    /// `ncclRedOp_t`, or 0.
    pub op: u8,
    /// Root of a broadcast, or 0.
    pub root: u32,
    /// Number of elements given in the call.
    pub count: u64,
}

impl std::fmt::Display for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = ["send/receive", "all-reduce", "all-gather", "reduce-scatter", "broadcast"];
        let name = names.get(usize::from(self.kind)).unwrap_or(&"?");
        write!(f, "{name} of {} of type {}, operation {}", self.count, self.dtype, self.op)?;
        write!(f, ", root {}", self.root)
    }
}
