//! Models for the stages that ask one. This crate knows none: whoever runs a pipeline hands in what opens them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::{Classify, Embed, Score};

use crate::error::Error;

/// A model as a stage wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// Its Hugging Face folder.
    pub folder: PathBuf,
    /// Most tokens that it sees at once.
    pub context_tokens: usize,
    /// Threads of its machine.
    pub threads: usize,
}

/// What a stage asks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// How likely a text is: a decoder.
    Text,
    /// Vectors: a decoder or an encoder.
    Vectors,
    /// Labels: an encoder with a classification head.
    Classes,
}

/// What a stage does with a model that embeds.
pub type WithEmbed<'a> = dyn FnMut(&mut dyn Embed) -> Result<(), Error> + 'a;

/// What a stage does with a model that scores.
pub type WithScore<'a> = dyn FnMut(&mut dyn Score) -> Result<(), Error> + 'a;

/// What a stage does with a model that classifies.
pub type WithClassify<'a> = dyn FnMut(&mut dyn Classify) -> Result<(), Error> + 'a;

/// Opens models. A model lives as long as the call that works with it, on the thread of the call; its machine has threads
/// of its own. Results must not depend on their number.
pub trait Models: Send + Sync {
    /// Looks whether a folder holds a model of this kind that can be opened, without reading its weights.
    ///
    /// # Errors
    /// What is wrong with the folder.
    fn check(&self, folder: &Path, kind: ModelKind) -> Result<(), Error>;

    /// Opens a model and calls `work` once with it.
    ///
    /// # Errors
    /// A model that cannot be opened, or what `work` says.
    fn with_embed(&self, settings: &ModelSettings, work: &mut WithEmbed<'_>) -> Result<(), Error>;

    /// Opens a model and calls `work` once with it.
    ///
    /// # Errors
    /// A model that cannot be opened, or what `work` says.
    fn with_score(&self, settings: &ModelSettings, work: &mut WithScore<'_>) -> Result<(), Error>;

    /// Opens a model and calls `work` once with it.
    ///
    /// # Errors
    /// A model that cannot be opened, or what `work` says.
    fn with_classify(&self, settings: &ModelSettings, work: &mut WithClassify<'_>) -> Result<(), Error>;
}

/// What a run offers to its stages.
#[derive(Clone)]
pub struct Tools {
    /// What opens models.
    pub(crate) models: Option<Arc<dyn Models>>,
    /// Threads of the run.
    pub threads: usize,
}

impl Tools {
    /// What opens models, for the stage that asks for the one in `folder`.
    ///
    /// # Errors
    /// This run has none.
    pub fn models(&self, folder: &Path) -> Result<&Arc<dyn Models>, Error> {
        Tools::offered(self.models.as_ref(), folder)
    }

    pub(crate) fn offered<'m>(
        models: Option<&'m Arc<dyn Models>>,
        folder: &Path,
    ) -> Result<&'m Arc<dyn Models>, Error> {
        models.ok_or_else(|| Error::Model {
            folder: folder.to_owned(),
            detail: "this program runs curations without models; `fathom curate` has them".to_owned(),
        })
    }
}
