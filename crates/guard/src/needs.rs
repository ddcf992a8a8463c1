//! Traits for the needs of rails from outside this crate; the caller implements them.

use std::path::PathBuf;
use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_base::{Result, Service};

use crate::verdict::Finding;

/// Models by name or folder.
pub trait Models: Send + Sync {
    /// The service of a model, loaded if it is not running yet; the same one for the same name.
    ///
    /// # Errors
    /// There is no such model.
    fn service(&self, name: &str) -> Result<Arc<dyn Service>>;
}

/// A finder of personal data of given kinds.
pub trait PersonalDataFinder: Send + Sync {
    /// Findings in ascending order without overlaps, each with its kind as configured.
    fn find(&self, text: &str) -> Vec<Finding>;

    /// Offset before which no later text changes what is found in a growing text: mostly the beginning of its last word,
    /// or of the number that its end belongs to. The caller limits how far back it lies.
    fn first_open(&self, text: &str) -> usize;
}

/// Options of a finder of personal data.
#[derive(Clone, Debug, Default)]
pub struct PersonalDataOptions {
    /// Kinds, by the names of [`PersonalData::kinds`].
    pub kinds: Vec<String>,
    /// Countries (ISO 3166, two letters) whose telephone numbers are found in their national form.
    pub phone_countries: Vec<String>,
    /// Numbers count that have the form of their kind, without a word near them that names it.
    pub without_context: bool,
}

/// Detectors of personal data.
pub trait PersonalData: Send + Sync {
    /// Names of all kinds, as written in configurations.
    fn kinds(&self) -> Vec<&'static str>;

    /// A finder of some kinds.
    ///
    /// # Errors
    /// An unknown kind or country.
    fn finder(&self, options: &PersonalDataOptions) -> Result<Box<dyn PersonalDataFinder>>;
}

/// Identification of languages.
pub trait Languages: Send + Sync {
    /// ISO 639-1 code of a text's language with a score from 0 to 1; `None` if it has none.
    fn identify(&self, text: &str) -> Option<(String, f64)>;
}

/// Everything that rails need; a rail whose need is missing is refused by name when a configuration is loaded.
#[derive(Clone, Default)]
pub struct Needs {
    /// Models by name.
    pub models: Option<Arc<dyn Models>>,
    /// Detectors of personal data.
    pub personal_data: Option<Arc<dyn PersonalData>>,
    /// Identification of languages.
    pub languages: Option<Arc<dyn Languages>>,
    /// Clock of time limits, rates and breakers.
    pub clock: Clock,
    /// Folder of the configuration, to which relative paths refer.
    pub folder: PathBuf,
}
