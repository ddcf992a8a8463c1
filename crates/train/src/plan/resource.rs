//! A resource with a budget.

use std::fmt;

/// A resource with a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The machine's memory.
    Memory,
    /// The host's memory.
    Host,
    /// Disk.
    Disk,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Memory => "memory",
            Resource::Host => "the host's memory",
            Resource::Disk => "disk",
        })
    }
}
