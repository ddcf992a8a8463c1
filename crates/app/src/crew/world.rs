//! What connects the processes of a job: MPI, or NCCL.

use std::sync::Arc;

use fathom_cuda::nccl::{self, Nccl};
#[cfg(feature = "mpi")]
use fathom_mpi::Mpi;
use fathom_tensor::mesh::LinkError;

#[cfg(not(feature = "mpi"))]
use super::no_mpi::Mpi;
use crate::error::{Error, Result};

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

    /// The first rank's number, on all ranks. All call this together.
    ///
    /// # Errors
    /// A rank that is gone; the others hear of it.
    pub fn tell(&self, number: u64) -> Result<u64> {
        match self {
            World::Mpi(mpi) => Ok(mpi.tell(number)),
            World::Nccl(world, _) => world.tell(number).map_err(|error| self.lost(&error)),
        }
    }

    /// Every rank's number. All call this together.
    ///
    /// # Errors
    /// As [`World::tell`].
    pub fn gather(&self, number: u64) -> Result<Vec<u64>> {
        match self {
            World::Mpi(mpi) => Ok(mpi.gather(number)),
            World::Nccl(world, _) => world.gather(number).map_err(|error| self.lost(&error)),
        }
    }

    /// Ends the job of all ranks. MPI ends this process too; otherwise it gives the error that this one ends with.
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
