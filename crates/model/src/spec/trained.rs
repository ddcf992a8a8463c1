//! Which weights of a model receive gradients; the others are frozen.

use regex::RegexSet;

use crate::weight::{Kind, WeightSpec};

/// A choice of weights, by their names in files.
#[derive(Clone, Debug, Default)]
pub struct Trained {
    /// `None`: all, or the adapter alone.
    pub(crate) patterns: Option<RegexSet>,
    /// Those of the model's adapter.
    adapter: bool,
    /// The head of scores, whatever the patterns say of it.
    scores: bool,
}

impl Trained {
    /// All weights.
    pub fn all() -> Trained {
        Trained::default()
    }

    /// Weights whose names in files contain a match of one of the regular expressions, as `layers\\.3[01]\\.` or `lm_head`; all, if
    /// there are none.
    ///
    /// # Errors
    /// What is no regular expression.
    pub fn matching(patterns: &[String]) -> Result<Trained, String> {
        if patterns.is_empty() {
            return Ok(Trained::all());
        }
        let patterns = RegexSet::new(patterns).map_err(|error| error.to_string())?;
        Ok(Trained { patterns: Some(patterns), ..Trained::all() })
    }

    /// The model's adapter, and the weights that [`Trained::matching`] means by these patterns if there are any.
    ///
    /// # Errors
    /// As there.
    pub fn adapter(patterns: &[String]) -> Result<Trained, String> {
        Ok(Trained { adapter: true, ..Trained::matching(patterns)? })
    }

    /// The same and the head of scores: a new one, which is no weight of the model that a run starts from.
    pub fn with_scores(self) -> Trained {
        Trained { scores: true, ..self }
    }

    /// The patterns of a choice by names.
    pub fn patterns(&self) -> &[String] {
        self.patterns.as_ref().map_or(&[], RegexSet::patterns)
    }

    /// Whether a weight of this name in files is one of a choice; false without a choice.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.patterns.as_ref().is_some_and(|patterns| patterns.is_match(name))
    }

    /// Whether a weight is chosen by what it does, whatever files call it.
    pub(crate) fn takes(&self, weight: &WeightSpec<'_>) -> bool {
        (self.adapter && weight.kind == Kind::Adapter) || (self.scores && weight.is_scores())
    }

    /// Whether a weight that is none of an adapter's is chosen, which files call so.
    pub(crate) fn keeps(&self, weight: &WeightSpec<'_>, name: &str) -> bool {
        self.names(name) || (self.scores && weight.is_scores())
    }

    /// Nothing is frozen.
    pub fn is_all(&self) -> bool {
        self.patterns.is_none() && !self.adapter
    }
}
