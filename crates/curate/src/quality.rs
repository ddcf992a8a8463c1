//! A fastText model of good text from files of good and of other text.

use std::path::{Path, PathBuf};

use crate::counters::Counters;
use crate::document::Document;
use crate::durable::refuse_special;
use crate::error::Error;
use crate::read::{ReadOptions, open};

pub use fathom_prose::language::{QualityReport, QualityTraining};

/// What a model of quality learns from.
#[derive(Clone, Debug)]
pub struct QualityExamples {
    /// Files and folders of good text.
    pub good: Vec<PathBuf>,
    /// Files and folders of text as it comes.
    pub other: Vec<PathBuf>,
    /// The label of good text, as the stage `quality` asks for it.
    pub label: String,
    /// The label of other text.
    pub other_label: String,
    /// At most so many documents of either kind, the first ones.
    pub most: Option<u64>,
    /// How the files are read.
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

/// Trains a model on `examples` and writes it to `out` (`.bin`); also says what of the files could not be read.
///
/// # Errors
/// Paths that cannot be read or hold no text, labels that are the same or lack fastText's `__label__`, and those of
/// [`fathom_prose::language::train_quality`].
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
