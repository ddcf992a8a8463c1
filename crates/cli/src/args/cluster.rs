//! The flags of a Ballista cluster's processes.

use std::path::PathBuf;

use clap::Args as Group;

/// Listening address of a process of a Ballista cluster.
#[derive(Group)]
pub struct Listen {
    /// Address to listen at. Anyone who can reach it can read what this process can: use trusted networks only.
    #[arg(long, default_value = "127.0.0.1")]
    pub bind: std::net::IpAddr,
    /// Name or address under which other processes reach this one; default: --bind.
    #[arg(long)]
    pub host: Option<String>,
}

/// `fathom curate scheduler`.
#[derive(Group)]
pub struct Scheduler {
    /// Listening address.
    #[command(flatten)]
    pub listen: Listen,
    /// Port to listen at.
    #[arg(long, default_value_t = 50050)]
    pub port: u16,
}

/// `fathom curate executor`.
#[derive(Group)]
pub struct Executor {
    /// Listening address.
    #[command(flatten)]
    pub listen: Listen,
    /// Port to listen at; the next one is used as well.
    #[arg(long, default_value_t = 50051)]
    pub port: u16,
    /// Address of the scheduler.
    #[arg(long, value_name = "URL", default_value = "df://localhost:50050")]
    pub scheduler: String,
    /// Private folder for intermediate results and spills.
    #[arg(long, value_name = "DIR", default_value = "out/executor")]
    pub work_dir: PathBuf,
    /// Concurrent tasks; 0 for one per core.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Memory limit of all tasks together, such as 24GiB; default: 70 % of the machine's.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
}
