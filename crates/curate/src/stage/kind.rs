//! A kind of stage: its name, its options, and how it is made from them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::pipeline::{Mistake, OptionDoc, Work, option_docs, read_options};

/// A kind of stage, named by `use`.
pub struct Kind {
    /// Name of the kind.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Builds the stage from the options as written, and returns all options with their defaults.
    pub(crate) build: fn(&BTreeMap<String, toml::Value>) -> StageResult,
    options: fn() -> Vec<OptionDoc>,
}

/// A stage with its options; the inner error is a mistake in the options.
pub(crate) type StageResult = Result<Result<(Work, toml::Table), Mistake>, Error>;

/// Constructor of a kind of stage.
pub(super) trait Maker {
    type Options: Default + Serialize + DeserializeOwned + JsonSchema;
    const NAME: &'static str;
    const ABOUT: &'static str;

    /// Builds the stage.
    fn make(options: Self::Options) -> Result<Work, Error>;

    /// Options that replace the defaults of unset ones, depending on those written.
    fn preset(_written: &BTreeMap<String, toml::Value>) -> Option<Self::Options> {
        None
    }
}

impl Kind {
    pub(super) const fn of<M: Maker>() -> Kind {
        Kind { name: M::NAME, about: M::ABOUT, build: build::<M>, options: option_docs::<M::Options> }
    }
}

impl Kind {
    /// Options in declaration order: defaults, accepted values and descriptions.
    pub fn options(&self) -> Vec<OptionDoc> {
        (self.options)()
    }

    /// All options of a stage of this kind, given those written; the inner error is a mistake in them.
    ///
    /// # Errors
    /// A file or model cannot be loaded.
    pub fn read(
        &self,
        written: &BTreeMap<String, toml::Value>,
    ) -> Result<Result<toml::Table, Mistake>, Error> {
        Ok((self.build)(written)?.map(|(_, table)| table))
    }

    /// Returns true if the kind has an option `seed` that is unset by default.
    pub(crate) fn takes_seed(&self) -> bool {
        self.options().iter().any(|option| option.name == "seed" && option.default == "\"none\"")
    }
}

pub(super) fn build<M: Maker>(written: &BTreeMap<String, toml::Value>) -> StageResult {
    let mut written = written.clone();
    let preset = M::preset(&written).and_then(|options| toml::Table::try_from(options).ok());
    for (key, value) in preset.unwrap_or_default() {
        // Also matches one written as `key.inner`.
        if !written.keys().any(|path| path.split('.').next() == Some(&key)) {
            written.insert(key, value);
        }
    }
    let (options, table) = match read_options::<M::Options>(&written) {
        Ok(read) => read,
        Err(mistake) => return Ok(Err(mistake)),
    };
    match M::make(options) {
        Ok(work) => Ok(Ok((work, table))),
        // The stage itself rejected a value; the place in the recipe is added.
        Err(Error::Setting { key, found, advice }) => {
            Ok(Err(Mistake { key: key.to_string(), message: refusal(&found, &advice) }))
        }
        Err(
            Error::Option { key, found, advice, .. }
            | Error::Prose(fathom_prose::Error::Option { key, found, advice, .. }),
        ) => Ok(Err(Mistake { key, message: refusal(&found, &advice) })),
        Err(error) => Err(error),
    }
}

/// Message for an invalid value; `nothing` and `empty` denote values that were never set, `hidden` one that a saved
/// recipe does not show.
pub(super) fn refusal(found: &str, advice: &str) -> String {
    match found {
        "nothing" | "empty" => format!("it is not set; {advice}"),
        "hidden" => format!("it is not in this file, since it is secret; {advice}"),
        found => format!("{found} cannot be; {advice}"),
    }
}
