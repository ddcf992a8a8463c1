//! What computes, looked at once.

mod found;
mod open;

use fathom_cuda::libs::{Probe, Search, probe};

pub use found::Machine;
pub use open::Opened;

/// All that there is of CUDA, for `fathom doctor`.
pub fn cuda() -> Probe {
    probe(&Search::from_environment(), true)
}

/// What libraries take of the first device outside a pool, if it was measured on such a device.
pub fn outside_pool_bytes() -> Option<u64> {
    fathom_cuda::driver::Real::describe(0)
        .ok()
        .and_then(|facts| fathom_cuda::profile(&facts).outside_pool_bytes)
}
