//! This process among those that were started together.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fathom_tensor::mesh::{Link, LinkError};

use super::comm::{Communicator, UniqueId};
use super::control::{self, Topic};
use super::line::{Carrier, Line, Pair};
use super::link::{End, Lines, Ranks};
use super::sys::Nccl;
use super::watch::Shared;
use crate::driver::Driver;
use crate::memory::Streams;
use crate::{Cuda, Error, Result};

/// Blocks of the device that messages take at most: each that waits for its other side keeps its blocks, and the rest of the
/// device has to go on.
const ALL_CTAS: usize = 64;
/// Of one message.
const MOST_CTAS: usize = 8;
/// With more ranks than this, messages that wait for each other might not all have a place on the device.
const MOST_RANKS: usize = 64;
/// Between two looks of a wait that may take hours.
const PATIENCE: Duration = Duration::from_millis(5);

/// One process of a job. Its link belongs to the thread that computes.
pub struct World {
    shared: Arc<Shared>,
    ranks: usize,
}

/// Makes what carries messages.
pub(super) trait Connect {
    /// One direction between this rank and another; both call it for all pairs and directions in one order.
    fn connect(&self, shared: &Shared, other: usize, sends: bool) -> Result<Arc<dyn Carrier>>;
}

/// By NCCL.
struct ByNccl<'a> {
    nccl: &'a Arc<Nccl>,
    driver: &'a Arc<dyn Driver>,
    /// Blocks of a message.
    ctas: i32,
}

impl Connect for ByNccl<'_> {
    fn connect(&self, shared: &Shared, other: usize, _: bool) -> Result<Arc<dyn Carrier>> {
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
        let comm = Communicator::join(self.nccl, self.driver, id, [own, 2], Some(self.ctas), deadline)?;
        Ok(Arc::new(Pair { comm, other: 1 - own }))
    }
}

fn failed(call: &'static str, error: &LinkError) -> Error {
    Error::Nccl { call, message: error.to_string() }
}

impl World {
    /// Meets the other ranks at `host:port`, where the first listens. A wait of the link takes at most `deadline`.
    ///
    /// # Errors
    /// Who has not come, or what the network says.
    pub fn meet(at: &str, [rank, ranks]: [usize; 2], deadline: Duration) -> Result<World> {
        let met = control::meet(at, rank, ranks, deadline);
        let control =
            met.map_err(|error| Error::Rendezvous { at: at.to_string(), message: error.to_string() })?;
        Ok(World { shared: Arc::new(Shared::new(control, deadline)), ranks })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The link, for a mesh of a device's ranks; all call this together. Each pair of ranks is connected here, one after
    /// the other.
    ///
    /// # Errors
    /// NCCL's words, or who has not come.
    pub fn link(&self, cuda: &Cuda, nccl: &Arc<Nccl>) -> Result<Box<dyn Link>> {
        if self.ranks > MOST_RANKS {
            let message =
                format!("{} ranks; this link is for at most {MOST_RANKS}, more are for MPI", self.ranks);
            return Err(Error::Nccl { call: "link", message });
        }
        let streams = cuda.streams();
        let directions = 2 * (self.ranks - 1).max(1);
        let ctas = (ALL_CTAS / directions).clamp(1, MOST_CTAS) as i32;
        self.link_by(streams, &ByNccl { nccl, driver: &streams.driver, ctas })
    }

    pub(super) fn link_by(&self, streams: &Arc<Streams>, by: &dyn Connect) -> Result<Box<dyn Link>> {
        let (shared, rank) = (&self.shared, self.shared.rank);
        let mut lines: Vec<Option<Lines>> = (0..self.ranks).map(|_| None).collect();
        for low in 0..self.ranks {
            for high in low + 1..self.ranks {
                if rank != low && rank != high {
                    continue;
                }
                let other = if rank == low { high } else { low };
                let line = |sends: bool| -> Result<Line> {
                    let carrier = by.connect(shared, other, sends)?;
                    let line = Line::new(&streams.driver, carrier)?;
                    line.warm(sends)?;
                    shared.add(&line.carrier);
                    Ok(line)
                };
                // From the lower to the higher first, on both.
                lines[other] = Some(match rank == low {
                    true => {
                        let to = line(true)?;
                        Lines { to, from: line(false)? }
                    }
                    false => {
                        let from = line(false)?;
                        Lines { to: line(true)?, from }
                    }
                });
            }
        }
        Ok(Box::new(Ranks(Rc::new(End::new(shared, streams, lines)))))
    }

    /// The first rank's number, on all: all call this together, however long it takes until the first does.
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

    /// Everybody's number, by rank; all call this together.
    ///
    /// # Errors
    /// As [`World::tell`].
    pub fn gather(&self, number: u64) -> std::result::Result<Vec<u64>, LinkError> {
        self.say(number);
        (0..self.ranks).map(|rank| if rank == self.rank() { Ok(number) } else { self.hear(rank) }).collect()
    }

    fn say(&self, number: u64) {
        let mut control = self.shared.control();
        (0..self.ranks).for_each(|other| control.say(other, Topic::Number, &number.to_le_bytes()));
    }

    /// Waits without a deadline: whoever should speak may have hours of work first, and one that dies is noticed.
    fn hear(&self, from: usize) -> std::result::Result<u64, LinkError> {
        loop {
            if let Some(failure) = self.shared.failure() {
                return Err(failure);
            }
            let heard = self.shared.control().heard(from, Topic::Number);
            match heard.map_err(|lost| self.shared.lost(lost, "a number of the others"))? {
                Some(words) => {
                    let bytes = words.first_chunk::<8>().copied().unwrap_or_default();
                    return Ok(u64::from_le_bytes(bytes));
                }
                None => std::thread::sleep(PATIENCE),
            }
        }
    }

    /// Ends the run for all ranks.
    pub fn abort(&self, reason: &str) {
        let rank = self.rank();
        self.shared.fail(LinkError::Aborted { rank, reason: reason.to_string() });
    }
}
