//! State of this process among those started together.

use std::cell::{Cell, RefCell};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fathom_tensor::mesh::{LinkError, Traffic, What};
use mpi::environment::Universe;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::Communicator;

/// Exit code of a job ended by a rank.
const ENDED: i32 = 1;
/// Polls without sleeping at the start of a wait: some tens of microseconds.
const EAGER_LOOKS: u32 = 200;
/// Sleep between later polls: ranks may share a core with the one they wait for.
const NAP: Duration = Duration::from_micros(30);
/// Buffers kept for later transfers.
const SPARE_BUFFERS: usize = 8;

/// State shared by the link and its flights.
pub(crate) struct End {
    pub rank: usize,
    pub ranks: usize,
    pub deadline: Duration,
    /// Current section of the run, and its limit on waits, if not [`End::deadline`].
    pub section: Cell<(&'static str, Option<Duration>)>,
    pub traffic: Cell<Traffic>,
    pub spare: RefCell<Vec<Vec<u8>>>,
    pub world: SimpleCommunicator,
    /// Last, as dropping it ends MPI.
    pub _universe: Universe,
}

impl End {
    pub fn process(&self, rank: usize) -> Process<'_> {
        // The rank fits in MPI's own integers, which also gave the number of ranks.
        self.world.process_at_rank(i32::try_from(rank).unwrap_or(i32::MAX))
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    pub fn count(&self, update: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        update(&mut traffic);
        self.traffic.set(traffic);
    }

    /// Polls until `look` returns a value. The time counts as waiting.
    ///
    /// # Errors
    /// The seconds waited, once the deadline has passed.
    pub fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> Result<T, f64> {
        let started = Instant::now();
        let deadline = self.section.get().1.unwrap_or(self.deadline);
        let mut looks = 0;
        let found = loop {
            if let Some(found) = look() {
                break Ok(found);
            }
            if started.elapsed() >= deadline {
                break Err(deadline.as_secs_f64());
            }
            looks += 1;
            if looks < EAGER_LOOKS { std::thread::yield_now() } else { sleep(NAP) }
        };
        self.count(|traffic| traffic.wait_s += started.elapsed().as_secs_f64());
        found
    }

    /// Ends the job because a rank neither sent nor received for too long.
    pub fn late(&self, peer: usize, what: &What, seconds: f64) -> ! {
        let what = format!("{what} ({})", self.section.get().0);
        self.fail(&LinkError::TimedOut { rank: self.rank, peer, what, seconds })
    }

    /// A buffer of this size, reused if possible.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare.borrow_mut().pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    pub fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }

    /// Ends the job: the only way for a rank to end the others, including itself.
    pub fn fail(&self, error: &LinkError) -> ! {
        log::error!("error: {error}");
        self.world.abort(ENDED)
    }
}
