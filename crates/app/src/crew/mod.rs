//! Ranks of a run: threads of this process, or processes of a launcher, one of which is this.

mod members;
#[cfg(not(feature = "mpi"))]
mod no_mpi;
mod run;
mod world;

pub use members::{Crew, Word, deadline, resolution};
pub use run::{on_threads, run};
pub use world::World;
