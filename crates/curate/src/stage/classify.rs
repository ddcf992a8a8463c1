//! Classification by an encoder (domain, quality, education, safety): BERT, RoBERTa and DeBERTa architectures.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, StringArray};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use super::model;
use super::model_client::ModelClient;
use crate::error::Error;
use crate::pipeline::{Batch, ModelKind, ModelSettings, Stage, Tally, Tools, Work};

/// Options of `classify`. Defaults are those of NeMo Curator's quality classifier but for `max_tokens`, which most encoders have
/// positions for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyOptions {
    /// The classifier: a Hugging Face folder of BERT's, RoBERTa's or DeBERTa's kind.
    pub model: PathBuf,
    /// The column for the most likely label; the column of this name with the suffix `_score` gets its score.
    pub column: String,
    /// Only texts with one of these labels go on; an empty list keeps all.
    pub keep: Vec<String>,
    /// Texts whose label has a lower score are dropped; of a model that gives one number, texts with a lower one. None for
    /// no limit.
    pub min: Option<f64>,
    /// Texts with a higher score are dropped. None for no limit.
    pub max: Option<f64>,
    /// Adds the column of this name with the suffix `_scores`: a JSON object with the score of each label.
    pub scores: bool,
    /// Only this many characters of a text are read, the first ones (NeMo Curator's quality classifier: 6000).
    pub max_chars: usize,
    /// Only this many of their tokens are read, including the two that frame a text; most encoders have positions for 512.
    #[schemars(range(min = 3))]
    pub max_tokens: usize,
}

impl Default for ClassifyOptions {
    fn default() -> Self {
        ClassifyOptions {
            model: PathBuf::new(),
            column: "class".to_owned(),
            keep: Vec::new(),
            min: None,
            max: None,
            scores: false,
            max_chars: 6000,
            max_tokens: 512,
        }
    }
}

/// Adds the label and its score, and drops unwanted texts.
pub(super) struct Classify {
    options: ClassifyOptions,
    folder: PathBuf,
    limits: Vec<f64>,
    /// Maps texts to the model's labels and each text's scores.
    model: ModelClient<Vec<String>, Classification>,
}

/// Output of a model for some texts.
struct Classification {
    labels: Arc<[String]>,
    /// Scores per text, one per label.
    scores: Vec<Vec<f32>>,
}

impl Maker for Classify {
    type Options = ClassifyOptions;
    const NAME: &'static str = "classify";
    const ABOUT: &'static str =
        "adds the column class and its score, by an encoder; drops other labels and scores";

    fn make(options: ClassifyOptions) -> Result<Work, Error> {
        let refuse =
            |key, found: String, advice: &str| Err(Error::Setting { key, found, advice: advice.to_owned() });
        if options.max_tokens < 3 {
            let advice = "a text is framed by two tokens: choose at least 3";
            return refuse("max_tokens", options.max_tokens.to_string(), advice);
        }
        if options.column.is_empty() || crate::pipeline::COLUMNS.contains(&options.column.as_str()) {
            let advice = "name a column that is not there yet, as `class`";
            return refuse("column", format!("`{}`", options.column), advice);
        }
        if let (Some(min), Some(max)) = (options.min, options.max)
            && min > max
        {
            return refuse("min", min.to_string(), "it is above `max`, so no text could pass");
        }
        let folder = model::folder(&options.model)?;
        let limits = options.min.into_iter().chain(options.max).collect();
        Ok(Work::Rows(Box::new(Classify {
            model: ModelClient::new(folder.clone()),
            options,
            folder,
            limits,
        })))
    }
}

impl Stage for Classify {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let beginning = |row| beginning(batch.text(row), self.options.max_chars).to_owned();
        let texts: Vec<String> = (0..batch.rows()).map(beginning).collect();
        // Empty batches are processed before the model is loaded, and must have the same columns.
        let Classification { labels, scores } = if texts.is_empty() {
            Classification { labels: Arc::new([]), scores: Vec::new() }
        } else {
            self.model.ask(texts)?
        };
        let best: Vec<(usize, f32)> = scores.iter().map(|row| best(row)).collect();
        let mut keep = Vec::with_capacity(batch.rows());
        for (row, (label, score)) in best.iter().enumerate() {
            let reason = self.reason(&labels[*label], f64::from(*score));
            let text = batch.text(row);
            let document = (batch.id(row), text);
            tally.decided(&self.options.column, f64::from(*score), &self.limits, reason.is_none(), document);
            if let Some(reason) = reason {
                tally.drop(reason, text.len() as u64);
            }
            keep.push(reason.is_none());
        }
        let column = &self.options.column;
        let names: ArrayRef =
            Arc::new(StringArray::from_iter_values(best.iter().map(|best| &labels[best.0])));
        let of_best: ArrayRef = Arc::new(Float32Array::from_iter_values(best.iter().map(|best| best.1)));
        let mut batch = batch.with_column(column, names).with_column(&format!("{column}_score"), of_best);
        if self.options.scores {
            let all = scores.iter().map(|row| object(&labels, row));
            let all: ArrayRef = Arc::new(StringArray::from_iter_values(all));
            batch = batch.with_column(&format!("{column}_scores"), all);
        }
        Ok(batch.keep(&keep))
    }

    fn files(&self) -> Vec<PathBuf> {
        model::files(&self.folder)
    }

    fn models(&self) -> Vec<(PathBuf, ModelKind)> {
        vec![(self.folder.clone(), ModelKind::Classes)]
    }

    fn begin(&self, tools: &Tools) -> Result<(), Error> {
        let models = tools.models(&self.folder)?.clone();
        let settings = ModelSettings {
            folder: self.folder.clone(),
            context_tokens: self.options.max_tokens,
            threads: tools.threads,
        };
        let keep = self.options.keep.clone();
        self.model.begin(move |queue| {
            models.with_classify(&settings, &mut |model| {
                let labels: Arc<[String]> = model.labels().into();
                if let Some(other) = keep.iter().find(|label| !labels.contains(label)) {
                    let advice = format!("its labels are {}", labels.join(", "));
                    return Err(Error::Setting { key: "keep", found: format!("`{other}`"), advice });
                }
                queue.serve(|texts| {
                    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                    Ok(Classification { labels: labels.clone(), scores: model.classify(&texts)? })
                });
                Ok(())
            })
        })
    }

    fn end(&self) {
        self.model.end();
    }
}

impl Classify {
    /// Reason to drop a text.
    fn reason(&self, label: &str, score: f64) -> Option<&'static str> {
        let ClassifyOptions { keep, min, max, .. } = &self.options;
        if !keep.is_empty() && !keep.iter().any(|kept| kept == label) {
            return Some("keep");
        }
        // NaN counts as below every limit.
        if min.is_some_and(|min| score < min || score.is_nan()) {
            return Some("min");
        }
        max.is_some_and(|max| score > max).then_some("max")
    }
}

/// JSON object of labels and scores.
fn object(labels: &[String], scores: &[f32]) -> String {
    let entries = labels.iter().zip(scores).map(|(label, score)| (label.clone(), (*score).into()));
    serde_json::Value::Object(entries.collect()).to_string()
}

/// First `chars` characters.
fn beginning(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

/// Index and value of the highest score; ties go to the first.
fn best(scores: &[f32]) -> (usize, f32) {
    let first = (0, scores.first().copied().unwrap_or(f32::NAN));
    scores.iter().copied().enumerate().fold(first, |best, next| if next.1 > best.1 { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_best_and_whole_characters() {
        assert_eq!(best(&[0.1, 0.6, 0.6]), (1, 0.6));
        assert_eq!(best(&[-3.5]), (0, -3.5));
        assert_eq!((beginning("añb", 2), beginning("añb", 3), beginning("", 1)), ("añ", "añb", ""));
    }
}
