//! Link between the processes of a job: MPI or NCCL.

use std::sync::Arc;

use fathom_cuda::nccl::{self, Nccl};
#[cfg(feature = "mpi")]
use fathom_mpi::Mpi;
use fathom_tensor::mesh::LinkError;

#[cfg(not(feature = "mpi"))]
use super::no_mpi::Mpi;
use crate::error::{Error, Result};

/// Link between processes.
pub enum World {
    /// MPI, through host memory.
    Mpi(Mpi),
    /// NCCL, between devices.
    Nccl(nccl::World, Arc<Nccl>),
}

impl World {
    /// Returns this process's rank.
    pub fn rank(&self) -> usize {
        match self {
            World::Mpi(mpi) => mpi.rank(),
            World::Nccl(world, _) => world.rank(),
        }
    }

    /// Returns the first rank's number on all ranks. Collective: all call it together.
    ///
    /// # Errors
    /// A rank that is gone; the others are notified.
    pub fn tell(&self, number: u64) -> Result<u64> {
        match self {
            World::Mpi(mpi) => Ok(mpi.tell(number)),
            World::Nccl(world, _) => world.tell(number).map_err(|error| self.lost(&error)),
        }
    }

    /// Returns every rank's number. Collective: all call it together.
    ///
    /// # Errors
    /// Those of [`World::tell`].
    pub fn gather(&self, number: u64) -> Result<Vec<u64>> {
        match self {
            World::Mpi(mpi) => Ok(mpi.gather(number)),
            World::Nccl(world, _) => world.gather(number).map_err(|error| self.lost(&error)),
        }
    }

    /// Ends the job of all ranks. MPI ends this process too; otherwise returns the error for this process.
    pub fn end(&self, reason: String) -> Error {
        match self {
            World::Mpi(mpi) => mpi.abort(&reason),
            World::Nccl(world, _) => {
                world.abort(&reason);
                Error::Rank { rank: world.rank(), reason }
            }
        }
    }

    fn lost(&self, error: &LinkError) -> Error {
        self.end(error.to_string())
    }
}
