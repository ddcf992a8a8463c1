//! This process among those started together.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fathom_tensor::mesh::{Link, LinkError};

use super::comm::Communicator;
use super::control::{self, Topic};
use super::line::{Carrier, Line, Pair};
use super::link::{End, Lines, Ranks};
use super::sys::{Nccl, UniqueId};
use super::watch::{Connect, WatchState, Watcher};
use crate::driver::Driver;
use crate::memory::Streams;
use crate::{Cuda, Error, Result};

/// Most blocks of the device for messages: each message waiting for its other side occupies its blocks, and the rest of
/// the device must make progress.
const ALL_CTAS: usize = 64;
/// Most blocks per message.
const MOST_CTAS: usize = 8;
/// With more ranks than this, messages that wait for each other might not all fit on the device.
const MOST_RANKS: usize = 64;
/// Streams of a device not used for messages.
const OWN_STREAMS: usize = 4;
/// The driver's default number of queues without `CUDA_DEVICE_MAX_CONNECTIONS`, and its largest value.
const QUEUES: [usize; 2] = [8, 32];
/// Description of waits until all ranks are connected.
const STARTING: &str = "the start of the link";

/// One process of a job. Its link belongs to the computing thread.
pub struct World {
    shared: Arc<WatchState>,
    ranks: usize,
}

/// Connects by NCCL.
struct ByNccl {
    nccl: Arc<Nccl>,
    driver: Arc<dyn Driver>,
    /// Blocks per message.
    ctas: i32,
    /// Communicators in the order of creation, which is the same on both of their ranks.
    made: Mutex<Vec<Arc<Communicator>>>,
    /// Set once ranks leave: that others close their communicators is no failure then.
    leaving: AtomicBool,
}

impl ByNccl {
    fn made(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Communicator>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connect for ByNccl {
    fn connect(&self, shared: &WatchState, other: usize, _: bool) -> Result<Arc<dyn Carrier>> {
        let (own, deadline) = (usize::from(shared.rank > other), shared.deadline);
        let id = match own {
            0 => {
                let id = self.nccl.unique_id()?;
                shared.control().say(other, Topic::Id, &id.0);
                id
            }
            _ => {
                let words = shared
                    .wait(other, "the name of a communicator", |control| control.heard(other, Topic::Id));
                let words = words.map_err(|error| failed("ncclGetUniqueId", &error))?;
                let bytes = words.try_into().map_err(|_| Error::Nccl {
                    call: "ncclGetUniqueId",
                    message: format!("rank {other} said something else"),
                })?;
                UniqueId(bytes)
            }
        };
        let comm = Communicator::join(&self.nccl, &self.driver, id, [own, 2], Some(self.ctas), deadline)?;
        let comm = Arc::new(comm);
        self.made().push(comm.clone());
        Ok(Arc::new(Pair { comm, other: 1 - own }))
    }

    fn failure(&self, patience: Duration) -> Option<String> {
        if self.leaving.load(Ordering::SeqCst) { None } else { self.nccl.failure(patience) }
    }

    fn close(&self) -> Result<()> {
        self.leaving.store(true, Ordering::SeqCst);
        self.made().iter().try_for_each(|comm| comm.close())
    }

    fn abort(&self) {
        self.nccl.abort(self.driver.as_ref());
    }
}

fn failed(call: &'static str, error: &LinkError) -> Error {
    Error::Nccl { call, message: error.to_string() }
}

/// Blocks per message. NCCL rounds it up to a power of two (`ncclTopoComputeP2pChannels`).
pub(super) fn ctas(ranks: usize) -> i32 {
    let directions = 2 * ranks.saturating_sub(1).max(1);
    1 << (ALL_CTAS / directions).clamp(1, MOST_CTAS).ilog2()
}

/// A rank's partner in each round of a tournament in which every rank meets each other once, so that pairs meet in
/// parallel and none waits for earlier ones.
pub(super) fn rounds(rank: usize, ranks: usize) -> impl Iterator<Item = usize> {
    // With an odd number of ranks, one rank has no partner in each round.
    let all = ranks.next_multiple_of(2).max(2);
    let turn = all - 1;
    let other = move |round: usize| match rank {
        // Twice this is the round, modulo the number of rounds.
        last if last == turn => round * (all / 2) % turn,
        _ => match (round + turn - rank) % turn {
            own if own == rank => turn,
            other => other,
        },
    };
    (0..turn).map(other).filter(move |other| *other < ranks)
}

/// A warning if streams have to share the driver's queues, given their number.
pub(super) fn crowded(ranks: usize, queues: Option<usize>) -> Option<String> {
    let [usual, most] = QUEUES;
    let (streams, queues) = (2 * (ranks - 1) + OWN_STREAMS, queues.unwrap_or(usual));
    let wanted = streams.min(most);
    (queues < wanted).then(|| {
        format!(
            "{ranks} ranks have {streams} streams on each device, and the driver {queues} queues: set \
             CUDA_DEVICE_MAX_CONNECTIONS={wanted} for all ranks, or messages may wait for each other for ever"
        )
    })
}

impl World {
    /// Connects to the other ranks at `host:port`, where the first one listens. A wait of the link takes at most
    /// `deadline`.
    ///
    /// # Errors
    /// The missing ranks, or the network's error.
    pub fn meet(at: &str, [rank, ranks]: [usize; 2], deadline: Duration) -> Result<World> {
        let met = control::meet(at, rank, ranks, deadline);
        let control =
            met.map_err(|error| Error::Rendezvous { at: at.to_string(), message: error.to_string() })?;
        Ok(World { shared: Arc::new(WatchState::new(control, deadline)), ranks })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Creates the link of a mesh of devices; all ranks call this together. Pairs of ranks connect in rounds.
    ///
    /// # Errors
    /// NCCL's message, or the missing ranks.
    pub fn link(&self, cuda: &Cuda, nccl: &Arc<Nccl>) -> Result<Box<dyn Link>> {
        if self.ranks > MOST_RANKS {
            let message =
                format!("{} ranks; this link is for at most {MOST_RANKS}, more are for MPI", self.ranks);
            return Err(Error::Nccl { call: "link", message });
        }
        let queues = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|text| text.parse().ok());
        if let (0, Some(line)) = (self.rank(), crowded(self.ranks, queues)) {
            log::warn!("{line}");
        }
        let (streams, nccl) = (cuda.streams(), nccl.clone());
        let driver = streams.driver.clone();
        let (made, leaving) = (Mutex::default(), AtomicBool::new(false));
        self.link_by(streams, Arc::new(ByNccl { nccl, driver, ctas: ctas(self.ranks), made, leaving }))
    }

    pub(super) fn link_by(&self, streams: &Arc<Streams>, by: Arc<dyn Connect>) -> Result<Box<dyn Link>> {
        let shared = &self.shared;
        if let Some(failure) = shared.failure() {
            return Err(failed("link", &failure));
        }
        let mut lines: Vec<Line> = Vec::new();
        // Dropped before the lines, with nothing in flight.
        let watcher = Watcher::start(shared, streams.driver.clone(), by.clone());
        if let Err(error) = self.lines(streams, by.as_ref(), &mut lines) {
            shared.fail(shared.explained(error.to_string(), STARTING));
            // Reports the first failure.
            return Err(shared.failure().map_or(error, |failure| failed("link", &failure)));
        }
        Ok(Box::new(Ranks(Rc::new(End::new(watcher, by, streams, self.sorted(lines))))))
    }

    /// Adds both directions to every other rank in the order of creation: from the lower rank to the higher, then back.
    fn lines(&self, streams: &Arc<Streams>, by: &dyn Connect, lines: &mut Vec<Line>) -> Result<()> {
        let (shared, rank) = (&self.shared, self.shared.rank);
        for other in rounds(rank, self.ranks) {
            let _meeting = shared.during(other, STARTING);
            for sends in [rank < other, rank > other] {
                lines.push(Line::new(&streams.driver, by.connect(shared, other, sends)?)?);
                lines.last().map_or(Ok(()), |line| line.warm(sends))?;
                // The run may have ended during the wait.
                shared.failure().map_or(Ok(()), |failure| Err(failed("link", &failure)))?;
            }
        }
        Ok(())
    }

    /// Lines by rank.
    fn sorted(&self, lines: Vec<Line>) -> Vec<Option<Lines>> {
        let mut sorted: Vec<Option<Lines>> = (0..self.ranks).map(|_| None).collect();
        let mut lines = lines.into_iter();
        for other in rounds(self.rank(), self.ranks) {
            let Some((first, second)) = lines.next().zip(lines.next()) else { break };
            let (to, from) = if self.rank() < other { (first, second) } else { (second, first) };
            sorted[other] = Some(Lines { to, from });
        }
        sorted
    }

    /// Broadcasts the first rank's number; all ranks call this together, and wait however long the first takes.
    ///
    /// # Errors
    /// A rank that is gone or has ended the run.
    pub fn tell(&self, number: u64) -> std::result::Result<u64, LinkError> {
        if self.rank() > 0 {
            return self.hear(0);
        }
        self.say(number);
        Ok(number)
    }

    /// All ranks' numbers, by rank; all ranks call this together.
    ///
    /// # Errors
    /// See [`World::tell`].
    pub fn gather(&self, number: u64) -> std::result::Result<Vec<u64>, LinkError> {
        self.say(number);
        (0..self.ranks).map(|rank| if rank == self.rank() { Ok(number) } else { self.hear(rank) }).collect()
    }

    fn say(&self, number: u64) {
        let mut control = self.shared.control();
        (0..self.ranks).for_each(|other| control.say(other, Topic::Number, &number.to_le_bytes()));
    }

    fn hear(&self, from: usize) -> std::result::Result<u64, LinkError> {
        let words = self.shared.hear(from, Topic::Number, "a number of the others")?;
        Ok(u64::from_le_bytes(words.first_chunk::<8>().copied().unwrap_or_default()))
    }

    /// Ends the run for all ranks.
    pub fn abort(&self, reason: &str) {
        let rank = self.rank();
        self.shared.fail(LinkError::Aborted { rank, reason: reason.to_string() });
    }
}
