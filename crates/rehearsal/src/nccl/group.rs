//! Groups: operations requested between `ncclGroupStart` and `ncclGroupEnd` are issued at the end. A call outside a
//! group is a group of its own.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::call::GroupedCall;
use super::comm::{Comm, CommUse, IssueGuard};
use super::meet;
use super::types::{Status, refuse};
use super::wire::{Frame, Way};
use super::work::Kernel;
use crate::device::{Ready, Work, state, submit_when};

/// A group's operations on one communicator.
struct Share {
    comm: Arc<Comm>,
    parts: Vec<GroupedCall>,
    /// Streams in the order of first use.
    streams: Vec<u64>,
}

/// An open group.
#[derive(Default)]
struct Group {
    depth: usize,
    token: u64,
    shares: Vec<Share>,
    /// Ranks that join, with the ids of their communicators.
    joins: Vec<(Arc<Comm>, String)>,
    /// Held until everything has been issued.
    using: Vec<CommUse>,
    issuing: Vec<IssueGuard>,
    /// Status of a failed call in the group, other than an invalid argument.
    failed: Option<Status>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// True if this thread has an open group.
pub fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Opens a group, possibly nested.
pub fn start() {
    static LAST: AtomicU64 = AtomicU64::new(1);
    GROUP.with_borrow_mut(|group| {
        group.depth += 1;
        if group.depth == 1 {
            group.token = LAST.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Closes a group; the outermost one issues the requested operations.
///
/// # Errors
/// If no group is open, or an operation cannot be issued.
pub fn end(call: &str) -> Result<(), Status> {
    let group = GROUP.with_borrow_mut(|group| match group.depth {
        0 => refuse(call, "no group was started on this thread", Status::Usage),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    group.map_or(Ok(()), |group| group.issue(call))
}

/// Runs a call as its own group, or as part of the open one, and returns the call's result.
///
/// # Errors
/// See [`end`].
pub fn within(call: &str, ask: impl FnOnce() -> Result<(), Status>) -> Result<(), Status> {
    start();
    let asked = ask();
    if let Err(status) = asked
        && status != Status::Argument
    {
        GROUP.with_borrow_mut(|group| group.failed = Some(status));
    }
    let ended = end(call);
    asked.and(ended)
}

/// Requests an operation, inside a group.
///
/// # Errors
/// If it is not allowed in this group.
pub fn add(using: CommUse, part: GroupedCall, stream: u64) -> Result<(), Status> {
    GROUP.with_borrow_mut(|group| {
        let call = part.call;
        if !group.joins.is_empty() {
            return refuse(call, "initialization and communication in one group", Status::Usage);
        }
        same_kind(call, group.shares.first().map(|share| &share.comm), &using)?;
        overlaps(&group.shares, &using, &part)?;
        group.issuing.push(IssueGuard::take(call, using.device, group.token)?);
        let found = group.shares.iter().position(|share| Arc::ptr_eq(&share.comm, &using));
        let at = found.unwrap_or_else(|| {
            group.shares.push(Share { comm: using.clone(), parts: Vec::new(), streams: Vec::new() });
            group.shares.len() - 1
        });
        let share = &mut group.shares[at];
        if !share.streams.contains(&stream) {
            share.streams.push(stream);
        }
        share.parts.push(part);
        group.using.push(using);
        Ok(())
    })
}

/// Refuses to mix blocking and nonblocking communicators.
fn same_kind(call: &str, one: Option<&Arc<Comm>>, two: &Arc<Comm>) -> Result<(), Status> {
    if one.is_some_and(|one| one.blocking != two.blocking) {
        return refuse(call, "blocking and nonblocking communicators in one group", Status::Argument);
    }
    Ok(())
}

/// Refuses overlapping memory: operations of a group run concurrently, so none may write memory that another accesses.
fn overlaps(shares: &[Share], comm: &Arc<Comm>, part: &GroupedCall) -> Result<(), Status> {
    let [reads, writes] = part.ranges(comm.ranks);
    let meet = |one: (u64, u64), two: (u64, u64)| {
        one.0 != 0 && two.0 != 0 && one.0 < two.0 + two.1 && two.0 < one.0 + one.1
    };
    for other in shares.iter().flat_map(|share| share.parts.iter().map(move |part| (part, &share.comm))) {
        let [others_reads, others_writes] = other.0.ranges(other.1.ranks);
        if meet(writes, others_reads) || meet(writes, others_writes) || meet(reads, others_writes) {
            let why = format!("writes what {} of the same group touches, or the other way", other.0.call);
            return refuse(part.call, why, Status::Usage);
        }
    }
    Ok(())
}

/// Requests that a rank joins its communicator, inside a group.
///
/// # Errors
/// If it is not allowed in this group.
pub fn join(call: &str, comm: Arc<Comm>, id: String) -> Result<(), Status> {
    GROUP.with_borrow_mut(|group| {
        if !group.shares.is_empty() {
            return refuse(call, "initialization and communication in one group", Status::Usage);
        }
        same_kind(call, group.joins.first().map(|(comm, _)| comm), &comm)?;
        group.joins.push((comm, id));
        Ok(())
    })
}

impl Group {
    fn comms(&self) -> Vec<Arc<Comm>> {
        let shares = self.shares.iter().map(|share| share.comm.clone());
        shares.chain(self.joins.iter().map(|(comm, _)| comm.clone())).collect()
    }

    fn issue(mut self, call: &str) -> Result<(), Status> {
        if let Some(status) = self.failed {
            return Err(status);
        }
        let comms = self.comms();
        let Some(first) = comms.first() else { return Ok(()) };
        if first.blocking {
            return self.run(call);
        }
        comms.iter().for_each(|comm| comm.set(Status::Progress));
        // Nonblocking communicators can be queried by other threads while the group is issued.
        self.using.clear();
        let call = call.to_string();
        std::thread::spawn(move || {
            let comms = self.comms();
            comms[0].linger();
            let ran = self.run(&call);
            for comm in comms {
                comm.set(ran.err().unwrap_or(Status::Success));
            }
        });
        Err(Status::Progress)
    }

    fn run(mut self, call: &str) -> Result<(), Status> {
        let joins = std::mem::take(&mut self.joins);
        let threads: Vec<_> =
            joins.into_iter().map(|(comm, id)| std::thread::spawn(move || joined(&comm, &id))).collect();
        for thread in threads {
            thread.join().unwrap_or(Err(Status::Internal))?;
        }
        let ways: Vec<_> = self.shares.iter().map(connect).collect();
        for (share, ways) in self.shares.iter().zip(ways) {
            connected(call, &share.comm, &ways)?;
        }
        self.shares.drain(..).try_for_each(|share| share.submit(call))
    }
}

/// Joins the communicator by meeting its other ranks.
fn joined(comm: &Arc<Comm>, id: &str) -> Result<(), Status> {
    let met = meet::meet(comm, id).map(|links| _ = comm.links.set(links));
    if comm.inbox.is_aborted() {
        // Aborted while the links were being made.
        comm.abort();
    }
    if met.is_ok() {
        comm.keep_moving();
    }
    if comm.blocking {
        // Other communicators are ready when their whole group is.
        comm.set(met.err().unwrap_or(Status::Success));
    }
    met
}

/// Requests the connections that a share is the first to use.
fn connect(share: &Share) -> Vec<(Way, usize)> {
    let comm = &share.comm;
    let mut new = Vec::new();
    for part in &share.parts {
        for way in part.ways(comm.rank, comm.ranks) {
            if comm.turn().connected.insert(way) {
                new.push(way);
            }
        }
    }
    for (way, peer) in &new {
        comm.post(*peer, Frame::Connect(*way));
    }
    new
}

/// Waits for the other ends, which must request the connections too.
fn connected(call: &str, comm: &Arc<Comm>, ways: &[(Way, usize)]) -> Result<(), Status> {
    let done = comm.inbox.until(|mail| {
        let there = |(way, peer): &(Way, usize)| {
            let theirs = match way {
                Way::Send => Way::Receive,
                Way::Receive => Way::Send,
                Way::Together => Way::Together,
            };
            mail[*peer].connected[theirs as usize]
        };
        let missing = ways.iter().find(|way| !there(way));
        match missing {
            None => Some(Ok(())),
            Some((_, peer)) if mail[*peer].broken || mail[*peer].bye => Some(Err(*peer)),
            Some(_) => None,
        }
    });
    match done {
        // Aborted: the request is dropped.
        None | Some(Ok(())) => Ok(()),
        Some(Err(peer)) => refuse(call, format!("rank {peer} is gone"), Status::Remote),
    }
}

impl Share {
    /// Puts the kernel on its streams.
    fn submit(self, call: &str) -> Result<(), Status> {
        let (comm, first) = (self.comm, self.streams[0]);
        let captured = {
            let now = state();
            let capture = |stream| now.streams.get(stream).is_some_and(|found| found.capture.is_some());
            self.streams.iter().map(capture).collect::<Vec<bool>>()
        };
        if captured.contains(&true) && captured.len() > 1 {
            let why = "a captured stream in a group with other streams: the rehearsal does not do that";
            return refuse(call, why, Status::Usage);
        }
        let ticket = (!captured[0]).then(|| {
            let mut turn = comm.turn();
            let ticket = turn.issued;
            turn.issued += 1;
            turn.streams.insert(ticket, first);
            ticket
        });
        let what = self.parts.iter().map(|part| part.call).collect::<Vec<_>>().join(" ");
        let others = &self.streams[1..];
        let kernel = Kernel::new(comm, self.parts, ticket, others.len());
        let put = |stream: u64, ready: Ready, work: Work| {
            let put = submit_when(stream, &what, Some(ready), work);
            put.or_else(|error| refuse(call, format!("the stream: {error:?}"), Status::Cuda))
        };
        let nothing: Work = Arc::new(|| Ok(()));
        for stream in others {
            let kernel = kernel.clone();
            let ready: Ready = Arc::new(move || {
                kernel.arrive();
                true
            });
            put(*stream, ready, nothing.clone())?;
        }
        let (asked, runs) = (kernel.clone(), kernel.clone());
        put(first, Arc::new(move || asked.may_begin()), Arc::new(move || runs.begin()))?;
        let (asked, runs) = (kernel.clone(), kernel.clone());
        put(first, Arc::new(move || asked.may_end()), Arc::new(move || runs.end()))?;
        for stream in others {
            let kernel = kernel.clone();
            put(*stream, Arc::new(move || kernel.is_over()), nothing.clone())?;
        }
        Ok(())
    }
}
