//! What the ranks of a run are: threads of this process, or processes that a launcher started, of which this is one.

mod members;
#[cfg(not(feature = "mpi"))]
mod no_mpi;
mod run;
mod world;

pub use members::{Crew, Word, deadline, resolution};
pub use run::{on_threads, run};
pub use world::World;
