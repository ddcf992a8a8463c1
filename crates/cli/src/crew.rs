//! What the ranks of a run are: threads of this process, or processes that a launcher started, of which this is one.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fathom_base::ranks::{Claim, Environment, Resolution, Role, resolve};
use fathom_cuda::nccl::{self, Nccl};
#[cfg(feature = "mpi")]
use fathom_mpi::Mpi;
use fathom_train::Outcome;
use fathom_train::recipe::Recipe;
use fathom_train::stage;

use crate::device::Place;
#[cfg(not(feature = "mpi"))]
use crate::no_mpi::Mpi;
use crate::{console, gpu};

/// What the first process tells the others before they begin.
const READY: u64 = 1;
const NOTHING_TO_DO: u64 = 2;
const INTERRUPTED: u64 = 3;

/// The ranks of a run.
pub enum Crew {
    /// Threads of this process, if there are several.
    Threads,
    /// Processes.
    Processes {
        /// This one among them.
        world: World,
        /// Where it is among them.
        place: Place,
    },
}

/// What connects processes.
pub enum World {
    /// MPI, through the memory of the host.
    Mpi(Mpi),
    /// NCCL, from device to device.
    Nccl(nccl::World, Arc<Nccl>),
}

impl World {
    /// This rank.
    pub fn rank(&self) -> usize {
        match self {
            World::Mpi(mpi) => mpi.rank(),
            World::Nccl(world, _) => world.rank(),
        }
    }

    fn tell(&self, number: u64) -> u64 {
        match self {
            World::Mpi(mpi) => mpi.tell(number),
            World::Nccl(world, _) => {
                world.tell(number).unwrap_or_else(|error| self.abort(&error.to_string()))
            }
        }
    }

    fn gather(&self, number: u64) -> Vec<u64> {
        match self {
            World::Mpi(mpi) => mpi.gather(number),
            World::Nccl(world, _) => {
                world.gather(number).unwrap_or_else(|error| self.abort(&error.to_string()))
            }
        }
    }

    /// Says why and ends the job.
    fn abort(&self, reason: &str) -> ! {
        match self {
            World::Mpi(mpi) => mpi.abort(reason),
            World::Nccl(world, _) => {
                eprintln!("error: rank {}: {reason}", world.rank());
                world.abort(reason);
                std::process::exit(1)
            }
        }
    }
}

/// What the environment of this process and the flags say.
pub fn resolution(flags: &Claim) -> Resolution {
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    resolve(flags, &environment)
}

/// How long a wait on a link may take.
pub fn deadline(recipe: &Recipe) -> Duration {
    Duration::try_from_secs_f64(recipe.mesh.timeout_s).unwrap_or(Duration::MAX / 2)
}

impl Crew {
    /// Finds out whether this process is alone, and joins the others if it is not.
    ///
    /// # Errors
    /// Launchers that contradict each other; a mesh of another size; a build without the link.
    pub fn assemble(flags: &Claim, recipe: &Recipe) -> Result<Crew> {
        let found = resolution(flags);
        let (rank, ranks) = match found.role()? {
            Role::Alone | Role::Rank { ranks: 1, .. } | Role::Node { nodes: 1, .. } => {
                return Ok(Crew::Threads);
            }
            Role::Rank { rank, ranks } => (rank, ranks),
            Role::Node { .. } => bail!(
                "{found}: one process was started on each machine, and ranks over several machines are one process each; start them with mpirun or srun (`fathom launch` writes such jobs)"
            ),
        };
        let grid = stage::ranks(recipe, 0)?.grid;
        if grid.ranks() != ranks {
            bail!(
                "{found}: {ranks} processes, and the recipe's mesh ({grid}) has {} ranks; set mesh.dp and its like so that their product is {ranks}, or start as many processes as the mesh has ranks",
                grid.ranks()
            );
        }
        let local = found.claim.local_rank.as_ref().map(|said| said.value);
        if let (Some(library), Some(at)) = (gpu::nccl(&recipe.machine)?, &found.claim.rendezvous) {
            let world = nccl::World::meet(&at.value, [rank, ranks], deadline(recipe));
            let world = World::Nccl(world.with_context(|| found.to_string())?, library);
            let (place, apart) = place(&world, local, recipe);
            let how =
                if apart { "the ranks are processes over NCCL" } else { "NCCL wants a GPU for each rank" };
            if rank == 0 {
                console::note(&format!("{found}; {how}"));
            }
            if apart {
                return Ok(Crew::Processes { world, place });
            }
        }
        let mpi = Mpi::start(deadline(recipe)).with_context(|| found.to_string())?;
        if (mpi.rank(), mpi.ranks()) != (rank, ranks) {
            bail!(
                "{found}, but MPI started this process as rank {} of {}: start the job with mpirun, or with srun --mpi=pmix (plain srun and torchrun start processes that MPI does not know)",
                mpi.rank(),
                mpi.ranks()
            );
        }
        let world = World::Mpi(mpi);
        let (place, _) = place(&world, local, recipe);
        if rank == 0 {
            console::note(&format!("{found}; the ranks are processes over MPI"));
        }
        Ok(Crew::Processes { world, place })
    }

    /// Whether this process is what is seen of the run.
    pub fn is_first(&self) -> bool {
        match self {
            Crew::Threads => true,
            Crew::Processes { world, .. } => world.rank() == 0,
        }
    }

    /// Where this process's first rank is, of `ranks`.
    pub fn place(&self, recipe: &Recipe, ranks: usize) -> Place {
        match self {
            Crew::Threads => {
                let memory = gpu::sharers(&recipe.machine, ranks);
                Place { ranks, local: 0, cores: ranks, host: ranks, memory, disk: ranks }
            }
            Crew::Processes { place, .. } => *place,
        }
    }

    /// From the first process to the others: the run's folder has what they need.
    pub fn ready(&self) {
        self.tell(READY);
    }

    /// To the others: the run is finished already.
    pub fn nothing_to_do(&self) {
        self.tell(NOTHING_TO_DO);
    }

    /// To the others: the run was asked to stop before it began to train.
    pub fn interrupted(&self) {
        self.tell(INTERRUPTED);
    }

    /// Runs what the first process does; the others hear of its end.
    pub fn lead(&self, work: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        let _unwinding = Unwinding(self);
        let outcome = work();
        self.end(&outcome);
        outcome
    }

    /// Runs what another process does, once the first one is ready, and waits for the end of the first one.
    pub fn follow(&self, work: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        let _unwinding = Unwinding(self);
        let outcome = match self.tell(0) {
            READY => work(),
            INTERRUPTED => Ok(Outcome::Interrupted),
            _ => Ok(Outcome::Finished),
        };
        self.end(&outcome);
        outcome
    }

    fn tell(&self, number: u64) -> u64 {
        match self {
            Crew::Threads => number,
            Crew::Processes { world, .. } => world.tell(number),
        }
    }

    /// A process that ended waits for the first without using a core, which leaving MPI would.
    fn end(&self, outcome: &Result<Outcome>) {
        let Crew::Processes { world, .. } = self else { return };
        match outcome {
            Ok(_) => world.tell(0),
            Err(error) => world.abort(&crate::describe(error)),
        };
    }
}

/// Ends the job when a process unwinds: leaving MPI would wait for the others.
struct Unwinding<'a>(&'a Crew);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if let (true, Crew::Processes { world, .. }) = (std::thread::panicking(), self.0) {
            world.abort("it panicked; its message is above");
        }
    }
}

/// Where this process is among all, whose `local` rank its launcher may have said, and whether each has a device of its own.
/// All see the run's folder; another one for files is on each machine's own disk. All call this together.
fn place(world: &World, local: Option<usize>, recipe: &Recipe) -> (Place, bool) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let cores = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap_or_default();
    let host = read("/proc/sys/kernel/random/boot_id");
    let all = |what: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        what(&mut hasher);
        world.gather(hasher.finish())
    };
    let alike = |all: &[u64]| all.iter().filter(|other| **other == all[world.rank()]).count();
    let hosts = all(&|hasher| host.hash(hasher));
    let local = local.unwrap_or_else(|| local_rank(&hosts, world.rank()));
    let devices = all(&|hasher| (&host, gpu::plug(&recipe.machine, local)).hash(hasher));
    let cores = alike(&all(&|hasher| (&host, cores).hash(hasher)));
    let (ranks, host) = (hosts.len(), alike(&hosts));
    let disk = if recipe.machine.spill.is_some() { host } else { ranks };
    let place = Place { ranks, local, cores, host, memory: alike(&devices), disk };
    (place, devices.iter().collect::<BTreeSet<_>>().len() == devices.len())
}

/// Which of the ranks on its machine a rank is, by everybody's machine.
fn local_rank(hosts: &[u64], rank: usize) -> usize {
    hosts[..rank].iter().filter(|other| **other == hosts[rank]).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_machine_are_counted_however_they_are_dealt() {
        let local = |hosts: &[u64]| (0..hosts.len()).map(|rank| local_rank(hosts, rank)).collect::<Vec<_>>();
        assert_eq!(local(&[7, 7, 9, 9]), [0, 1, 0, 1]);
        assert_eq!(local(&[7, 9, 7, 9, 7]), [0, 0, 1, 1, 2]);
    }
}
