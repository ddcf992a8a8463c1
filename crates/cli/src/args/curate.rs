//! Arguments of `fathom curate`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand, ValueEnum};
use fathom_app::library;

use super::cluster::{Executor, Scheduler};
use super::quality::TrainQuality;

/// `fathom curate`.
#[derive(Group)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = library::curations())]
pub struct Curate {
    /// A subcommand instead of a run.
    #[command(subcommand)]
    pub verb: Option<CurateVerb>,
    /// A shipped recipe's name, or a file.
    #[arg(required = true)]
    pub recipe: Option<String>,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// Folder of the curation (`out`).
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Index of this process among those that share the folder, from 0; default: the index of the Slurm array or
    /// Kubernetes Job.
    #[arg(long)]
    pub rank: Option<usize>,
    /// Number of processes; default: the size of the Slurm array, else the variable WORLD_SIZE.
    #[arg(long)]
    pub world_size: Option<usize>,
    /// Seconds to wait for other processes before a stage that needs the whole table.
    #[arg(long, default_value_t = 0.0)]
    pub wait: f64,
    /// Engine that sorts whole tables (a Ballista cluster needs the cargo feature `ballista`).
    #[arg(long, value_enum, default_value_t = Where::Embedded)]
    pub engine: Where,
    /// Address of the cluster's scheduler, such as df://localhost:50050.
    #[arg(long, value_name = "URL")]
    pub scheduler: Option<String>,
    /// Prints progress and result as JSON, one object per line.
    #[arg(long)]
    pub json: bool,
}

/// `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// In this process.
    Embedded,
    /// On a Ballista cluster.
    Ballista,
}

/// `fathom curate VERB`.
#[derive(Subcommand)]
pub enum CurateVerb {
    /// Queries the tables of a curation, named after its stages: select source, count(*) from heuristics group by
    /// source.
    Sql {
        /// The query.
        query: String,
        /// The folder of the curation.
        #[arg(long, default_value = "out/curated")]
        out: PathBuf,
        /// Prints one JSON object per row.
        #[arg(long)]
        json: bool,
    },
    /// Lists the stages that a recipe can use, or the options of one.
    Stages {
        /// The stage to document.
        name: Option<String>,
        /// Prints one JSON object per stage.
        #[arg(long)]
        json: bool,
    },
    /// Rewrites the report of a curation from its stats.json.
    Report {
        /// The folder of the curation.
        #[arg(default_value = "out/curated")]
        out: PathBuf,
    },
    /// Trains a fastText quality classifier, for the stage `quality`.
    TrainQuality(Box<TrainQuality>),
    /// Runs the scheduler of a Ballista cluster for `--engine ballista` (cargo feature `ballista`).
    Scheduler(Scheduler),
    /// Runs an executor of a Ballista cluster (cargo feature `ballista`).
    Executor(Executor),
}
