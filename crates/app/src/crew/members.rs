//! Members of a run, and the messages between them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use fathom_base::ranks::{Claim, Environment, Resolution, Role, resolve};
use fathom_cuda::nccl;
#[cfg(feature = "mpi")]
use fathom_mpi::Mpi;
use fathom_train::recipe::Recipe;

#[cfg(not(feature = "mpi"))]
use super::no_mpi::Mpi;
use super::world::World;
use crate::error::{Context, Error, Result, caught, in_full, refuse};
use crate::events::Events;
use crate::job::Job;
use crate::machine::Machine;
use crate::place::RankPlace;

/// Message from the first process to the others before they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The run's folder is complete.
    Ready = 1,
    /// The run is finished already.
    NothingToDo,
    /// The run was asked to stop before it began to train.
    Interrupted,
}

/// The ranks of a run.
pub enum Crew {
    /// Threads of this process, if there are several.
    Threads,
    /// Processes of a launcher.
    Processes {
        /// Link between the processes.
        world: World,
        /// Position of this process among them.
        place: RankPlace,
    },
}

/// Resolves the rank from this process's environment and a claim.
pub fn resolution(claim: &Claim) -> Resolution {
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    resolve(claim, &environment)
}

/// Returns the timeout of a wait on a link.
pub fn deadline(recipe: &Recipe) -> Duration {
    Duration::try_from_secs_f64(recipe.mesh.timeout_s).unwrap_or(Duration::MAX / 2)
}

impl Crew {
    /// Detects whether this process is alone, and joins the others if it is not.
    ///
    /// # Errors
    /// Launchers that contradict each other; a mesh of another size; a build without a link between processes.
    pub fn assemble(claim: &Claim, job: &Job, events: &dyn Events) -> Result<Crew> {
        let found = resolution(claim);
        let (rank, ranks) = match found.role()? {
            Role::Alone | Role::Rank { ranks: 1, .. } | Role::Node { nodes: 1, .. } => {
                return Ok(Crew::Threads);
            }
            Role::Rank { rank, ranks } => (rank, ranks),
            Role::Node { .. } => refuse!(
                "{found}: one process was started on each machine, and ranks over several machines are one process each; start them with mpirun or srun (`fathom launch` writes such jobs)"
            ),
        };
        let grid = job.stages[0].ranks().grid;
        if grid.ranks() != ranks {
            refuse!(
                "{found}: {ranks} processes, and the recipe's mesh ({grid}) has {} ranks; set mesh.dp and its like so that their product is {ranks}, or start as many processes as the mesh has ranks",
                grid.ranks()
            );
        }
        let local = found.claim.local_rank.as_ref().map(|said| said.value);
        let deadline = deadline(job.recipe());
        if let (Some(library), Some(at)) = (job.machine.nccl()?, &found.claim.rendezvous) {
            let world = nccl::World::meet(&at.value, [rank, ranks], deadline);
            let world = World::Nccl(world.with_context(|| found.to_string())?, library);
            let (place, apart) = place(&world, local, &job.machine)?;
            let how =
                if apart { "the ranks are processes over NCCL" } else { "NCCL wants a GPU for each rank" };
            if rank == 0 {
                events.note(&format!("{found}; {how}"));
            }
            if apart {
                return Ok(Crew::Processes { world, place });
            }
        }
        let mpi = Mpi::start(deadline).with_context(|| found.to_string())?;
        if (mpi.rank(), mpi.ranks()) != (rank, ranks) {
            refuse!(
                "{found}, but MPI started this process as rank {} of {}: start the job with mpirun, or with srun --mpi=pmix (plain srun and torchrun start processes that MPI does not know)",
                mpi.rank(),
                mpi.ranks()
            );
        }
        let world = World::Mpi(mpi);
        let (place, _) = place(&world, local, &job.machine)?;
        if rank == 0 {
            events.note(&format!("{found}; the ranks are processes over MPI"));
        }
        Ok(Crew::Processes { world, place })
    }

    /// Returns whether this process is the one that reports on the run.
    pub fn is_first(&self) -> bool {
        match self {
            Crew::Threads => true,
            Crew::Processes { world, .. } => world.rank() == 0,
        }
    }

    /// Returns the place of this process's first rank, out of `ranks`.
    pub fn place(&self, machine: &Machine, ranks: usize) -> RankPlace {
        match self {
            Crew::Threads => {
                let memory = machine.sharers(ranks);
                RankPlace { ranks, local: 0, cores: ranks, host: ranks, memory, disk: ranks }
            }
            Crew::Processes { place, .. } => *place,
        }
    }

    /// Sends a word from the first process to the others, which wait for it.
    ///
    /// # Errors
    /// A process that is gone.
    pub fn tell(&self, word: Word) -> Result<()> {
        match self {
            Crew::Threads => Ok(()),
            Crew::Processes { world, .. } => world.tell(word as u64).map(drop),
        }
    }

    /// Receives the word of the first process.
    ///
    /// # Errors
    /// A process that is gone.
    pub fn hear(&self) -> Result<Word> {
        let said = match self {
            Crew::Threads => Word::Ready as u64,
            Crew::Processes { world, .. } => world.tell(0)?,
        };
        let words = [Word::Ready, Word::Interrupted];
        Ok(words.into_iter().find(|word| *word as u64 == said).unwrap_or(Word::NothingToDo))
    }

    /// Runs this process's part and reports its end to the others. A process that is done waits here for the
    /// first, since waiting while leaving MPI would use a core.
    ///
    /// # Errors
    /// Those of the work; they also end all other processes.
    pub fn together<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Crew::Processes { world, .. } = self else { return work() };
        match caught(work) {
            Ok(done) => world.tell(0).map(|_| done),
            Err(Error::Panicked(_) | Error::OutOfMemory(_)) => {
                Err(world.end("it panicked; its message is above".into()))
            }
            // The others already know of it.
            Err(error @ Error::Rank { .. }) => Err(error),
            Err(error) => Err(world.end(in_full(&error))),
        }
    }
}

/// Returns this process's place among all (`local` is its local rank if the launcher gave one), and whether every
/// process has a device of its own. The run's folder is shared by all; a separate spill folder is on each machine's own
/// disk. Collective: all processes call it together.
fn place(world: &World, local: Option<usize>, machine: &Machine) -> Result<(RankPlace, bool)> {
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
    let hosts = all(&|hasher| host.hash(hasher))?;
    let local = local.unwrap_or_else(|| local_rank(&hosts, world.rank()));
    let devices = all(&|hasher| (&host, machine.plug(local)).hash(hasher))?;
    let cores = alike(&all(&|hasher| (&host, cores).hash(hasher))?);
    let (ranks, host) = (hosts.len(), alike(&hosts));
    let disk = if machine.asked.spill.is_some() { host } else { ranks };
    let place = RankPlace { ranks, local, cores, host, memory: alike(&devices), disk };
    Ok((place, devices.iter().collect::<BTreeSet<_>>().len() == devices.len()))
}

/// Returns a rank's index among the ranks of its machine, given the machine of every rank.
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
