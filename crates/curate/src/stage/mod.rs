//! The stages that a recipe can name: thin types over what the rest of this crate does to one text or one table.

mod asked;
mod classify;
mod corpus;
mod dedup;
mod extract;
mod model;
mod order;
mod perplexity;
mod rows;
mod semantic;
mod text;
mod tokenize;
mod write;

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::pipeline::{Mistake, Work, field_names, read_options};

/// A kind of stage, as `use` names it.
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Makes the stage from the options as written, and gives all options with their defaults.
    pub(crate) build: fn(&BTreeMap<String, toml::Value>) -> Built,
    fields: fn() -> Vec<&'static str>,
    defaults: fn() -> toml::Table,
}

/// A stage with its options; the inner error is a mistake in the options.
pub(crate) type Built = Result<Result<(Work, toml::Table), Mistake>, Error>;

/// How a kind is made from its options.
trait Maker {
    type Options: Default + Serialize + DeserializeOwned;
    const NAME: &'static str;
    const ABOUT: &'static str;

    /// The stage.
    fn make(options: Self::Options) -> Result<Work, Error>;
}

impl Kind {
    const fn of<M: Maker>() -> Kind {
        Kind {
            name: M::NAME,
            about: M::ABOUT,
            build: build::<M>,
            fields: field_names::<M::Options>,
            defaults: defaults::<M>,
        }
    }
}

impl Kind {
    /// Its options and their defaults, as TOML; an option that is unset has `"none"`.
    pub fn defaults(&self) -> Vec<(String, String)> {
        let defaults = (self.defaults)();
        let of = |name: &&str| defaults.get(*name).map_or("\"none\"".to_owned(), ToString::to_string);
        (self.fields)().iter().map(|name| ((*name).to_owned(), of(name))).collect()
    }
}

fn defaults<M: Maker>() -> toml::Table {
    toml::Table::try_from(M::Options::default()).unwrap_or_default()
}

fn build<M: Maker>(written: &BTreeMap<String, toml::Value>) -> Built {
    let (options, table) = match read_options::<M::Options>(written) {
        Ok(read) => read,
        Err(mistake) => return Ok(Err(mistake)),
    };
    match M::make(options) {
        Ok(work) => Ok(Ok((work, table))),
        // The stage itself refused a value; the recipe's place is told with it.
        Err(Error::Setting { key, found, advice }) => {
            let message = format!("{found} cannot be; {advice}");
            Ok(Err(Mistake { key: key.to_string(), message }))
        }
        Err(Error::Option { key, found, advice, .. }) => {
            Ok(Err(Mistake { key, message: format!("{found} cannot be; {advice}") }))
        }
        Err(error) => Err(error),
    }
}

/// Every kind, in the order of a usual recipe.
pub(crate) fn kinds() -> &'static [Kind] {
    const KINDS: &[Kind] = &[
        Kind::of::<extract::Extract>(),
        Kind::of::<text::Clean>(),
        Kind::of::<text::Languages>(),
        Kind::of::<rows::Length>(),
        Kind::of::<text::Heuristics>(),
        Kind::of::<text::Code>(),
        Kind::of::<text::Quality>(),
        Kind::of::<classify::Classify>(),
        Kind::of::<perplexity::Perplexity>(),
        Kind::of::<text::Personal>(),
        Kind::of::<rows::Head>(),
        Kind::of::<dedup::Exact>(),
        Kind::of::<dedup::Fuzzy>(),
        Kind::of::<dedup::Bloom>(),
        Kind::of::<dedup::Substrings>(),
        Kind::of::<semantic::Semantic>(),
        Kind::of::<corpus::Decontaminate>(),
        Kind::of::<corpus::BlendSources>(),
        Kind::of::<order::Shuffle>(),
        Kind::of::<corpus::SplitRows>(),
        Kind::of::<write::WriteFiles>(),
        Kind::of::<tokenize::Tokenize>(),
    ];
    KINDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_knows_its_options_and_reads_its_own_defaults() {
        for kind in kinds() {
            let defaults = kind.defaults();
            let written = |(key, value): &(String, String)| {
                let table: toml::Table = toml::from_str(&format!("x = {value}")).unwrap();
                (key.clone(), table["x"].clone())
            };
            let built = (kind.build)(&defaults.iter().map(written).collect());
            // A model that is not named cannot be loaded, and no weights blend nothing; everything else must stand.
            match built {
                Ok(Err(mistake)) => {
                    let without = ["quality", "classify", "perplexity", "semantic", "blend"];
                    assert!(without.contains(&kind.name), "{}: {mistake:?}", kind.name);
                }
                Ok(Ok((_, table))) => assert!(table.len() <= defaults.len(), "{}: {table}", kind.name),
                Err(error) => panic!("{}: {error}", kind.name),
            }
        }
    }
}
