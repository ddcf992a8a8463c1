//! Work of several ranks, as threads of this process or as processes, each with its share of cores and memory.

use std::time::Duration;

use fathom_tensor::Device;
use fathom_tensor::mesh::{Grid, Link, Mesh, Seat, ThreadsOptions, threads};

use super::members::{Crew, deadline};
use super::world::World;
use crate::error::{Context, Error, Result, in_full, refuse};
use crate::job::Job;
use crate::machine::{Machine, RankGpu};
use crate::place::RankPlace;

/// Runs `first` on this thread as the first rank of a job's mesh. The other ranks are processes that call this function
/// themselves, or threads that run `other`. A rank that fails ends the run of all.
///
/// # Errors
/// The first rank's error, which names the rank that failed first.
pub fn run<T>(
    job: &Job,
    crew: &Crew,
    first: impl FnOnce(Device) -> Result<T>,
    other: &(dyn Fn(Device) -> Result<()> + Sync),
) -> Result<T> {
    let (machine, grid) = (&job.machine, job.stages[0].ranks().grid);
    match crew {
        Crew::Processes { world: World::Mpi(mpi), place } => {
            return one(machine, grid, (mpi.link(), *place), first);
        }
        Crew::Processes { world: World::Nccl(world, library), place } => {
            let opened = machine.gpu(*place)?;
            let RankGpu { machine, budget } = opened.context("NCCL connects devices, and there is none")?;
            let mesh = Mesh::new(grid, world.link(&machine, library)?);
            return guarded(mesh.clone(), || first(Device::on_mesh(machine, budget, mesh)));
        }
        Crew::Threads => {}
    }
    on_threads((machine, grid), deadline(job.recipe()), first, other)
}

/// [`run`] with a thread per rank; `deadline` bounds each wait on the link.
pub fn on_threads<T>(
    (machine, grid): (&Machine, Grid),
    deadline: Duration,
    first: impl FnOnce(Device) -> Result<T>,
    other: &(dyn Fn(Device) -> Result<()> + Sync),
) -> Result<T> {
    let own = Crew::Threads.place(machine, grid.ranks());
    let take = |seat: Seat| -> Box<dyn Link> { Box::new(seat.take()) };
    let options = ThreadsOptions { deadline, chaos: machine.asked.chaos };
    let mut seats = threads(grid.ranks(), options);
    let rest = seats.split_off(1);
    let Some(seat) = seats.pop() else { refuse!("a mesh without ranks") };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..)
            .zip(rest)
            .map(|(local, seat)| {
                let place = RankPlace { local, ..own };
                scope.spawn(move || one(machine, grid, (take(seat), place), other))
            })
            .collect();
        let result = one(machine, grid, (take(seat), own), first);
        let panicked = |_| Err(Error::Refused("a rank panicked".into()));
        let ended = others.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
        let failed = ended.filter_map(Result::err).next();
        match (result, failed) {
            (Ok(_), Some(error)) => Err(error),
            (result, _) => result,
        }
    })
}

/// Reports to the other ranks when a rank's thread unwinds.
struct PanicReporter(Mesh);

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if let (true, Some(link)) = (std::thread::panicking(), self.0.link()) {
            link.abort("it panicked; its message is above");
        }
    }
}

fn one<T>(
    machine: &Machine,
    grid: Grid,
    (link, place): (Box<dyn Link>, RankPlace),
    body: impl FnOnce(Device) -> Result<T>,
) -> Result<T> {
    let mesh = Mesh::new(grid, link);
    guarded(mesh.clone(), || body(machine.rank(mesh, place)?))
}

/// Runs a rank's work and reports its failure to the others.
fn guarded<T>(mesh: Mesh, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _unwinding = PanicReporter(mesh.clone());
    let result = work();
    if let (Err(error), Some(link)) = (&result, mesh.link()) {
        link.abort(&in_full(error));
    }
    result
}
