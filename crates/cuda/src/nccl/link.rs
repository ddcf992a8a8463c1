//! A rank's end of the link over NCCL.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fathom_tensor::mesh::{Flight, Link, LinkError, Traffic, What};
use fathom_tensor::{Device, LoanedTensor, Share, Tensor};

use super::control::Topic;
use super::line::{Line, Point};
use super::watch::{Connect, WatchState, Watcher};
use crate::Result;
use crate::driver::Rows;
use crate::memory::Streams;
use crate::operand::{input, output};

/// Longest label that is compared.
const LABEL_BYTES: usize = 512;

/// Reason for cutting a block.
const WHY: &str = "a message between ranks";

/// Both directions between this rank and another.
pub(super) struct Lines {
    pub to: Line,
    pub from: Line,
}

/// A requested message that has not been issued to the device yet.
struct PendingMessage {
    number: u64,
    address: u64,
    bytes: usize,
    /// Point at which the memory is free.
    free: Arc<Point>,
    what: What,
}

/// State shared by the link and its flights.
pub(super) struct End {
    /// Watches until nothing is in flight; dropped before the lines.
    _watcher: Watcher,
    pending: RefCell<Vec<VecDeque<PendingMessage>>>,
    /// Messages expected from each rank.
    expected: RefCell<Vec<u64>>,
    lines: Vec<Option<Lines>>,
    traffic: Cell<Traffic>,
    streams: Arc<Streams>,
    by: Arc<dyn Connect>,
    shared: Arc<WatchState>,
}

/// The link.
pub(super) struct Ranks(pub Rc<End>);

/// A message's label for the receiver: whether it is sent in pieces, and its description.
fn label(what: &What, is_cut: bool) -> Vec<u8> {
    let mut label = vec![u8::from(is_cut)];
    label.extend(what.to_string().into_bytes());
    label.truncate(LABEL_BYTES);
    label
}

impl End {
    /// Creates an end with its lines, by rank.
    pub fn new(
        watcher: Watcher,
        by: Arc<dyn Connect>,
        streams: &Arc<Streams>,
        lines: Vec<Option<Lines>>,
    ) -> End {
        let ranks = lines.len();
        End {
            pending: RefCell::new((0..ranks).map(|_| VecDeque::new()).collect()),
            expected: RefCell::new(vec![0; ranks]),
            lines,
            traffic: Cell::default(),
            streams: streams.clone(),
            by,
            shared: watcher.shared().clone(),
            _watcher: watcher,
        }
    }

    fn count(&self, update: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        update(&mut traffic);
        self.traffic.set(traffic);
    }

    /// Ends the run on failure.
    fn or_fail<T>(&self, result: Result<T>) -> Option<T> {
        let shared = &self.shared;
        result.map_err(|error| self.fail(shared.explained(error.to_string(), "a call of NCCL"))).ok()
    }

    /// Ends the run. Nothing is in flight here afterwards.
    fn fail(&self, error: LinkError) {
        self.shared.fail(error);
        self.shared.ended();
    }

    #[track_caller]
    fn lines(&self, peer: usize) -> &Lines {
        let lines = self.lines.get(peer).and_then(Option::as_ref);
        lines.unwrap_or_else(|| panic!("rank {} has no line to rank {peer}", self.shared.rank))
    }

    /// Issues a rank's messages up to this one to the device, in order, as NCCL matches messages by order only.
    fn land(&self, from: usize, number: u64) {
        let started = Instant::now();
        loop {
            let next = {
                let mut pending = self.pending.borrow_mut();
                let due = pending[from].front().is_some_and(|next| next.number <= number);
                if due { pending[from].pop_front() } else { None }
            };
            let Some(next) = next else { break };
            if let Err(error) = self.take(from, &next) {
                self.fail(error);
                break;
            }
        }
        self.count(|traffic| traffic.wait_s += started.elapsed().as_secs_f64());
    }

    fn take(&self, from: usize, next: &PendingMessage) -> std::result::Result<(), LinkError> {
        let (shared, what) = (&self.shared, next.what.to_string());
        let found = shared.wait(from, &what, |control| control.heard(from, Topic::Label))?;
        let rank = shared.rank;
        let is_cut = found.first() == Some(&1);
        if found != label(&next.what, is_cut) {
            let found = String::from_utf8_lossy(found.get(1..).unwrap_or_default()).into_owned();
            return Err(LinkError::Mismatch { rank, peer: from, expected: what, found });
        }
        let PendingMessage { address, bytes, free, .. } = next;
        let line = &self.lines(from).from;
        // SAFETY: the tensor is lent to the flight that waits for this, and its rank uses it in the order of its
        // compute stream, which waits for the receive.
        let receive = |compute| unsafe { line.receive(*address, (*bytes, is_cut), free, compute) };
        let done = self.streams.compute(WHY).and_then(receive);
        let done = done.map_err(|error| shared.explained(error.to_string(), &what))?;
        shared.watch(&done, from, what);
        self.count(|traffic| traffic.received_bytes += *bytes as u64);
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let shared = &self.shared;
        if std::thread::panicking() {
            let (rank, reason) = (shared.rank, "it panicked; its message is above".to_string());
            self.fail(LinkError::Aborted { rank, reason });
        }
        // A device that has failed reports it where results are waited for. The watcher ends messages that their other
        // side will not complete.
        for line in self.lines.iter().flatten().flat_map(|lines| [&lines.to, &lines.from]) {
            let _ = line.finish();
        }
        if let Err(error) = shared.leave() {
            self.fail(error);
        } else {
            let _ = self.or_fail(self.by.close());
        }
    }
}

/// A flight with nothing in flight, because the run has failed.
struct Nothing;

impl Flight for Nothing {
    fn wait(self: Box<Self>) {}
}

/// A sent message; the end of its share makes the compute stream wait for it.
struct PendingSend(Share);

impl Flight for PendingSend {
    fn wait(self: Box<Self>) {
        drop(self.0);
    }
}

/// A pending receive.
struct PendingReceive {
    end: Rc<End>,
    from: usize,
    number: u64,
    dst: Option<LoanedTensor>,
}

impl Flight for PendingReceive {
    fn wait(mut self: Box<Self>) {
        self.end.land(self.from, self.number);
        self.dst = None;
    }
}

impl Drop for PendingReceive {
    fn drop(&mut self) {
        let Some(dst) = self.dst.take() else { return };
        let mut pending = self.end.pending.borrow_mut();
        let before = pending[self.from].len();
        pending[self.from].retain(|next| next.number != self.number);
        let given_up = pending[self.from].len() < before;
        drop(pending);
        drop(dst);
        if given_up {
            // Its sender cannot be notified, and the device would wait forever.
            let (rank, reason) =
                (self.end.shared.rank, "it gave up a message that it had asked for".to_string());
            self.end.fail(LinkError::Aborted { rank, reason });
        }
    }
}

impl Link for Ranks {
    fn rank(&self) -> usize {
        self.0.shared.rank
    }

    fn ranks(&self) -> usize {
        self.0.lines.len()
    }

    fn send(&self, _: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight> {
        let end = &self.0;
        if end.shared.failure().is_some() {
            return Box::new(Nothing);
        }
        let rows = Rows::of(src, input(src));
        let line = &end.lines(to).to;
        // SAFETY: the share keeps the tensor, and its end makes later writes wait for the message.
        let sent = end.streams.compute(WHY).and_then(|compute| unsafe { line.send(rows, compute) });
        let Some(done) = end.or_fail(sent) else { return Box::new(Nothing) };
        end.shared.watch(&done, to, what.to_string());
        let streams = end.streams.clone();
        let (share, reader) = Share::begin_until(src, move || {
            // A device that has failed reports it where results are waited for.
            let _ = streams.compute(WHY).and_then(|compute| streams.driver.wait(compute, done.event));
        });
        drop(reader);
        end.shared.control().say(to, Topic::Label, &label(&what, !rows.is_flat()));
        end.count(|traffic| traffic.sent_bytes += src.bytes());
        Box::new(PendingSend(share))
    }

    fn receive(&self, _: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight> {
        let end = &self.0;
        if end.shared.failure().is_some() {
            return Box::new(Nothing);
        }
        assert!(dst.is_contiguous(), "receive: {dst:?} has gaps");
        let free = end.streams.compute(WHY).and_then(|compute| Point::of(&end.streams.driver, compute));
        let Some(free) = end.or_fail(free) else { return Box::new(Nothing) };
        let number = {
            let mut expected = end.expected.borrow_mut();
            expected[from] += 1;
            expected[from]
        };
        let next = PendingMessage { number, address: output(dst), bytes: dst.bytes() as usize, free, what };
        end.pending.borrow_mut()[from].push_back(next);
        Box::new(PendingReceive { end: end.clone(), from, number, dst: Some(LoanedTensor::new(dst.clone())) })
    }

    fn check(&self) -> std::result::Result<(), LinkError> {
        let shared = &self.0.shared;
        if shared.failure().is_none() {
            let ended = shared.control().ended();
            if let Err(lost) = ended {
                shared.fail(shared.lost(lost, "nothing"));
            }
        }
        shared.ended().map_or(Ok(()), Err)
    }

    fn abort(&self, reason: &str) {
        self.0.fail(LinkError::Aborted { rank: self.0.shared.rank, reason: reason.to_string() });
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic.get()
    }

    fn section(&self, name: &'static str, deadline: Option<Duration>) {
        self.0.shared.enter(name, deadline);
    }
}
