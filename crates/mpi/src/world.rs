//! This process among those started together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fathom_tensor::mesh::{Link, LinkError, Traffic, What};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, Scope, scope};
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use crate::link::Processes;

/// Exit code of a job ended by a rank.
const ENDED: i32 = 1;
/// Polling interval of a wait that may take hours.
const PATIENCE: Duration = Duration::from_millis(5);
/// Polls without sleeping at the start of a wait: some tens of microseconds.
const EAGER_LOOKS: u32 = 200;
/// Sleep between later polls: ranks may share a core with the one they wait for.
const NAP: Duration = Duration::from_micros(30);
/// Buffers kept for later transfers.
const SPARE_BUFFERS: usize = 8;

/// Failure to create a link.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// MPI starts once in a process.
    #[error("MPI was started before in this process; a process is one rank once")]
    Started,
}

/// One process of a job. It belongs to the thread that started it; cheap to clone. MPI ends when the last clone and the
/// last link are dropped, which must happen on that thread.
#[derive(Clone)]
pub struct Mpi(Rc<End>);

/// State shared by the link and its flights.
pub(crate) struct End {
    pub rank: usize,
    pub ranks: usize,
    pub deadline: Duration,
    /// Current section of the run, and its limit on waits, if not [`End::deadline`].
    pub section: Cell<(&'static str, Option<Duration>)>,
    traffic: Cell<Traffic>,
    spare: RefCell<Vec<Vec<u8>>>,
    world: SimpleCommunicator,
    /// Last, as dropping it ends MPI.
    _universe: Universe,
}

impl Mpi {
    /// Joins the job that this process was started in; a process started on its own is a job of one. A wait of the link
    /// takes at most `deadline`.
    ///
    /// # Errors
    /// If MPI was already started.
    pub fn start(deadline: Duration) -> Result<Mpi, Error> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled).ok_or(Error::Started)?;
        let world = universe.world();
        let [rank, ranks] = [world.rank(), world.size()].map(|number| usize::try_from(number).unwrap_or(0));
        let (traffic, spare, section) = (Cell::default(), RefCell::default(), Cell::new(("setup", None)));
        Ok(Mpi(Rc::new(End { rank, ranks, deadline, section, traffic, spare, world, _universe: universe })))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.ranks
    }

    /// The link for a mesh.
    pub fn link(&self) -> Box<dyn Link> {
        Box::new(Processes(self.0.clone()))
    }

    /// Broadcasts the first rank's number; all ranks call this together, and wait however long the first takes, using
    /// almost no CPU time.
    pub fn tell(&self, number: u64) -> u64 {
        let mut number = number;
        scope(|scope| patiently(self.0.process(0).immediate_broadcast_into(scope, &mut number)));
        number
    }

    /// All ranks' numbers, by rank; all ranks call this together.
    pub fn gather(&self, number: u64) -> Vec<u64> {
        let mut all = vec![0; self.0.ranks];
        scope(|scope| patiently(self.0.world.immediate_all_gather_into(scope, &number, &mut all[..])));
        all
    }

    /// Reports the reason and ends the job.
    pub fn abort(&self, reason: &str) -> ! {
        self.0.fail(&LinkError::Aborted { rank: self.0.rank, reason: reason.to_string() })
    }
}

/// Waits without a deadline: the other rank may have hours of work first, and if it dies the job ends.
fn patiently<'a, D: ?Sized, S: Scope<'a>>(mut request: Request<'a, D, S>) {
    while let Err(still) = request.test() {
        request = still;
        sleep(PATIENCE);
    }
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
