//! Ranks as processes, connected by MPI: [`Mpi`] is one of the processes that a launcher (`mpirun`, `srun --mpi=pmix`)
//! started, and provides the [`fathom_tensor::mesh::Link`] of its rank.
//!
//! MPI moves bytes and never adds: the collectives above a link add in rank order, in f32, so threads and processes give
//! the same bits. Every transfer is non-blocking and polled until its deadline. A rank that gives up reports why and aborts
//! the whole job, since MPI cannot continue without it; `fathom supervise` restarts the job.
//!
//! With the cargo feature `mpi`, building and running need the library of one MPI, so the feature is off by default;
//! without it this crate is empty.
//!
//! This crate knows nothing above `tensor`.

#[cfg(feature = "mpi")]
mod end;
#[cfg(feature = "mpi")]
mod link;
#[cfg(feature = "mpi")]
mod transfer;
#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use world::{Error, Mpi};
