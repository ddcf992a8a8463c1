//! Hardware of a job, probed once.

mod found;
mod open;

use fathom_cuda::libs::{Probe, Search, probe};

pub use found::Machine;
pub use open::RankGpu;

/// Probes all CUDA devices and libraries, for `fathom doctor`.
pub fn cuda() -> Probe {
    probe(&Search::from_environment(), true)
}

/// Returns the bytes that libraries take on the first device outside a pool, if that was measured for this type of
/// device.
pub fn outside_pool_bytes() -> Option<u64> {
    fathom_cuda::driver::Real::describe(0)
        .ok()
        .and_then(|facts| fathom_cuda::profile(&facts).outside_pool_bytes)
}
