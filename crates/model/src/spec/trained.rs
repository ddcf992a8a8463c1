//! Selects the weights that receive gradients; the others are frozen.

use regex::RegexSet;

use crate::weight::{Kind, WeightSpec};

/// A selection of weights, by name in files.
#[derive(Clone, Debug, Default)]
pub struct TrainableWeights {
    /// `None`: all, or only the adapter.
    pub(crate) patterns: Option<RegexSet>,
    /// Whether the adapter's weights are included.
    adapter: bool,
    /// Whether the score head is included, regardless of the patterns.
    scores: bool,
}

impl TrainableWeights {
    /// All weights.
    pub fn all() -> TrainableWeights {
        TrainableWeights::default()
    }

    /// Weights whose names in files match one of the regular expressions, such as `layers\\.3[01]\\.` or `lm_head`;
    /// all if there are none.
    ///
    /// # Errors
    /// A string that is not a regular expression.
    pub fn matching(patterns: &[String]) -> Result<TrainableWeights, String> {
        if patterns.is_empty() {
            return Ok(TrainableWeights::all());
        }
        let patterns = RegexSet::new(patterns).map_err(|error| error.to_string())?;
        Ok(TrainableWeights { patterns: Some(patterns), ..TrainableWeights::all() })
    }

    /// The model's adapter, and the weights that [`TrainableWeights::matching`] selects by these patterns, if any.
    ///
    /// # Errors
    /// Those of [`TrainableWeights::matching`].
    pub fn adapter(patterns: &[String]) -> Result<TrainableWeights, String> {
        Ok(TrainableWeights { adapter: true, ..TrainableWeights::matching(patterns)? })
    }

    /// Adds the score head: a new one, not part of the model that a run starts from.
    pub fn with_scores(self) -> TrainableWeights {
        TrainableWeights { scores: true, ..self }
    }

    /// The patterns of a selection by name.
    pub fn patterns(&self) -> &[String] {
        self.patterns.as_ref().map_or(&[], RegexSet::patterns)
    }

    /// Returns whether a pattern selects this name in files; false without patterns.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.patterns.as_ref().is_some_and(|patterns| patterns.is_match(name))
    }

    /// Returns whether a weight is selected by its kind, regardless of its name.
    pub(crate) fn takes(&self, weight: &WeightSpec<'_>) -> bool {
        (self.adapter && weight.kind == Kind::Adapter) || (self.scores && weight.is_scores())
    }

    /// Returns whether a weight other than an adapter's, with this name in files, is selected.
    pub(crate) fn keeps(&self, weight: &WeightSpec<'_>, name: &str) -> bool {
        self.names(name) || (self.scores && weight.is_scores())
    }

    /// Returns whether nothing is frozen.
    pub fn is_all(&self) -> bool {
        self.patterns.is_none() && !self.adapter
    }
}
