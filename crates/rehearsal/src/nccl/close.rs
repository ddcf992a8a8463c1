//! Ending of communicators.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::comm::Comm;
use super::group;
use super::types::{Status, refuse};
use super::wire::Frame;
use super::work;
use crate::device::{complain, state};

/// Waits for all operations of this rank, then for all ranks.
fn flush(call: &str, comm: &Arc<Comm>) -> Result<(), Status> {
    if comm.captured.load(Ordering::SeqCst) > 0 {
        complain(
            call,
            "graphs that hold operations of this communicator are alive: waits until they are destroyed",
        );
    }
    loop {
        let turn = comm.turn();
        let rest = turn.over < turn.issued || turn.running;
        drop(turn);
        if comm.inbox.is_aborted() || (!rest && comm.captured.load(Ordering::SeqCst) == 0) {
            break;
        }
        if state().failed.is_some() {
            return refuse(call, "the device has failed", Status::Cuda);
        }
        if let Some(peer) = comm.inbox.mail().iter().position(|mail| mail.broken) {
            return refuse(call, format!("rank {peer} is gone"), Status::Remote);
        }
        comm.push_on();
        std::thread::sleep(Duration::from_micros(100));
    }
    for peer in 0..comm.ranks {
        comm.post(peer, Frame::Bye);
    }
    let met = comm.inbox.until(|mail| {
        let lost = mail.iter().position(|mail| mail.broken && !mail.bye);
        lost.map(Err).or_else(|| mail.iter().all(|mail| mail.bye).then_some(Ok(())))
    });
    match met {
        Some(Err(peer)) => refuse(call, format!("rank {peer} is gone"), Status::Remote),
        _ => {
            while comm.links.get().into_iter().flatten().any(|link| link.is_sending()) {
                std::thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        }
    }
}

fn outside(call: &str) -> Result<(), Status> {
    if group::is_open() {
        return refuse(call, "inside a group: the rehearsal does not do that", Status::Usage);
    }
    Ok(())
}

/// See `ncclCommFinalize`.
///
/// # Errors
/// If it was already called, or the communicator is not ready.
pub fn finalize(handle: usize) -> Result<(), Status> {
    let call = "ncclCommFinalize";
    outside(call)?;
    let comm = Comm::enter(call, handle)?;
    comm.ready(call)?;
    if comm.finalized.swap(true, Ordering::SeqCst) {
        return refuse(call, "a second time", Status::Argument);
    }
    if comm.blocking {
        return flush(call, &comm);
    }
    comm.set(Status::Progress);
    let comm = Arc::clone(&comm);
    std::thread::spawn(move || {
        comm.linger();
        comm.set(flush(call, &comm).err().unwrap_or(Status::Success));
    });
    Err(Status::Progress)
}

/// See `ncclCommDestroy`.
///
/// # Errors
/// If the communicator is not ready, or has failed.
pub fn destroy(handle: usize) -> Result<(), Status> {
    let call = "ncclCommDestroy";
    outside(call)?;
    let comm = Comm::enter(call, handle)?;
    comm.ready(call)?;
    if !comm.finalized.swap(true, Ordering::SeqCst) {
        flush(call, &comm)?;
    }
    comm.forget();
    Ok(())
}

/// See `ncclCommAbort`. It always succeeds, and at once, even in a group.
///
/// # Errors
/// If another thread is in a call; if graphs contain operations, for which NCCL waits forever.
pub fn abort(handle: usize) -> Result<(), Status> {
    let call = "ncclCommAbort";
    let comm = Comm::of(call, handle)?;
    let using = comm.take();
    if !group::is_open() && work::others_run(&comm) {
        let why = "warning: kernels of other communicators run on this device, and NCCL may wait for them for ever when it \
                   frees memory: abort all in one group (NVIDIA/nccl issue 1013)";
        complain(call, why);
    }
    if using.is_ok() && comm.others_call() {
        let why =
            "warning: another thread is in a call of another communicator: none may be (Fault Tolerance)";
        complain(call, why);
    }
    comm.abort();
    work::none_runs(&comm);
    comm.forget();
    if using.is_err() {
        let why = "another thread is in a call of this communicator: none may be (Fault Tolerance)";
        return refuse(call, why, Status::Usage);
    }
    if comm.captured.load(Ordering::SeqCst) > 0 {
        let why =
            "graphs that hold operations of this communicator are alive: NCCL waits until they are destroyed";
        return refuse(call, why, Status::Usage);
    }
    Ok(())
}
