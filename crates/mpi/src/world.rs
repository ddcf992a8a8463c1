//! This process among those started together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use fathom_tensor::mesh::{Link, LinkError};
use mpi::Threading;
use mpi::request::{Request, Scope, scope};
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use crate::end::End;
use crate::link::Processes;

/// Polling interval of a wait that may take hours.
const PATIENCE: Duration = Duration::from_millis(5);

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
