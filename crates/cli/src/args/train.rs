//! Flags of `fathom train`.

use std::path::PathBuf;

use clap::{Args as Group, ValueEnum};
use fathom_base::ranks::{Claim, Setting};
use fathom_train::recipe::MachineKind;

/// `fathom train`.
#[derive(Group)]
pub struct Train {
    /// A shipped recipe's name, or a file.
    pub recipe: String,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// Folder of the run (`run.out`).
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Machine that computes (`machine.kind`).
    #[arg(long, value_enum)]
    pub machine: Option<On>,
    /// Only checks the recipe and prints its plan, like `fathom plan`.
    #[arg(long)]
    pub dry_run: bool,
    /// Allows rewards and environments to start the processes that they name.
    #[arg(long)]
    pub allow_processes: bool,
    /// Seed of an adversary between memory and disk, for tests (`machine.chaos`).
    #[arg(long, value_name = "SEED")]
    pub chaos: Option<u64>,
    /// The rank of this process.
    #[command(flatten)]
    pub rank: Rank,
}

/// Machine that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// A GPU if there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; otherwise an error that names what is missing.
    Cuda,
}

impl On {
    /// Machine kind in a recipe.
    pub fn kind(self) -> MachineKind {
        match self {
            On::Auto => MachineKind::Auto,
            On::Cpu => MachineKind::Cpu,
            On::Cuda => MachineKind::Cuda,
        }
    }
}

/// Rank of this process, if no launcher sets it.
#[derive(Group, Default)]
pub struct Rank {
    /// Rank of this process, from 0; default: what the launcher set.
    #[arg(long)]
    pub rank: Option<usize>,
    /// Number of ranks.
    #[arg(long)]
    pub world_size: Option<usize>,
    /// Rank of this process among those of its machine, from 0.
    #[arg(long)]
    pub local_rank: Option<usize>,
    /// Address of rank 0.
    #[arg(long, value_name = "HOST:PORT")]
    pub rendezvous: Option<String>,
}

impl Rank {
    /// The flags as a source for the resolver.
    pub fn claim(&self) -> Claim {
        let number = |value: Option<usize>, by: &str| value.map(|value| Setting { value, by: by.into() });
        Claim {
            rank: number(self.rank, "--rank"),
            world_size: number(self.world_size, "--world-size"),
            local_rank: number(self.local_rank, "--local-rank"),
            rendezvous: self.rendezvous.clone().map(|value| Setting { value, by: "--rendezvous".into() }),
            ..Claim::default()
        }
    }
}
