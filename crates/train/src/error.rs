//! Errors at the edges of a run.

use std::path::PathBuf;

use fathom_base::human;
use fathom_base::recipe::Loaded;

use crate::plan::Resource;
use crate::recipe::Recipe;

/// Errors of a run. Everything saved before stays valid.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
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
        stage: String,
        of: Resource,
        needed_bytes: u64,
        budget_bytes: u64,
        /// The operation at the memory peak, if memory is short.
        peak_op: Option<String>,
        remedy: String,
    },
    /// Loss or gradient is not a number.
    #[error(
        "step {step}: loss {loss}, gradient norm {norm}: not finite. The update was skipped; {}. Lower optimizer.lr{}, or use \
         model.precision=\"f32\" to find the cause",
        saved.map_or("nothing was saved yet".into(), |saved| format!("the checkpoint of step {saved} is unharmed")),
        if *clipped { "" } else { ", set optimizer.clip=1.0" }
    )]
    NotFinite { step: u64, loss: f64, norm: f64, saved: Option<u64>, clipped: bool },
    /// A rank is gone, or ranks diverged.
    #[error(transparent)]
    Link(#[from] fathom_tensor::mesh::LinkError),
    /// Ranks that should have the same weights do not.
    #[error("step {step}: {}", corrupt_in_words(ranks, *known))]
    Corrupt {
        step: u64,
        /// The ranks that differ, or the candidates if it is unclear which of them do.
        ranks: Vec<usize>,
        known: bool,
    },
    /// A checkpoint could not be written.
    #[error("{0}")]
    Save(String),
    /// A collective operation failed on another rank.
    #[error("rank {rank}: {message}")]
    Rank { rank: usize, message: String },
    /// Values of a recipe that are not compatible.
    #[error("{key}: {message}")]
    Recipe { key: String, message: String },
    /// The run folder belongs to another recipe.
    #[error(
        "{path} was made by another recipe; give the same settings or another folder (run.out=FOLDER). What differs:\n{differences}"
    )]
    OtherRecipe { path: PathBuf, differences: String },
    /// A checkpoint cannot be used.
    #[error("{path}: {message}")]
    Checkpoint { path: PathBuf, message: String },
    /// Errors of files, recipes and the metrics log.
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
