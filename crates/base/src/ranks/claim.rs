//! Values that a source sets for a process, each with the variable or flag that sets it.

use std::collections::BTreeMap;

use serde::Serialize;

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// A value with the variable or flag that sets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Name of the variable or flag.
    pub by: String,
}

/// The values that a source sets for a process. All numbers are counted from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// Rank of the process.
    pub rank: Option<Setting<usize>>,
    /// Number of ranks.
    pub world_size: Option<Setting<usize>>,
    /// Rank among the processes on the same machine.
    pub local_rank: Option<Setting<usize>>,
    /// Number of ranks on the same machine.
    pub local_world_size: Option<Setting<usize>>,
    /// Index of the machine.
    pub node: Option<Setting<usize>>,
    /// Number of machines.
    pub nodes: Option<Setting<usize>>,
    /// `host:port` of the first rank.
    pub rendezvous: Option<Setting<String>>,
}
