//! Training of a fastText quality classifier from files of good and of other text.

use std::path::{Path, PathBuf};

use crate::counters::Counters;
use crate::document::Document;
use crate::durable::refuse_special;
use crate::error::Error;
use crate::read::{ReadOptions, open};

pub use fathom_prose::language::{QualityReport, QualityTraining};

/// Training data of a quality classifier.
#[derive(Clone, Debug)]
pub struct QualityExamples {
    /// Files and folders of good text.
    pub good: Vec<PathBuf>,
    /// Files and folders of ordinary text.
    pub other: Vec<PathBuf>,
    /// Label of good text; the stage `quality` refers to it.
    pub label: String,
    /// Label of other text.
    pub other_label: String,
    /// Maximum number of documents per class, taken from the start.
    pub most: Option<u64>,
    /// Reader options of the files.
    pub read: ReadOptions,
}

impl Default for QualityExamples {
    fn default() -> Self {
        QualityExamples {
            good: Vec::new(),
            other: Vec::new(),
            label: "__label__hq".to_owned(),
            other_label: "__label__cc".to_owned(),
            most: None,
            read: ReadOptions::default(),
        }
    }
}

/// Trains a classifier on `examples` and writes it to `out` (`.bin`); also returns the counters of unreadable
/// records.
///
/// # Errors
/// Paths cannot be read or hold no text, the labels are equal or lack fastText's `__label__`, or
/// [`fathom_prose::language::train_quality`] fails.
pub fn train_quality(
    examples: &QualityExamples,
    options: &QualityTraining,
    out: &Path,
) -> Result<(QualityReport, Counters), Error> {
    let refused = |key, found: &str, advice: &str| {
        Err(Error::Setting { key, found: found.to_owned(), advice: advice.to_owned() })
    };
    for (key, label) in [("label", &examples.label), ("other_label", &examples.other_label)] {
        if !label.starts_with("__label__") || label.contains(char::is_whitespace) {
            return refused(
                key,
                label,
                "a label begins with `__label__` and has no space, as in __label__hq",
            );
        }
    }
    if examples.label == examples.other_label {
        return refused(
            "other_label",
            &examples.other_label,
            "it is that of good text; give it another name",
        );
    }
    refuse_special(out)?;
    let most = examples.most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let mut good = open(&examples.good, &examples.read)?;
    let mut other = open(&examples.other, &examples.read)?;
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder).map_err(|e| Error::write("create", folder, e))?;
    }
    let (label, other_label) = (&examples.label, &examples.other_label);
    let of = |label| move |document: Result<Document, Error>| document.map(|document| (label, document.text));
    let all = good.by_ref().take(most).map(of(label)).chain(other.by_ref().take(most).map(of(other_label)));
    let report = fathom_prose::language::train_quality(options, all, out)?;
    let counters = good.counters().clone().then(other.counters());
    Ok((report, counters))
}
