//! The folder of a run's checkpoints.

use std::path::PathBuf;

use super::base::Base;

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    pub(crate) folder: PathBuf,
    pub(super) keep: usize,
    /// The base model that holds the weights that are not trained.
    pub(crate) base: Option<Base>,
}

/// The file that names the newest checkpoint.
pub(super) const LATEST: &str = "LATEST";

/// The next `LATEST`, until the checkpoint that it names is published.
pub(super) const NEXT: &str = ".LATEST.next";
