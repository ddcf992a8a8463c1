//! What can go wrong at the edges of a run.

use std::path::PathBuf;

use fathom_base::human;

use crate::plan::Resource;

/// Errors of a run. Everything saved before stays valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan says that a stage does not fit.
    #[error(
        "stage `{stage}` needs {} of {of} and the budget is {}{}. {remedy}",
        human::bytes(*needed_bytes),
        human::bytes(*budget_bytes),
        peak_op.as_ref().map_or(String::new(), |op| format!("; its memory peaks in {op}"))
    )]
    DoesNotFit {
        /// Name of the stage.
        stage: String,
        /// Of what it needs too much.
        of: Resource,
        /// Planned peak of it.
        needed_bytes: u64,
        /// What there is.
        budget_bytes: u64,
        /// Where memory peaks, if that is short.
        peak_op: Option<String>,
        /// What would make it fit.
        remedy: String,
    },
    /// Loss or gradient is not a number.
    #[error(
        "step {step}: loss {loss}, gradient norm {norm}: not finite. The update was skipped; {}. Lower optimizer.lr{}, or use \
         model.precision=\"f32\" to find the cause",
        saved.map_or("nothing was saved yet".into(), |saved| format!("the checkpoint of step {saved} is unharmed")),
        if *clipped { "" } else { ", set optimizer.clip=1.0" }
    )]
    NotFinite {
        /// The step.
        step: u64,
        /// Mean loss.
        loss: f64,
        /// Gradient norm.
        norm: f64,
        /// The step of the last checkpoint.
        saved: Option<u64>,
        /// Whether gradients are clipped.
        clipped: bool,
    },
    /// A rank is gone, or ranks went apart.
    #[error(transparent)]
    Link(#[from] fathom_tensor::mesh::LinkError),
    /// Ranks that should have the same weights do not.
    #[error("step {step}: {}", corrupt_in_words(ranks, *known))]
    Corrupt {
        /// The step that was being made.
        step: u64,
        /// Who is odd, or those among whom that cannot be said.
        ranks: Vec<usize>,
        /// Whether it can.
        known: bool,
    },
    /// A checkpoint could not be written.
    #[error("{0}")]
    Save(String),
    /// A collective operation failed on another rank.
    #[error("rank {rank}: {message}")]
    Rank {
        /// Which.
        rank: usize,
        /// What it says.
        message: String,
    },
    /// A recipe's values do not go together.
    #[error("{key}: {message}")]
    Recipe {
        /// The key.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// The run folder belongs to another recipe.
    #[error(
        "{path} was made by another recipe; give the same settings or another folder (run.out=FOLDER). What differs:\n{differences}"
    )]
    OtherRecipe {
        /// The run folder.
        path: PathBuf,
        /// One line per key.
        differences: String,
    },
    /// A checkpoint cannot be used.
    #[error("{path}: {message}")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The file system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// From recipes and the metrics log.
    #[error(transparent)]
    Base(#[from] fathom_base::Error),
    /// From stores and tokenizers.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
    /// From weights and their files.
    #[error(transparent)]
    Model(#[from] fathom_model::Error),
    /// From reports and traces.
    #[error(transparent)]
    Report(#[from] fathom_report::Error),
    /// From the disk behind activations.
    #[error(transparent)]
    Spill(#[from] fathom_tensor::spill::Error),
    /// From a hook of the program around the run.
    #[error(transparent)]
    Hook(Box<dyn std::error::Error + Send + Sync>),
}

fn corrupt_in_words(ranks: &[usize], known: bool) -> String {
    if known {
        format!(
            "the weights of rank {ranks:?} are not those of the other ranks with the same part of the model: its memory or a link has flipped bits"
        )
    } else {
        format!(
            "ranks {ranks:?} should have the same weights and do not; which of them is wrong is unknown, so the run ends. Resume from the last checkpoint, and test these ranks' memory"
        )
    }
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, Error>;
