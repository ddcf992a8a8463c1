//! Models used by stages. This crate implements none; the caller of a pipeline passes in a loader.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::{Classify, Embed, LanguageModel};

use super::functions::Functions;
use crate::error::Error;

/// Settings of a model used by a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// Its Hugging Face folder.
    pub folder: PathBuf,
    /// Maximum context length in tokens.
    pub context_tokens: usize,
    /// Number of threads for the model.
    pub threads: usize,
}

/// Capability that a stage requires of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Likelihood of a text: a decoder.
    Text,
    /// Embedding vectors: a decoder or an encoder.
    Vectors,
    /// Class labels: an encoder with a classification head.
    Classes,
}

/// Callback of a stage that uses an embedding model.
pub type WithEmbed<'a> = dyn FnMut(&mut dyn Embed) -> Result<(), Error> + 'a;

/// Callback of a stage that uses a scoring model.
pub type WithScore<'a> = dyn FnMut(&dyn LanguageModel) -> Result<(), Error> + 'a;

/// Callback of a stage that uses a classifier.
pub type WithClassify<'a> = dyn FnMut(&mut dyn Classify) -> Result<(), Error> + 'a;

/// Loads models. A model lives as long as the call that uses it, on the calling thread, with compute threads of its
/// own. Results must not depend on their number.
pub trait Models: Send + Sync {
    /// Checks that a folder holds a loadable model of this kind, without reading its weights.
    ///
    /// # Errors
    /// The folder holds no such model; the error describes the problem.
    fn check(&self, folder: &Path, kind: ModelKind) -> Result<(), Error>;

    /// Loads an embedding model and calls `work` once with it.
    ///
    /// # Errors
    /// The model cannot be loaded, or `work` fails.
    fn with_embed(&self, settings: &ModelSettings, work: &mut WithEmbed<'_>) -> Result<(), Error>;

    /// Loads a scoring model and calls `work` once with it.
    ///
    /// # Errors
    /// The model cannot be loaded, or `work` fails.
    fn with_score(&self, settings: &ModelSettings, work: &mut WithScore<'_>) -> Result<(), Error>;

    /// Loads a classifier and calls `work` once with it.
    ///
    /// # Errors
    /// The model cannot be loaded, or `work` fails.
    fn with_classify(&self, settings: &ModelSettings, work: &mut WithClassify<'_>) -> Result<(), Error>;
}

/// Resources that a run offers to its stages.
#[derive(Clone)]
pub struct Tools {
    /// Model loader.
    pub(crate) models: Option<Arc<dyn Models>>,
    /// Functions of the program around the run.
    pub(crate) functions: Option<Arc<dyn Functions>>,
    /// Number of threads of the run.
    pub threads: usize,
}

impl Tools {
    /// Model loader, for a stage that needs the model in `folder`.
    ///
    /// # Errors
    /// The run has no model loader.
    pub fn models(&self, folder: &Path) -> Result<&Arc<dyn Models>, Error> {
        Tools::offered(self.models.as_ref(), folder)
    }

    /// Functions of the program around the run, if it has any.
    pub fn functions(&self) -> Option<&Arc<dyn Functions>> {
        self.functions.as_ref()
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
