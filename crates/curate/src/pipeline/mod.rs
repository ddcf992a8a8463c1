//! `fathom curate`: runs a recipe as a list of stages over tables of documents.
//!
//! [`Pipeline::new`] checks a [`Recipe`] and divides its stages into segments; [`Pipeline::run`] does the remaining
//! work.
//!
//! ```text
//! OUT/recipe.toml                      the recipe with every option, and where each value came from
//! OUT/00-quality/part-00000.parquet    the table behind the stages read .. quality, one part for each input unit
//! OUT/00-quality/part-00000.json       what it was made from and what each stage did
//! OUT/01-exact/...                     the table behind the next stage
//! OUT/01-exact/table.json              what a stage over the whole table did
//! OUT/stats.json                       the account of everything
//! OUT/seconds/rank-0.jsonl             how long it took
//! ```
//!
//! Consecutive row-wise stages ([`Stage`]) are fused: a batch passes through all of them in memory. Whole-table
//! stages ([`Barrier`]) read all parts and write new ones; sinks write files for other programs. Three guarantees
//! hold:
//!
//! - Output does not depend on the number of threads or processes, nor on when a run was killed and resumed. Only
//!   `stats.json` and `seconds/` contain times.
//! - Memory holds a bounded number of batches, whatever the size of a file.
//! - A lost record is counted with a reason, never fatal and never silent. A file that cannot be read for a transient
//!   reason is not lost: its part is not made, the others are, and the next run tries again.
//!
//! Output of an earlier run is reused only if its bytes still match the hash in its manifest.

mod barrier;
mod batch;
mod claim;
mod crew;
mod env;
mod folder;
mod functions;
mod histogram;
mod manifest;
mod models;
mod option_docs;
mod options;
mod ordered;
mod ordered_parts;
mod part;
mod plan;
mod readiness;
mod recipe;
mod remarks;
mod report;
mod rows;
mod run;
mod runner;
mod share_files;
mod shares;
mod stage;
mod stats;
mod tally;
mod units;
mod verify;

pub use barrier::{Batches, Change, Documents, Job, PartsWriter, Text};
pub use batch::{Batch, COLUMNS};
pub use env::{OnLine, OnProgress, Progress, Rank, RunOptions, Stop};
pub use functions::{Functions, KEEP};
pub use histogram::Histogram;
pub use manifest::{Manifest, TableManifest, TablePart};
pub use models::{ModelKind, ModelSettings, Models, Tools, WithClassify, WithEmbed, WithScore};
pub use option_docs::{ChoiceDoc, OptionDoc};
pub use options::Mistake;
pub use part::PartFacts;
pub use plan::{Pipeline, StageName, stage_kinds};
pub use recipe::{Input, Recipe, StageSpec, refuse_secrets};
pub use report::{report_page, save_page};
pub use rows::RowSet;
pub use run::Outcome;
pub use share_files::ShareOf;
pub use stage::{Barrier, Stage, Work};
pub use stats::{StageStats, Stats, TableStats};
pub use tally::{Cluster, Sample, Score, Tally};
pub use verify::FileFacts;

pub use crate::read::OnRead;

pub(crate) use manifest::{KeyHasher, parts_of};
pub(crate) use option_docs::option_docs;
pub(crate) use options::read as read_options;
pub(crate) use part::PartReader;
pub(crate) use plan::refuse;
pub(crate) use units::{chosen as chosen_units, split_name};
