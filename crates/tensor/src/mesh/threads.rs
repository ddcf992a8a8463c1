//! Ranks as threads of one process: a receiver copies straight from the sender's memory, or has its machine do so
//! ([`crate::Machine::take`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::link::{Flight, Link, LinkError, Traffic, What};
use super::presence::{MeetingPoint, Presence, lock};
use crate::loan::LoanedTensor;
use crate::share::{Reader, Share};
use crate::spill::mix;
use crate::{Device, Tensor};

/// Bytes per copy from one rank's memory to another's.
const PIECE_BYTES: usize = 256 << 10;

/// Options of a link between threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadsOptions {
    /// Longest duration of a wait.
    pub deadline: Duration,
    /// Seed of an adversary that delays messages and ranks by up to 200 microseconds.
    pub chaos: Option<u64>,
}

impl Default for ThreadsOptions {
    fn default() -> ThreadsOptions {
        ThreadsOptions { deadline: Duration::from_secs(600), chaos: None }
    }
}

/// A message waiting for its receiver.
struct Parcel {
    number: u64,
    what: What,
    reader: Reader,
}

/// Messages for one rank.
#[derive(Default)]
struct Mailbox {
    /// Queues by sender.
    queues: Vec<VecDeque<Parcel>>,
}

/// State shared by all ranks.
struct World {
    options: ThreadsOptions,
    boxes: Vec<Mutex<Mailbox>>,
    /// Notified when a message arrived for a rank or was taken from it, or when a rank gave up.
    bells: Vec<Condvar>,
    failure: Mutex<Option<LinkError>>,
    /// Last activity of each rank.
    presence: Presence,
    /// Meeting point of ranks after a failure.
    meeting: MeetingPoint,
}

impl World {
    fn failure(&self) -> Option<LinkError> {
        lock(&self.failure).clone()
    }

    fn fail(&self, error: LinkError) {
        lock(&self.failure).get_or_insert(error);
        for (mailbox, bell) in self.boxes.iter().zip(&self.bells) {
            // A rank about to wait has checked for failures under this lock, or will.
            drop(lock(mailbox));
            bell.notify_all();
        }
    }

    /// Waits under a mailbox's lock until `ready` returns a value. The error is true for a missed deadline, false for a
    /// failure.
    fn wait<T>(
        &self,
        at: usize,
        deadline: Duration,
        mut ready: impl FnMut(&mut Mailbox) -> Option<T>,
    ) -> Result<T, bool> {
        let until = Instant::now() + deadline;
        let mut mailbox = lock(&self.boxes[at]);
        loop {
            if let Some(found) = ready(&mut mailbox) {
                return Ok(found);
            }
            if self.failure().is_some() {
                return Err(false);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(true);
            }
            let waited = self.bells[at].wait_timeout(mailbox, left);
            mailbox = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(mailbox, _)| mailbox);
        }
    }
}

/// One rank's end of the link before its thread has taken it.
pub struct Seat {
    world: Arc<World>,
    rank: usize,
}

impl Seat {
    /// The link of the calling thread.
    pub fn take(self) -> Threads {
        let Seat { world, rank } = self;
        let numbers = || RefCell::new(vec![0; world.boxes.len()]);
        let (sent, expected) = (numbers(), numbers());
        let section = Cell::new(("setup", None));
        Threads(Rc::new(End { world, rank, sent, expected, traffic: Cell::default(), section }))
    }
}

/// Ends for `ranks` threads.
pub fn threads(ranks: usize, options: ThreadsOptions) -> Vec<Seat> {
    let mailbox = || Mutex::new(Mailbox { queues: (0..ranks).map(|_| VecDeque::new()).collect() });
    let world = World {
        options,
        boxes: (0..ranks).map(|_| mailbox()).collect(),
        bells: (0..ranks).map(|_| Condvar::new()).collect(),
        failure: Mutex::new(None),
        presence: Presence::new(ranks),
        meeting: MeetingPoint::new(ranks),
    };
    let world = Arc::new(world);
    (0..ranks).map(|rank| Seat { world: world.clone(), rank }).collect()
}

/// A rank's end of the link between threads.
pub struct Threads(Rc<End>);

struct End {
    world: Arc<World>,
    rank: usize,
    /// Messages sent to each rank.
    sent: RefCell<Vec<u64>>,
    /// Messages expected from each rank.
    expected: RefCell<Vec<u64>>,
    traffic: Cell<Traffic>,
    section: Cell<(&'static str, Option<Duration>)>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.world.meeting.leave(self.rank);
    }
}

impl End {
    fn deadline(&self) -> Duration {
        self.section.get().1.unwrap_or(self.world.options.deadline)
    }

    fn disturb(&self, peer: usize, number: u64, receives: u64) {
        let Some(seed) = self.world.options.chaos else { return };
        let draw = mix(&[seed, self.rank as u64, peer as u64, number, receives]);
        if draw.is_multiple_of(3) {
            std::thread::sleep(Duration::from_micros(draw / 3 % 200));
        }
    }

    fn count(&self, update: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        update(&mut traffic);
        self.traffic.set(traffic);
    }

    fn timed_out(&self, peer: usize, what: &What) {
        let (rank, what) = (self.rank, what.to_string());
        let (section, seconds) = (self.section.get().0, self.deadline().as_secs_f64());
        let missing = self.world.presence.absent(rank, peer);
        self.world.fail(LinkError::Missing { rank, what, section, seconds, missing });
    }
}

/// A sent message that its receiver has not copied yet.
struct PendingSend {
    end: Rc<End>,
    to: usize,
    number: u64,
    what: What,
    share: Option<Share>,
}

impl Flight for PendingSend {
    fn wait(mut self: Box<Self>) {
        let Some(share) = self.share.take() else { return };
        let started = Instant::now();
        let (world, rank) = (&self.end.world, self.end.rank);
        world.presence.waits(rank, &self.what);
        let gone = world.wait(self.to, self.end.deadline(), |_| (!share.is_read()).then_some(()));
        world.presence.works(rank);
        if gone == Err(true) {
            self.end.timed_out(self.to, &self.what);
        }
        self.share = Some(share);
        self.end.count(|traffic| traffic.wait_s += started.elapsed().as_secs_f64());
    }
}

impl Drop for PendingSend {
    fn drop(&mut self) {
        // Messages not taken yet never will be; the share waits for a copy that has started.
        let mut mailbox = lock(&self.end.world.boxes[self.to]);
        mailbox.queues[self.end.rank].retain(|parcel| parcel.number != self.number);
        drop(mailbox);
        self.share = None;
    }
}

/// The next number in a rank's sequence of messages.
fn next(numbers: &RefCell<Vec<u64>>, rank: usize) -> u64 {
    let mut numbers = numbers.borrow_mut();
    numbers[rank] += 1;
    numbers[rank]
}

/// A pending receive.
struct PendingReceive {
    end: Rc<End>,
    device: Device,
    from: usize,
    /// Number of the sender's message; messages may be waited for in any order.
    number: u64,
    dst: LoanedTensor,
    /// When the tensor was lent; before that it may still be in use.
    fence: u64,
    what: What,
}

impl Flight for PendingReceive {
    fn wait(self: Box<Self>) {
        let PendingReceive { end, device, from, number, dst, fence, what } = *self;
        let world = &end.world;
        let started = Instant::now();
        world.presence.waits(end.rank, &what);
        let parcel = world.wait(end.rank, end.deadline(), |mailbox| {
            let at = mailbox.queues[from].iter().position(|parcel| parcel.number == number)?;
            mailbox.queues[from].remove(at)
        });
        world.presence.works(end.rank);
        let tensor = dst.tensor().clone();
        drop(dst);
        let Parcel { what: found, reader, .. } = match parcel {
            Ok(parcel) => parcel,
            Err(late) => {
                if late {
                    end.timed_out(from, &what);
                }
                return;
            }
        };
        end.disturb(from, number, 1);
        if found == what {
            if !device.machine.take(&reader, &tensor, fence) {
                copy(&device, &reader, &tensor);
            }
            end.count(|traffic| traffic.received_bytes += tensor.bytes());
        } else {
            let (rank, peer) = (end.rank, from);
            let (expected, found) = (what.to_string(), found.to_string());
            world.fail(LinkError::Mismatch { rank, peer, expected, found });
        }
        drop(reader);
        // The sender waits on this rank's condition variable for its tensor.
        drop(lock(&world.boxes[end.rank]));
        world.bells[end.rank].notify_all();
        end.count(|traffic| traffic.wait_s += started.elapsed().as_secs_f64());
    }
}

/// Copies in pieces that fit in a core's cache.
fn copy(device: &Device, reader: &Reader, to: &Tensor) {
    let [rows, cols] = reader.shape();
    let row_bytes = cols * reader.dtype().bytes();
    let step = (PIECE_BYTES / row_bytes.max(1)).clamp(1, rows.max(1));
    let wide = PIECE_BYTES / reader.dtype().bytes();
    device.machine.fill(&[vec![to.clone()]], &|_, elements| {
        let mut piece = Vec::with_capacity(PIECE_BYTES.min(rows * row_bytes));
        let mut at = 0;
        for start in (0..rows).step_by(step) {
            for from in (0..cols).step_by(wide) {
                let (rows, cols) = (start..rows.min(start + step), from..cols.min(from + wide));
                // A tensor in memory can always be read.
                let _ = reader.read(rows, cols, &mut piece);
                elements[0][at..at + piece.len()].copy_from_slice(&piece);
                at += piece.len();
            }
        }
    });
}

impl Link for Threads {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn ranks(&self) -> usize {
        self.0.world.boxes.len()
    }

    fn send(&self, device: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight> {
        let end = self.0.clone();
        let number = next(&end.sent, to);
        let (share, reader) = device.machine.share(src);
        end.disturb(to, number, 0);
        let world = &end.world;
        lock(&world.boxes[to]).queues[end.rank].push_back(Parcel { number, what, reader });
        world.bells[to].notify_all();
        end.count(|traffic| traffic.sent_bytes += src.bytes());
        Box::new(PendingSend { to, number, what, share: Some(share), end })
    }

    fn receive(&self, device: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight> {
        let (end, device, dst) = (self.0.clone(), device.clone(), LoanedTensor::new(dst.clone()));
        let number = next(&end.expected, from);
        let fence = device.machine.fence();
        Box::new(PendingReceive { end, device, from, number, dst, fence, what })
    }

    fn check(&self) -> Result<(), LinkError> {
        self.0.world.failure().map_or(Ok(()), Err)
    }

    fn abort(&self, reason: &str) {
        self.0.world.fail(LinkError::Aborted { rank: self.0.rank, reason: reason.to_string() });
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic.get()
    }

    fn section(&self, name: &'static str, deadline: Option<Duration>) {
        self.0.section.set((name, deadline));
    }

    fn rejoin(&self) -> Result<(), LinkError> {
        let world = &self.0.world;
        // Numbering restarts, so the next message of every pair is the first again.
        self.0.sent.borrow_mut().fill(0);
        self.0.expected.borrow_mut().fill(0);
        let clear = || {
            // All ranks are here, so nothing is in flight and no other thread accesses this.
            for mailbox in &world.boxes {
                lock(mailbox).queues.iter_mut().for_each(VecDeque::clear);
            }
            *lock(&world.failure) = None;
        };
        let met = world.meeting.meet(self.0.rank, world.options.deadline, clear);
        met.map_err(|missing| {
            let (rank, what) = (self.0.rank, "going on together".to_string());
            let seconds = world.options.deadline.as_secs_f64();
            let missing = world.presence.describe(&missing);
            world.failure().unwrap_or(LinkError::Missing { rank, what, section: "restart", seconds, missing })
        })
    }
}
