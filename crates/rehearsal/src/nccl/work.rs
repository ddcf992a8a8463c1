//! Execution of a group of operations on a stream, as one kernel of one communicator: it begins, notifies the peers,
//! and ends when all of them have started theirs and all bytes have arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::call::GroupedCall;
use super::comm::Comm;
use super::compute::{copy, reduce};
use super::types::{Header, Kind};
use super::wire::{Frame, Place};
use crate::device::{check_memory, complain, computes};

/// Received bytes, by operation and peer.
type Pieces = BTreeMap<(usize, usize), Arc<[u8]>>;

/// A message of a running kernel.
struct Passage {
    part: usize,
    peer: usize,
    place: Place,
    header: Header,
}

/// A running kernel.
#[derive(Default)]
struct Instance {
    sent: Vec<Passage>,
    awaited: Vec<Passage>,
}

/// A kernel of a communicator.
pub struct Kernel {
    comm: Arc<Comm>,
    parts: Vec<GroupedCall>,
    /// Position in the communicator's order; `None` if it belongs to a graph.
    ticket: Option<u64>,
    /// Number of other streams of the group, which it waits for and which wait for it.
    others: usize,
    arrived: AtomicUsize,
    over: AtomicBool,
    instance: Mutex<Option<Instance>>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.ticket.is_none() {
            self.comm.captured.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Communicators whose kernels are running, by device.
static RUNNING: LazyLock<Mutex<BTreeMap<usize, BTreeSet<usize>>>> = LazyLock::new(Mutex::default);

/// Reports once that kernels of two communicators ran on one device at the same time.
fn overlap(comm: &Comm, begins: bool) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let mut all = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let here = all.entry(comm.device).or_default();
    if !begins {
        here.remove(&comm.handle);
    } else if here.insert(comm.handle) && here.len() > 1 && !SAID.swap(true, Ordering::Relaxed) {
        let why = "operations of two communicators run on one device at a time: without NCCL_LAUNCH_ORDER_IMPLICIT \
                   all ranks must order them by streams, or they may deadlock (CommUse multiple NCCL communicators)";
        complain("warning", why);
    }
}

/// True if kernels of other communicators are running on this one's device.
pub fn others_run(comm: &Comm) -> bool {
    let all = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(&comm.device).is_some_and(|here| here.iter().any(|handle| *handle != comm.handle))
}

/// Marks an aborted communicator's kernels as ended.
pub fn none_runs(comm: &Comm) {
    overlap(comm, false);
}

impl Kernel {
    /// Creates a kernel for these operations.
    pub fn new(comm: Arc<Comm>, parts: Vec<GroupedCall>, ticket: Option<u64>, others: usize) -> Arc<Kernel> {
        if ticket.is_none() {
            comm.captured.fetch_add(1, Ordering::SeqCst);
        }
        let (arrived, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Kernel { comm, parts, ticket, others, arrived, over, instance: Mutex::default() })
    }

    /// Records that another stream of the group has reached the kernel.
    pub fn arrive(&self) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
    }

    /// True if other streams may continue.
    pub fn is_over(&self) -> bool {
        self.comm.inbox.is_aborted() || self.over.load(Ordering::SeqCst)
    }

    /// True if it may begin; it then counts as running, and its work follows.
    pub fn may_begin(&self) -> bool {
        if self.comm.inbox.is_aborted() {
            return true;
        }
        if self.arrived.load(Ordering::SeqCst) < self.others {
            return false;
        }
        let mut turn = self.comm.turn();
        if turn.running || self.ticket.is_some_and(|ticket| ticket != turn.over) {
            return false;
        }
        turn.running = true;
        drop(turn);
        overlap(&self.comm, true);
        if !computes() {
            self.tell(|_, _| Vec::new().into());
        }
        true
    }

    /// First part of the work: sends bytes to the peers.
    ///
    /// # Errors
    /// If memory is not accessible.
    pub fn begin(&self) -> Result<(), String> {
        if self.comm.inbox.is_aborted() {
            return Ok(());
        }
        for part in &self.parts {
            for (at, bytes) in part.ranges(self.comm.ranks) {
                if at != 0 && bytes != 0 {
                    check_memory(at, bytes).map_err(|why| format!("{}: {why}", part.call))?;
                }
            }
        }
        // SAFETY: checked above.
        self.tell(|at, bytes| unsafe { copy(at, bytes) }.into());
        Ok(())
    }

    /// Notifies the peers of the data that this rank sends, and of what it receives.
    fn tell(&self, bytes: impl Fn(u64, u64) -> Arc<[u8]>) {
        let mut now = Instance::default();
        let mut frames = Vec::new();
        let mut turn = self.comm.turn();
        for (index, part) in self.parts.iter().enumerate() {
            let header = part.header();
            let channel = u8::from(part.kind != Kind::Point);
            let mut next = |peer: usize, sends: bool| {
                let count = turn.counts.entry((channel, peer, sends)).or_default();
                *count += 1;
                Passage { part: index, peer, place: (channel, *count), header }
            };
            for peer in 0..self.comm.ranks {
                if let Some((at, len)) = part.to(peer, self.comm.rank) {
                    let sent = next(peer, true);
                    frames.push((peer, sent.place, header, Some((at, len))));
                    now.sent.push(sent);
                }
                if part.from(peer, self.comm.rank) {
                    let awaited = next(peer, false);
                    frames.push((peer, awaited.place, header, None));
                    now.awaited.push(awaited);
                }
            }
        }
        drop(turn);
        *self.instance.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        for (peer, place, header, data) in frames {
            let frame = match data {
                Some((at, len)) => Frame::Data(place, header, bytes(at, len)),
                None => Frame::Want(place, header),
            };
            self.comm.post(peer, frame);
        }
    }

    /// True if all data needed from peers has arrived.
    pub fn may_end(&self) -> bool {
        if self.comm.inbox.is_aborted() {
            return true;
        }
        let instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        // A kernel that failed when it began never ends.
        let Some(now) = instance.as_ref() else { return false };
        let mail = self.comm.inbox.mail();
        let all = now.sent.iter().all(|sent| mail[sent.peer].wants.contains_key(&sent.place))
            && now.awaited.iter().all(|awaited| mail[awaited.peer].data.contains_key(&awaited.place));
        drop((instance, mail));
        if all && !computes() {
            if let Err(why) = self.take() {
                complain("NCCL", why);
            }
            self.leave();
        }
        all
    }

    /// Last part of the work: combines and writes received data.
    ///
    /// # Errors
    /// If the two ends disagree, or memory is not accessible.
    pub fn end(&self) -> Result<(), String> {
        if self.comm.inbox.is_aborted() {
            return Ok(());
        }
        let got = self.take()?;
        let own = self.comm.rank;
        for (index, part) in self.parts.iter().enumerate() {
            for (at, bytes) in part.ranges(self.comm.ranks) {
                if at != 0 && bytes != 0 {
                    check_memory(at, bytes).map_err(|why| format!("{}: {why}", part.call))?;
                }
            }
            let of_part = got.iter().filter(|((part, _), _)| *part == index);
            let pieces: BTreeMap<usize, &[u8]> =
                of_part.map(|((_, peer), bytes)| (*peer, bytes.as_ref())).collect();
            // SAFETY: checked above.
            unsafe { reduce(part, own, self.comm.ranks, &pieces) }?;
        }
        self.leave();
        Ok(())
    }

    /// Received bytes, by operation and peer.
    fn take(&self) -> Result<Pieces, String> {
        let Some(now) = self.instance.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Err("a kernel ended that never began".to_string());
        };
        let mut mail = self.comm.inbox.mail();
        let mut got = Pieces::new();
        let differ = |at: &Passage, theirs: &Header| {
            let (own, peer) = (self.comm.rank, at.peer);
            format!("rank {own} says {}, rank {peer} says {theirs}: both ends must say the same", at.header)
        };
        for sent in &now.sent {
            let theirs = mail[sent.peer].wants.remove(&sent.place);
            if let Some(theirs) = theirs.filter(|theirs| *theirs != sent.header) {
                return Err(differ(sent, &theirs));
            }
        }
        for awaited in &now.awaited {
            let Some((theirs, bytes)) = mail[awaited.peer].data.remove(&awaited.place) else { continue };
            if theirs != awaited.header {
                return Err(differ(awaited, &theirs));
            }
            got.insert((awaited.part, awaited.peer), bytes);
        }
        for mail in mail.iter_mut() {
            let waits = !mail.wants.is_empty() || !mail.data.is_empty();
            mail.since = waits.then(std::time::Instant::now);
        }
        Ok(got)
    }

    /// Allows the next kernel to begin.
    fn leave(&self) {
        overlap(&self.comm, false);
        self.over.store(true, Ordering::SeqCst);
        let mut turn = self.comm.turn();
        turn.running = false;
        if let Some(ticket) = self.ticket {
            turn.over += 1;
            turn.streams.remove(&ticket);
        }
    }
}
