//! Row-wise stages over text: cleaning, languages, personal data, quality models.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{Float32Array, StringArray};
use fathom_prose::clean::{CleanOptions, Cleaner};
use fathom_prose::language::{Language, LanguageDetector, LanguageOptions, QualityModel, QualityOptions};
use fathom_prose::pii::{Pii, PiiOptions};

use super::kind::Maker;
use super::option_names;
use crate::error::Error;
use crate::pipeline::{Batch, Stage, Tally, Work};

/// Repairs and cleans texts.
pub(super) struct Clean(Cleaner);

impl Maker for Clean {
    type Options = CleanOptions;
    const NAME: &'static str = "clean";
    const ABOUT: &'static str =
        "repairs Unicode, shortens runs of newlines; on request removes URLs, Markdown, boilerplate";

    fn make(options: CleanOptions) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(Clean(Cleaner::new(&options)))))
    }
}

impl Stage for Clean {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let texts: Vec<Cow<'_, str>> = (0..batch.rows()).map(|row| self.0.clean(batch.text(row))).collect();
        with_texts(&batch, &texts, "empty_after_cleaning", tally)
    }
}

/// Replaces the texts of a batch; rows whose text became blank are dropped.
pub(super) fn with_texts(
    batch: &Batch,
    texts: &[Cow<'_, str>],
    reason: &str,
    tally: &mut Tally,
) -> Result<Batch, Error> {
    let keep: Vec<bool> = texts.iter().map(|text| !text.trim().is_empty()).collect();
    let mut changed = 0u64;
    for (row, text) in texts.iter().enumerate() {
        let before = batch.text(row);
        if !keep[row] {
            tally.drop(reason, before.len() as u64);
        }
        if matches!(text, Cow::Owned(_)) && before != text.as_ref() {
            tally.count("changed", "documents changed", before.len() as u64);
            changed += 1;
        }
    }
    let same = |(row, text): (usize, &Cow<'_, str>)| text.len() == batch.text(row).len();
    if changed == 0 && texts.iter().enumerate().all(same) {
        return Ok(batch.clone().keep(&keep));
    }
    Ok(batch.clone().with_texts(texts).keep(&keep))
}

/// Redacts, replaces or hashes personal data.
pub(super) struct Personal(Pii);

impl Maker for Personal {
    type Options = PiiOptions;
    const NAME: &'static str = "pii";
    const ABOUT: &'static str = "redacts, replaces or hashes personal data";

    fn make(options: PiiOptions) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(Personal(Pii::new(&options)?))))
    }
}

impl Stage for Personal {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let mut texts = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let text = batch.text(row);
            let found = self.0.find(text);
            if !found.is_empty() {
                tally.score("detections", found.len() as f64);
            }
            for found in &found {
                tally.count("detections", found.entity.mark(), (found.end - found.start) as u64);
            }
            texts.push(self.0.rewrite(text, &found));
        }
        with_texts(&batch, &texts, "empty_after_redaction", tally)
    }
}

/// Detects the language of each text and keeps the wanted ones.
pub(super) struct Languages(LanguageDetector, LanguageOptions);

impl Maker for Languages {
    type Options = LanguageOptions;
    const NAME: &'static str = "language";
    const ABOUT: &'static str =
        "finds languages (columns language, language_score) and keeps the wanted ones";

    fn make(options: LanguageOptions) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(Languages(LanguageDetector::new(&options)?, options))))
    }
}

impl Languages {
    /// Reason to drop a text in this language, following [`LanguageDetector::check`], with the language kept here.
    fn refusal(&self, found: Option<&Language>) -> Option<&'static str> {
        let wanted = &self.1.languages;
        match found {
            None => Some("language_unknown"),
            Some(found) if found.score < self.1.min_score => Some("min_score"),
            Some(found) if !wanted.is_empty() && !wanted.iter().any(|name| found.is(name)) => {
                Some("languages")
            }
            Some(_) => None,
        }
    }
}

impl Stage for Languages {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let limits = [f64::from(self.1.min_score)];
        let mut keep = Vec::with_capacity(batch.rows());
        let (mut labels, mut scores) = (Vec::new(), Vec::new());
        for row in 0..batch.rows() {
            let (id, text) = (batch.id(row), batch.text(row));
            let found = self.0.detect(text);
            let refusal = self.refusal(found.as_ref());
            let (label, score) = found.map_or((String::from("unknown"), 0.0), |f| (f.label(), f.score));
            tally.count("language", &label, text.len() as u64);
            let by_score = refusal.is_none_or(|reason| reason == "min_score");
            if by_score {
                tally.decided("language_score", f64::from(score), &limits, refusal.is_none(), (id, text));
            } else {
                tally.score("language_score", f64::from(score));
            }
            if let Some(reason) = refusal {
                tally.drop(reason, text.len() as u64);
            }
            keep.push(refusal.is_none());
            labels.push(label);
            scores.push(score);
        }
        let labels = Arc::new(StringArray::from(labels));
        let scores = Arc::new(Float32Array::from(scores));
        Ok(batch.with_column("language", labels).with_column("language_score", scores).keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.1.model.iter().cloned().collect()
    }
}

/// Filters texts by a fastText quality classifier.
pub(super) struct Quality(QualityModel, QualityOptions);

impl Maker for Quality {
    type Options = QualityOptions;
    const NAME: &'static str = "quality";
    const ABOUT: &'static str = "scores texts by a fastText model (column quality) and keeps the good ones";

    fn make(options: QualityOptions) -> Result<Work, Error> {
        if options.model.as_os_str().is_empty() {
            let advice = "name a fastText model (.bin)".to_owned();
            return Err(Error::Setting { key: "model", found: "empty".to_owned(), advice });
        }
        Ok(Work::Rows(Box::new(Quality(QualityModel::new(&options)?, options))))
    }
}

impl Stage for Quality {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let limits: Vec<f64> = self.1.threshold().into_iter().map(f64::from).collect();
        let mut keep = Vec::with_capacity(batch.rows());
        let mut scores = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            let document = (batch.id(row), batch.text(row));
            let verdict = self.0.check(document.0, document.1);
            let score = verdict.unwrap_or_else(|refusal| refusal.value as f32);
            tally.decided("quality", f64::from(score), &limits, verdict.is_ok(), document);
            if let Err(refusal) = verdict {
                tally.drop(option_names::of_quality(refusal.reason), document.1.len() as u64);
            }
            keep.push(verdict.is_ok());
            scores.push(score);
        }
        Ok(batch.with_column("quality", Arc::new(Float32Array::from(scores))).keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.1.model.clone()]
    }
}
