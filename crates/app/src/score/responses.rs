//! The three log-likelihoods that SteerLM 2 trains on, written one at a time, since one comes from an attribute model
//! and the others from language models.

use std::f64::consts::TAU;

use fathom_base::{LanguageModel, Numbers, choice};
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::lessons::{Lesson, Reads, responses};
use serde_json::{Map, Value, json};

use crate::error::{Result, refuse};

choice! {
    /// Which likelihood of a row's answers.
    pub enum Likelihood {
        /// Log-probability of the row's label, given an answer, by a reward model: `log(P(a|x,y))`.
        Attributes = "attributes",
        /// Log-probability of an answer without the label, by a language model: `log(P(y|x))`.
        Answer = "answer",
        /// Log-probability of an answer behind the label, by the language model that wrote it: `log(Q(y|a,x))`.
        Labelled = "labelled",
    }
}

impl Likelihood {
    /// Returns the key of the likelihood in a response, named as in NeMo-Aligner.
    pub fn key(self) -> &'static str {
        match self {
            Likelihood::Attributes => "log(P(a|x,y))",
            Likelihood::Answer => "log(P(y|x))",
            Likelihood::Labelled => "log(Q(y|a,x))",
        }
    }
}

/// Likelihood to compute for each row.
pub(super) struct Asks<'a> {
    pub which: Likelihood,
    /// Names of a reward model's scores.
    pub names: &'a [String],
    /// Standard deviation of ratings around its scores.
    pub deviation: f64,
}

impl Asks<'_> {
    /// Refuses a model that cannot compute the likelihood.
    pub fn check(&self, scores: usize) -> Result<()> {
        let Asks { which, names, deviation } = *self;
        match which {
            Likelihood::Attributes if scores == 0 => {
                refuse!(
                    "--responses attributes asks a reward model (fathom train reward), and this is a language model"
                )
            }
            Likelihood::Attributes if names.is_empty() => {
                refuse!("--responses attributes needs the names of the scores: --labels NAME,..")
            }
            Likelihood::Attributes if !(deviation > 0.0 && deviation.is_finite()) => {
                refuse!("--deviation {deviation}: give a number above 0")
            }
            Likelihood::Answer | Likelihood::Labelled if scores > 0 => {
                refuse!("--responses {which} asks a language model, and this is a reward model")
            }
            Likelihood::Answer | Likelihood::Labelled if !names.is_empty() => {
                refuse!("--labels are of --responses attributes; leave them out")
            }
            _ => Ok(()),
        }
    }

    /// Adds the likelihood to each response of a row.
    ///
    /// # Errors
    /// A message about what the row lacks.
    pub fn write(
        &self,
        model: &dyn LanguageModel,
        (tokenizer, template): (&Tokenizer, Option<&Template>),
        row: &mut Map<String, Value>,
    ) -> std::result::Result<(), String> {
        let reads = match self.which {
            Likelihood::Attributes => Reads::Judged,
            Likelihood::Answer => Reads::Plain,
            Likelihood::Labelled => Reads::Labelled,
        };
        let documents = responses(row, (tokenizer, template), reads)?;
        let ids: Vec<Vec<u32>> = documents.iter().map(|document| document.ids.clone()).collect();
        let found: Vec<f64> = if self.which == Likelihood::Attributes {
            let Some(label) = row.get("label").and_then(Value::as_str) else {
                return Err("has no `label`, as helpfulness:4,verbosity:1".into());
            };
            let scores = model.look(&ids, Numbers::Scores).map_err(|error| error.to_string())?;
            let of = |scores: &Vec<f32>| density(label, (self.names, scores), self.deviation);
            scores.iter().map(of).collect::<std::result::Result<_, _>>()?
        } else {
            let rows = model.look(&ids, Numbers::Logprobs).map_err(|error| error.to_string())?;
            documents.iter().zip(&rows).map(|(document, row)| likelihood(document, row)).collect()
        };
        let list = row.get_mut("responses").and_then(Value::as_array_mut);
        for (response, found) in list.into_iter().flatten().zip(found) {
            response[self.which.key()] = json!(found);
        }
        Ok(())
    }
}

/// Returns the sum of the log-probabilities of a row's target tokens ([`Numbers::Logprobs`]).
fn likelihood(document: &Lesson, row: &[f32]) -> f64 {
    let logprobs = row.iter().step_by(2);
    let learned = document.weights.iter().skip(1).zip(logprobs).filter(|(weight, _)| **weight > 0.0);
    learned.map(|(_, logprob)| f64::from(*logprob)).sum()
}

/// Returns the log-density of a label's ratings around a reward model's scores: normal distributions with one standard
/// deviation, whose negative log-likelihood is the squared error that such models minimize.
///
/// # Errors
/// A message about a malformed label, or one that names an unknown score.
fn density(
    label: &str,
    (names, scores): (&[String], &[f32]),
    deviation: f64,
) -> std::result::Result<f64, String> {
    let part = |part: &str| {
        let rating =
            part.split_once(':').and_then(|(name, rating)| Some((name, rating.trim().parse::<f64>().ok()?)));
        let Some((name, rating)) = rating.filter(|(_, rating)| rating.is_finite()) else {
            return Err(format!(
                "has a `label` with `{part}`, which is no name and number, as helpfulness:4"
            ));
        };
        let Some(at) = names.iter().position(|other| other == name.trim()) else {
            return Err(format!("has a `label` with `{name}`, and --labels names {}", names.join(", ")));
        };
        let far = (rating - scores.get(at).copied().map_or(f64::NAN, f64::from)) / deviation;
        Ok(-far * far / 2.0 - (deviation * TAU.sqrt()).ln())
    };
    label.split(',').map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratings_are_normal_around_scores() {
        let names = ["help".to_string(), "length".to_string()];
        let of = |label: &str, deviation| density(label, (&names, &[3.0, 1.0]), deviation);
        let constant = TAU.sqrt().ln();
        for (label, deviation, want) in [
            ("help:3", 1.0, -constant),
            ("length:3", 1.0, -2.0 - constant),
            ("length:2, help:1", 2.0, -0.125 - 0.5 - 2.0 * (constant + 2.0f64.ln())),
        ] {
            assert!((of(label, deviation).unwrap() - want).abs() < 1e-12, "{label}");
        }
        assert!(of("humor:1", 1.0).unwrap_err().contains("`humor`"));
        assert!(of("help", 1.0).unwrap_err().contains("no name and number"));
        assert!(of("help:high", 1.0).is_err());
    }

    #[test]
    fn an_answer_is_as_likely_as_its_tokens() {
        let lesson = Lesson { ids: vec![1, 2, 3, 4], weights: vec![1.0, 0.0, 1.0, 1.0], ..Lesson::default() };
        assert_eq!(likelihood(&lesson, &[-0.5, 0.0, -1.0, 1.0, -0.25, 0.0]), -1.25);
    }
}
