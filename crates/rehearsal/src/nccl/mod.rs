//! NCCL's functions, `nccl*`, as declared in `nccl.h` of 2.28.9.
//!
//! Ranks are threads of a process or processes of a machine. A send ends when the receiver's kernel has started:
//! nothing is buffered that a device would not buffer. Operations of a communicator run in the order in which they were
//! issued, and calls of a group as one kernel. The first message each way between two ranks, and the first collective,
//! wait in the call until the other ranks have made theirs, as NCCL does when it connects. With nonblocking calls,
//! operations reach their streams as late as a caller could observe: once the status has been queried twice.
#![allow(non_snake_case)]
// Each function is as safe as its declaration in the header.
#![allow(clippy::missing_safety_doc)]

mod call;
mod close;
mod comm;
mod compute;
mod config;
mod group;
mod meet;
mod types;
mod wire;
mod work;

use std::ffi::{c_char, c_int, c_void};

use call::GroupedCall;
use comm::Comm;
use config::Config;
pub use meet::UniqueId;
use types::{Kind, Status, Type, code, refuse};

use crate::device::{check_memory, state};
use crate::driver::current;

/// `ncclComm_t`.
pub type Handle = *mut c_void;
/// `cudaStream_t`.
pub type Stream = *mut c_void;

fn give<T>(call: &str, to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return refuse(call, "null", Status::Argument);
    }
    // SAFETY: the header's contract.
    unsafe { to.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    code(give("ncclGetVersion", version, 22_809))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let call = "ncclGetUniqueId";
    let made = UniqueId::make().or_else(|error| refuse(call, error, Status::System));
    code(made.and_then(|made| give(call, id, made)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let words = match status {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    words.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: Handle) -> *const c_char {
    types::last()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut Handle,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { ncclCommInitRankConfig(comm, ranks, id, rank, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut Handle,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    let call = "ncclCommInitRankConfig";
    code((|| {
        let Some(device) = current() else {
            // NCCL's runtime would use device 0, whatever the caller intended.
            return refuse(call, "no context is current on this thread", Status::Cuda);
        };
        if comm.is_null() {
            return refuse(call, "null", Status::Argument);
        }
        if ranks < 1 || !(0..ranks).contains(&rank) {
            return refuse(call, format!("rank {rank} of {ranks}"), Status::Argument);
        }
        let Some(name) = id.name() else {
            return refuse(call, "the id is not one of ncclGetUniqueId", Status::Argument);
        };
        // SAFETY: the header's contract.
        let blocking = unsafe { config::blocking(call, config) }?;
        if !group::is_open() {
            Comm::warn_of_unfinished(call);
        }
        let made = Comm::new(rank as usize, ranks as usize, device, blocking);
        give(call, comm, std::ptr::without_provenance_mut(made.handle))?;
        group::within(call, || group::join(call, made, name))
    })())
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: Handle) -> c_int {
    code(close::finalize(comm.addr()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: Handle) -> c_int {
    code(close::destroy(comm.addr()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: Handle) -> c_int {
    code(close::abort(comm.addr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: Handle, result: *mut c_int) -> c_int {
    let call = "ncclCommGetAsyncError";
    code(Comm::enter(call, comm.addr()).and_then(|comm| give(call, result, comm.poll() as c_int)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: Handle, count: *mut c_int) -> c_int {
    let call = "ncclCommCount";
    code(Comm::enter(call, comm.addr()).and_then(|comm| give(call, count, comm.ranks as c_int)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: Handle, rank: *mut c_int) -> c_int {
    let call = "ncclCommUserRank";
    code(Comm::enter(call, comm.addr()).and_then(|comm| give(call, rank, comm.rank as c_int)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: Handle, device: *mut c_int) -> c_int {
    let call = "ncclCommCuDevice";
    code(Comm::enter(call, comm.addr()).and_then(|comm| give(call, device, comm.device as c_int)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    group::start();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    code(group::end("ncclGroupEnd"))
}

/// An operation's arguments as called.
struct CallArgs {
    call: &'static str,
    kind: Kind,
    sends: bool,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    peer: c_int,
}

impl CallArgs {
    /// Adds it to the thread's group, or issues it.
    fn issue(self, comm: Handle, stream: Stream) -> c_int {
        let call = self.call;
        code(group::within(call, || {
            let comm = Comm::enter(call, comm.addr())?;
            comm.ready(call)?;
            if comm.finalized.load(std::sync::atomic::Ordering::SeqCst) {
                return refuse(call, "the communicator was finalized", Status::Argument);
            }
            let part = self.checked(&comm)?;
            if part.kind != Kind::Point && part.count == 0 {
                return Ok(());
            }
            if !state().streams.contains_key(&(stream.addr() as u64)) {
                return refuse(call, "no such stream, or it was destroyed", Status::Cuda);
            }
            group::add(comm, part, stream.addr() as u64)
        }))
    }

    fn checked(self, comm: &Comm) -> Result<GroupedCall, Status> {
        let CallArgs { call, kind, sends, .. } = self;
        let wrong = |why: String| refuse(call, why, Status::Argument);
        let dtype = Type::of(call, self.dtype)?;
        if !(0..comm.ranks as c_int).contains(&self.peer) {
            return wrong(format!("rank {} of {}", self.peer, comm.ranks));
        }
        if !(0..5).contains(&self.op) {
            return wrong(format!("{} is no operation that the rehearsal has", self.op));
        }
        let sums = matches!(kind, Kind::AllReduce | Kind::ReduceScatter);
        if sums && dtype.0 > 9 {
            return wrong("the rehearsal sums no values of 8 bits".to_string());
        }
        let whole = (self.count as u64).checked_mul(dtype.bytes() * comm.ranks as u64);
        if whole.is_none_or(|bytes| bytes >= 1 << 48) {
            return wrong(format!("{} values", self.count));
        }
        let address = |at: *const c_void| at.expose_provenance() as u64;
        let mut part = GroupedCall {
            kind,
            sends,
            call,
            send: address(self.send),
            receive: address(self.receive),
            count: self.count as u64,
            dtype,
            op: self.op as u8,
            peer: self.peer as usize,
        };
        if kind == Kind::Broadcast && part.peer != comm.rank {
            // Only the root's buffer is read.
            part.send = 0;
        }
        let ranges = part.ranges(comm.ranks);
        let reads = kind != Kind::Point && (kind != Kind::Broadcast || part.peer == comm.rank);
        let needs = [reads || (kind == Kind::Point && sends), kind != Kind::Point || !sends];
        for ((at, bytes), needed) in ranges.into_iter().zip(needs) {
            if needed && bytes != 0 {
                memory(call, comm, at, bytes, dtype.bytes())?;
            }
        }
        in_place(&part, comm)?;
        Ok(part)
    }
}

/// Checks that memory is accessible to a device of this communicator.
fn memory(call: &str, comm: &Comm, at: u64, bytes: u64, aligned: u64) -> Result<(), Status> {
    if at == 0 {
        return refuse(call, "a pointer is null", Status::Argument);
    }
    if !at.is_multiple_of(aligned) {
        return refuse(call, format!("{at:#x} is not aligned to its type"), Status::Argument);
    }
    if let Err(why) = check_memory(at, bytes) {
        return refuse(call, why, Status::Argument);
    }
    let now = state();
    let near = now.allocations.range(..=at).next_back();
    let plain = near.filter(|(from, (_, has, _))| at < **from + has).map(|(_, (device, ..))| *device);
    let ranges = now.reservations.range(..=at).next_back().map(|(_, whole)| &whole.ranges);
    let range = ranges.and_then(|ranges| ranges.range(..=at).next_back());
    let mapped = range.filter(|(from, range)| at < **from + range.bytes);
    let mapped = mapped.and_then(|(_, range)| now.physical.get(&range.handle)).map(|(device, _)| *device);
    match plain.or(mapped) {
        Some(device) if device != comm.device => {
            let why = format!("memory of device {device}, but the communicator is of device {}", comm.device);
            refuse(call, why, Status::Argument)
        }
        _ => Ok(()),
    }
}

/// Input and output may coincide only where the header allows it.
fn in_place(part: &GroupedCall, comm: &Comm) -> Result<(), Status> {
    let [(reads, read), (writes, written)] = part.ranges(comm.ranks);
    if reads == 0 || writes == 0 || reads + read <= writes || writes + written <= reads {
        return Ok(());
    }
    let shift = comm.rank as u64 * part.bytes();
    let fits = match part.kind {
        Kind::AllGather => reads == writes + shift,
        Kind::ReduceScatter => writes == reads + shift,
        _ => reads == writes,
    };
    if fits {
        return Ok(());
    }
    refuse(part.call, "what is sent and what is received overlap, and not as in place", Status::Argument)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Stream,
) -> c_int {
    let (call, kind, receive) = ("ncclSend", Kind::Point, std::ptr::null_mut());
    CallArgs { call, kind, sends: true, send, receive, count, dtype, op: 0, peer }.issue(comm, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Stream,
) -> c_int {
    let (call, kind, send) = ("ncclRecv", Kind::Point, std::ptr::null());
    CallArgs { call, kind, sends: false, send, receive, count, dtype, op: 0, peer }.issue(comm, stream)
}

/// Defines a call that combines elements of all ranks.
macro_rules! reduction {
    ($name:ident, $kind:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            dtype: c_int,
            op: c_int,
            comm: Handle,
            stream: Stream,
        ) -> c_int {
            let (call, kind) = (stringify!($name), $kind);
            CallArgs { call, kind, sends: true, send, receive, count, dtype, op, peer: 0 }.issue(comm, stream)
        }
    };
}

reduction!(ncclAllReduce, Kind::AllReduce);
reduction!(ncclReduceScatter, Kind::ReduceScatter);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: Handle,
    stream: Stream,
) -> c_int {
    let (call, kind) = ("ncclAllGather", Kind::AllGather);
    CallArgs { call, kind, sends: true, send, receive, count, dtype, op: 0, peer: 0 }.issue(comm, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: Handle,
    stream: Stream,
) -> c_int {
    let (call, kind) = ("ncclBroadcast", Kind::Broadcast);
    CallArgs { call, kind, sends: true, send, receive, count, dtype, op: 0, peer: root }.issue(comm, stream)
}
