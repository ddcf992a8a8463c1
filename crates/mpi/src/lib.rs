//! Ranks as processes, connected by MPI: [`Mpi`] is one process among those that a launcher (`mpirun`, `srun --mpi=pmix`)
//! started, and gives out the [`fathom_tensor::mesh::Link`] of its rank.
//!
//! Sums are not left to MPI: the collectives above a link add in the order of the ranks, in f32, so a run gives the same
//! bits on threads and on processes. What goes over the wire is what the tensors hold. Every transfer is non-blocking and
//! tested until its deadline; a rank that gives up says why and ends the job of all, which is what MPI can do: who wants to
//! go on starts the job again (`fathom supervise`).
//!
//! With the cargo feature `mpi` a binary needs one MPI's library at build time and at run time, so the feature is not a
//! default; without it this crate is empty. It knows nothing above `tensor`.
#![deny(missing_docs)]

#[cfg(feature = "mpi")]
mod link;
#[cfg(feature = "mpi")]
mod transfer;
#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use world::{Error, Mpi};
