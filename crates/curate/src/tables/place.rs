//! Where whole tables are put in order: in this process, or on a cluster.

use std::path::Path;

use super::key_sorter::KeySorter;
use super::sort::KeySort;
use crate::error::Error;

/// The place where whole tables are sorted. The results are the same bytes everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TableEngine {
    /// This process.
    #[default]
    Embedded,
    /// The executors of a Ballista cluster. They, the scheduler and this process see the same files under the same paths.
    #[cfg(feature = "ballista")]
    Ballista {
        /// Address of the scheduler, `df://host:port`.
        scheduler: String,
    },
}

impl TableEngine {
    /// The cluster of this scheduler, `df://host:port`.
    ///
    /// # Errors
    /// Not such an address, or no server answers there.
    #[cfg(feature = "ballista")]
    pub fn ballista(scheduler: &str) -> Result<TableEngine, Error> {
        super::cluster::reach(scheduler)?;
        Ok(TableEngine::Ballista { scheduler: scheduler.to_owned() })
    }

    /// The sorter of keys at that place. In this process it takes `memory_bytes`, spills under `spill` and uses `threads` threads.
    ///
    /// # Errors
    /// A folder that cannot be made, or a scheduler that does not answer.
    pub(crate) fn key_sorter(
        &self,
        memory_bytes: u64,
        threads: usize,
        spill: &Path,
    ) -> Result<Box<dyn KeySorter>, Error> {
        match self {
            TableEngine::Embedded => Ok(Box::new(KeySort::new(memory_bytes, threads, spill)?)),
            #[cfg(feature = "ballista")]
            TableEngine::Ballista { scheduler } => {
                Ok(Box::new(super::plans::keys(scheduler, memory_bytes, spill)?))
            }
        }
    }
}
