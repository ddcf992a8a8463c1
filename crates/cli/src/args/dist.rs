//! Flags of verbs for many processes and machines.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args as Group, Subcommand, ValueEnum};

use super::Rank;

/// `fathom doctor`.
#[derive(Group)]
pub struct Doctor {
    /// Prints instead the rank of this process by every launcher's variables, and which launcher decides.
    #[arg(long)]
    pub dist: bool,
    /// Prints one JSON object per line; with --dist a single one.
    #[arg(long)]
    pub json: bool,
    /// Writes a profile of this machine with the measured rates, for machine.profile.
    #[arg(long, value_name = "FILE", conflicts_with = "dist")]
    pub out: Option<PathBuf>,
    /// Rank flags to resolve, for --dist.
    #[command(flatten)]
    pub rank: Rank,
}

/// `fathom launch`.
#[derive(Subcommand)]
pub enum Launch {
    /// Writes or submits a script for sbatch: a process for each rank, started by srun.
    Slurm(Slurm),
    /// Writes or submits a manifest for kubectl: an Indexed Job, or Kubeflow's TrainJob.
    Kubernetes(Kubernetes),
    /// Runs ranks on this machine: processes of mpirun, or threads.
    Local(Local),
}

/// Flags of every kind of job.
#[derive(Group)]
pub struct Job {
    /// A shipped recipe's name, or a file that every machine can read.
    pub recipe: String,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// Folder of the run (`run.out`).
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Prints the job without submitting it.
    #[arg(long, required_unless_present = "submit", conflicts_with = "submit")]
    pub print: bool,
    /// Submits the job, or runs it here.
    #[arg(long)]
    pub submit: bool,
    /// Path of `fathom` on the machines that run the job.
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Maximum number of restarts after a failure, of a job that has saved a checkpoint.
    #[arg(long, default_value_t = 10)]
    pub max_restarts: u32,
}

impl Job {
    /// The recipe's keys, including the run's folder.
    pub fn keys(&self) -> Vec<String> {
        let out = self.out.as_ref().map(|out| format!("run.out={}", out.display()));
        self.settings.iter().cloned().chain(out).collect()
    }
}

/// Range of counts in a job.
fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=65_536)
}

/// Machines and their resources.
#[derive(Group)]
pub struct Machines {
    /// Number of machines.
    #[arg(long, default_value_t = 1, value_parser = count())]
    pub nodes: usize,
    /// Ranks on each machine; default: --gpus-per-node, else the ranks of the recipe's mesh divided by --nodes.
    #[arg(long, value_parser = count())]
    pub ranks_per_node: Option<usize>,
    /// GPUs of each machine.
    #[arg(long, value_parser = count())]
    pub gpus_per_node: Option<usize>,
    /// Processor cores for each rank.
    #[arg(long, value_parser = count())]
    pub cpus_per_rank: Option<usize>,
    /// Seconds for saving when the time runs out (slurm) or a pod is evicted (kubernetes): more than a step and a
    /// checkpoint take together.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub grace: u32,
}

/// `fathom launch slurm`.
#[derive(Group)]
pub struct Slurm {
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// Machines to run on.
    #[command(flatten)]
    pub machines: Machines,
    /// Time limit in sbatch's format, such as 4:00:00 or 2-00:00:00. The job saves and queues again --grace seconds
    /// before it.
    #[arg(long)]
    pub time: Option<String>,
    /// Slurm partition.
    #[arg(long)]
    pub partition: Option<String>,
    /// Slurm account.
    #[arg(long)]
    pub account: Option<String>,
}

/// Kubernetes objects to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Manifest {
    /// An Indexed Job with its headless service; needs only Kubernetes.
    Job,
    /// A TrainJob of Kubeflow Trainer v2 with its runtime.
    Trainjob,
}

/// `fathom launch kubernetes`.
#[derive(Group)]
pub struct Kubernetes {
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// Machines to run on.
    #[command(flatten)]
    pub machines: Machines,
    /// Kind of manifest.
    #[arg(long = "as", value_enum, default_value_t = Manifest::Job)]
    pub manifest: Manifest,
    /// Container image with `fathom`; also with Open MPI if each rank has a GPU, and with Open MPI and an ssh server
    /// for several machines.
    #[arg(long)]
    pub image: String,
    /// Namespace; default: kubectl's.
    #[arg(long)]
    pub namespace: Option<String>,
    /// Claim of a volume that all pods share, for the run's folder. Required for several machines, and for a run that
    /// is to outlive its pod.
    #[arg(long, value_name = "CLAIM")]
    pub volume: Option<String>,
    /// Memory of a pod, such as 64Gi.
    #[arg(long)]
    pub memory: Option<String>,
}

/// `fathom launch local`.
#[derive(Group)]
pub struct Local {
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// Runs ranks as threads of one process even if processes are possible.
    #[arg(long)]
    pub threads: bool,
}

/// `fathom supervise`.
#[derive(Group)]
pub struct Supervise {
    /// Folder of the run; default: that of the command's `fathom train`.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// URL at which the job, a server, answers, such as http://127.0.0.1:8000/health/ready; it is also restarted if it
    /// is silent.
    #[arg(long, value_name = "URL", conflicts_with = "out")]
    pub ready: Option<String>,
    /// Seconds without an answer after which a server that was ready is restarted.
    #[arg(long, default_value_t = 10.0, requires = "ready")]
    pub silent: f64,
    /// Seconds until a server's first answer.
    #[arg(long, default_value_t = 600.0, requires = "ready")]
    pub starting: f64,
    /// Maximum number of restarts.
    #[arg(long, default_value_t = 10)]
    pub max_restarts: u32,
    /// Maximum number of restarts in a row without a new checkpoint or a ready server.
    #[arg(long, default_value_t = 1)]
    pub patience: u32,
    /// Seconds before the first restart without a new checkpoint; each further one in a row waits twice as long, up to
    /// a minute.
    #[arg(long, default_value_t = 1.0)]
    pub backoff: f64,
    /// Command of the job, which must end when one of its ranks does, such as mpirun or srun --kill-on-bad-exit.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}
