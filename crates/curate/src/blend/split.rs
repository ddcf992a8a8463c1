//! Assignment of documents to training, validation or test by id.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::error::Error;

/// Which share of the documents goes where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SplitOptions {
    /// Share of the documents for validation; with `test` at most 1.
    #[schemars(range(min = 0, max = 1))]
    pub validation: f64,
    /// Share of the documents for test.
    #[schemars(range(min = 0, max = 1))]
    pub test: f64,
    /// Another seed gives another division; none takes the recipe's.
    pub seed: Option<u64>,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { validation: 0.01, test: 0.01, seed: None }
    }
}

/// A split of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitPart {
    /// Training documents.
    Train,
    /// Documents for evaluation during training.
    Validation,
    /// Documents for one final evaluation.
    Test,
}

impl SplitPart {
    /// Name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            SplitPart::Train => "train",
            SplitPart::Validation => "validation",
            SplitPart::Test => "test",
        }
    }
}

/// Assigns documents to splits by id alone: a document keeps its split when the corpus grows, and a larger validation
/// share only adds documents to validation.
#[derive(Clone, Debug)]
pub struct Split {
    seed: u64,
    validation: f64,
    test: f64,
}

impl Split {
    /// Checks the shares and creates the split.
    ///
    /// # Errors
    /// A share is outside 0 to 1, or both together are above 1.
    pub fn new(options: &SplitOptions) -> Result<Self, Error> {
        let SplitOptions { validation, test, seed } = *options;
        let share = |share: f64| (0.0..=1.0).contains(&share);
        if !share(validation) || !share(test) || validation + test > 1.0 {
            return Err(Error::Setting {
                key: if share(test) { "validation" } else { "test" },
                found: format!("validation {validation}, test {test}"),
                advice: "both are shares from 0 to 1, and together at most 1".into(),
            });
        }
        Ok(Self { seed: seed.unwrap_or(0), validation, test })
    }

    /// Returns the split of a document.
    pub fn part(&self, id: &str) -> SplitPart {
        let hash = XxHash3_64::oneshot_with_seed(self.seed, id.as_bytes());
        let place = (hash >> 11) as f64 / (1u64 << 53) as f64;
        // Validation is at the lower end and test at the upper, so that both can grow.
        match () {
            () if place < self.validation => SplitPart::Validation,
            () if place >= 1.0 - self.test => SplitPart::Test,
            () => SplitPart::Train,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_stable() {
        let split = |validation, test, seed| {
            Split::new(&SplitOptions { validation, test, seed: Some(seed) }).unwrap()
        };
        let (small, large, other) = (split(0.05, 0.1, 1), split(0.2, 0.1, 1), split(0.05, 0.1, 2));
        let mut counts = [0; 3];
        let mut moved = 0;
        for number in 0..20_000 {
            let id = format!("file.jsonl#{number}");
            let part = small.part(&id);
            counts[part as usize] += 1;
            if part != SplitPart::Train {
                assert_eq!(large.part(&id), part);
            }
            moved += usize::from(other.part(&id) != part);
        }
        assert!((900..1100).contains(&counts[1]) && (1850..2150).contains(&counts[2]), "{counts:?}");
        assert!(moved > 4000);
        assert_eq!(split(0.0, 0.0, 0).part("x"), SplitPart::Train);
        assert_eq!(split(1.0, 0.0, 0).part("x"), SplitPart::Validation);
        assert_eq!(split(0.0, 1.0, 0).part("x"), SplitPart::Test);
    }

    #[test]
    fn impossible_shares_are_named() {
        for (validation, test) in [(-0.1, 0.0), (0.0, 1.1), (0.6, 0.6), (f64::NAN, 0.0)] {
            let error = Split::new(&SplitOptions { validation, test, seed: None }).unwrap_err().to_string();
            assert!(error.contains("shares from 0 to 1"), "{error}");
        }
    }
}
