//! The flags of a Ballista cluster's processes.

use std::path::PathBuf;

use clap::Args as Group;

/// Where a process of a Ballista cluster listens.
#[derive(Group)]
pub struct Listen {
    /// Address to listen on. Who reaches it can read what this process can: keep to networks of trust.
    #[arg(long, default_value = "127.0.0.1")]
    pub bind: std::net::IpAddr,
    /// Name or address under which the other processes reach this one; --bind if not given.
    #[arg(long)]
    pub host: Option<String>,
}

/// `fathom curate scheduler`.
#[derive(Group)]
pub struct Scheduler {
    /// Where it listens.
    #[command(flatten)]
    pub listen: Listen,
    /// Port.
    #[arg(long, default_value_t = 50050)]
    pub port: u16,
}

/// `fathom curate executor`.
#[derive(Group)]
pub struct Executor {
    /// Where it listens.
    #[command(flatten)]
    pub listen: Listen,
    /// Port; the next one is used as well.
    #[arg(long, default_value_t = 50051)]
    pub port: u16,
    /// Address of the scheduler.
    #[arg(long, value_name = "URL", default_value = "df://localhost:50050")]
    pub scheduler: String,
    /// Folder of its own for results between stages and spills.
    #[arg(long, value_name = "DIR", default_value = "out/executor")]
    pub work_dir: PathBuf,
    /// Tasks at a time; 0 for all cores.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Memory of all tasks together, e.g. 24GiB; 70 % of the machine's if not given.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
}
