//! Flags of verbs for many processes and machines.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args as Group, Subcommand, ValueEnum};
use fathom_base::ranks::{Claim, Setting};

/// This process among the ranks, if no launcher says so.
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
    /// As a source for the resolver.
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

/// `fathom doctor`.
#[derive(Group)]
pub struct Doctor {
    /// Instead: who this process is among others, by every launcher's variables, and which one decides.
    #[arg(long)]
    pub dist: bool,
    /// One JSON object a line; with --dist one in all.
    #[arg(long)]
    pub json: bool,
    /// Writes a profile of this machine with the rates that were measured, for machine.profile.
    #[arg(long, value_name = "FILE", conflicts_with = "dist")]
    pub out: Option<PathBuf>,
    /// With --dist: what would be said on the command line.
    #[command(flatten)]
    pub rank: Rank,
}

/// `fathom launch`.
#[derive(Subcommand)]
pub enum Launch {
    /// A script for sbatch: a process for each rank, started by srun.
    Slurm(Slurm),
    /// A manifest for kubectl: an Indexed Job, or Kubeflow's TrainJob.
    Kubernetes(Kubernetes),
    /// Ranks on this machine: processes of mpirun, or threads.
    Local(Local),
}

/// Options of every kind of job.
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
    /// Prints what would be submitted.
    #[arg(long, required_unless_present = "submit", conflicts_with = "submit")]
    pub print: bool,
    /// Submits it, or runs it here.
    #[arg(long)]
    pub submit: bool,
    /// The program `fathom` on the machines that run it.
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Maximum number of restarts of a job that saved something before it failed.
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

/// Machines and what each has.
#[derive(Group)]
pub struct Machines {
    /// Number of machines.
    #[arg(long, default_value_t = 1, value_parser = count())]
    pub nodes: usize,
    /// Ranks on each; --gpus-per-node if not given, else all ranks of the recipe's mesh spread over the machines.
    #[arg(long, value_parser = count())]
    pub ranks_per_node: Option<usize>,
    /// Accelerators of each.
    #[arg(long, value_parser = count())]
    pub gpus_per_node: Option<usize>,
    /// Processor cores for each rank.
    #[arg(long, value_parser = count())]
    pub cpus_per_rank: Option<usize>,
    /// Seconds that a job has to save when its time runs out (slurm) or a pod is evicted (kubernetes): more than a step and a checkpoint
    /// take together.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub grace: u32,
}

/// `fathom launch slurm`.
#[derive(Group)]
pub struct Slurm {
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// Where it runs.
    #[command(flatten)]
    pub machines: Machines,
    /// Longest time, as sbatch takes it: 4:00:00 or 2-00:00:00. --grace before its end the job saves and queues again.
    #[arg(long)]
    pub time: Option<String>,
    /// Partition.
    #[arg(long)]
    pub partition: Option<String>,
    /// Account.
    #[arg(long)]
    pub account: Option<String>,
}

/// Kinds of Kubernetes objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Manifest {
    /// An Indexed Job with its headless service; Kubernetes alone is enough.
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
    /// Where it runs.
    #[command(flatten)]
    pub machines: Machines,
    /// What is written.
    #[arg(long = "as", value_enum, default_value_t = Manifest::Job)]
    pub manifest: Manifest,
    /// Container image with this program; also with Open MPI where ranks have a GPU each, and with Open MPI and an ssh server for
    /// several machines.
    #[arg(long)]
    pub image: String,
    /// Namespace; kubectl's own if not given.
    #[arg(long)]
    pub namespace: Option<String>,
    /// A claim for a volume that all pods share; the run's folder is put on it. Several machines need one, and a run on one
    /// that is to outlive its pod.
    #[arg(long, value_name = "CLAIM")]
    pub volume: Option<String>,
    /// Memory of a pod, e.g. 64Gi.
    #[arg(long)]
    pub memory: Option<String>,
}

/// `fathom launch local`.
#[derive(Group)]
pub struct Local {
    /// The job.
    #[command(flatten)]
    pub job: Job,
    /// Ranks as threads of one process even where processes can be had.
    #[arg(long)]
    pub threads: bool,
}

/// `fathom supervise`.
#[derive(Group)]
pub struct Supervise {
    /// Folder of the run; found in the command if that is a `fathom train`.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// The job is a server that answers here, e.g. http://127.0.0.1:8000/health/ready: it is started again when it is silent, too.
    #[arg(long, value_name = "URL", conflicts_with = "out")]
    pub ready: Option<String>,
    /// Seconds without an answer after which a server that was ready is ended and started again.
    #[arg(long, default_value_t = 10.0, requires = "ready")]
    pub silent: f64,
    /// Seconds that a server has until its first answer.
    #[arg(long, default_value_t = 600.0, requires = "ready")]
    pub starting: f64,
    /// Maximum number of restarts.
    #[arg(long, default_value_t = 10)]
    pub max_restarts: u32,
    /// Maximum number of consecutive restarts without a new checkpoint, or without being ready.
    #[arg(long, default_value_t = 1)]
    pub patience: u32,
    /// Seconds before the first restart without a new checkpoint; each further one in a row waits twice as long, up to a minute.
    #[arg(long, default_value_t = 1.0)]
    pub backoff: f64,
    /// The job: anything that ends when one of its ranks does, such as mpirun or srun --kill-on-bad-exit.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}
