//! The machine of this process: its threads and its profile.

use fathom_tensor::Profile;

use crate::isa::Isa;
use crate::threads::Threads;

/// Processor cores with one thread pool.
pub struct Cpu {
    pub(crate) profile: Profile,
    pub(crate) threads: Threads,
    pub(crate) isa: Isa,
}
