//! Errors at the edges of a run.

use std::path::PathBuf;

use fathom_base::human;
use fathom_base::recipe::Loaded;

use crate::plan::Resource;
use crate::recipe::Recipe;

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
        /// The resource that is short.
        of: Resource,
        /// Planned peak.
        needed_bytes: u64,
        /// Budget.
        budget_bytes: u64,
        /// The operation at the memory peak, if memory is short.
        peak_op: Option<String>,
        /// A remedy.
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
        /// True if gradients are clipped.
        clipped: bool,
    },
    /// A rank is gone, or ranks diverged.
    #[error(transparent)]
    Link(#[from] fathom_tensor::mesh::LinkError),
    /// Ranks that should have the same weights do not.
    #[error("step {step}: {}", corrupt_in_words(ranks, *known))]
    Corrupt {
        /// The step in which this was found.
        step: u64,
        /// The ranks that differ, or the candidates if it is unclear which of them do.
        ranks: Vec<usize>,
        /// True if the differing ranks are known.
        known: bool,
    },
    /// A checkpoint could not be written.
    #[error("{0}")]
    Save(String),
    /// A collective operation failed on another rank.
    #[error("rank {rank}: {message}")]
    Rank {
        /// The rank that failed.
        rank: usize,
        /// Its message.
        message: String,
    },
    /// Values of a recipe that are not compatible.
    #[error("{key}: {message}")]
    Recipe {
        /// The key.
        key: String,
        /// The fault and a remedy.
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
        /// The reason.
        message: String,
    },
    /// The file system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Errors of recipes and the metrics log.
    #[error(transparent)]
    Base(#[from] fathom_base::Error),
    /// Errors of stores and tokenizers.
    #[error(transparent)]
    Text(#[from] fathom_text::Error),
    /// Errors of weights and their files.
    #[error(transparent)]
    Model(#[from] fathom_model::Error),
    /// Errors of reports and traces.
    #[error(transparent)]
    Report(#[from] fathom_report::Error),
    /// Errors of the disk spill of activations.
    #[error(transparent)]
    Spill(#[from] fathom_tensor::spill::Error),
    /// Error of a hook of the program around the run.
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

/// `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn refuse(loaded: &Loaded<Recipe>, key: &str, message: impl Into<String>) -> Result<()> {
    Err(loaded.refuse(key, message).into())
}
