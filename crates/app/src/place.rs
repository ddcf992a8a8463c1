//! Resources that a rank shares with other ranks of its machine.

/// Resources that a rank shares with other ranks of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlace {
    /// Ranks of the run.
    pub ranks: usize,
    /// Index of the rank on its machine, from 0.
    pub local: usize,
    /// Ranks that run on the same cores.
    pub cores: usize,
    /// Ranks on the same machine.
    pub host: usize,
    /// Ranks that compute in the same memory: a device's, or the machine's.
    pub memory: usize,
    /// Ranks whose files are on the same disk.
    pub disk: usize,
}

impl RankPlace {
    /// Place in a run with one rank.
    pub const ALONE: RankPlace = RankPlace { ranks: 1, local: 0, cores: 1, host: 1, memory: 1, disk: 1 };
}
