//! Interpretation of a classification head's logits.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::Config;
use crate::error::{Error, Result};

/// Interpretation of the labels' logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Exactly one label is true: softmax.
    OneOf,
    /// Labels are independent: sigmoid.
    EachOf,
    /// Regression: values as they are.
    Number,
}

impl Task {
    /// Reads `problem_type`; by default one label is a regression, and several exclude each other.
    pub(super) fn read(c: &Config<'_>, labels: usize) -> Result<Task> {
        let kind: Option<String> = c.nullable("problem_type", None)?;
        Task::named(kind.as_deref(), labels).map_err(|what| c.refuse("problem_type", what))
    }

    /// The same for any model's configuration; `file` is for messages.
    ///
    /// # Errors
    /// An unknown type.
    pub fn of_config(file: &Path, config: &Map<String, Value>, labels: usize) -> Result<Task> {
        let kind = config.get("problem_type").and_then(Value::as_str);
        Task::named(kind, labels).map_err(|what| Error::config(file, "problem_type", what))
    }

    fn named(kind: Option<&str>, labels: usize) -> std::result::Result<Task, String> {
        match kind {
            None if labels == 1 => Ok(Task::Number),
            None | Some("single_label_classification") => Ok(Task::OneOf),
            Some("multi_label_classification") => Ok(Task::EachOf),
            Some("regression") => Ok(Task::Number),
            Some(other) => {
                let known = "regression, single_label_classification, multi_label_classification";
                Err(format!("is \"{other}\"; supported: {known}"))
            }
        }
    }

    /// Probabilities from logits, or the values themselves.
    pub fn scores(self, logits: Vec<f32>) -> Vec<f32> {
        match self {
            Task::Number => logits,
            Task::EachOf => logits.into_iter().map(sigmoid).collect(),
            Task::OneOf => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f32> = logits.into_iter().map(|logit| (logit - most).exp()).collect();
                let sum: f32 = powers.iter().sum();
                powers.into_iter().map(|power| power / sum).collect()
            }
        }
    }
}

/// Returns whether a ranking model applies a sigmoid to its logit, as Sentence-Transformers' `CrossEncoder` reads it
/// from `sentence_transformers.activation_fn` or the older `sbert_ce_default_activation_function`; `None` if neither
/// is set.
///
/// # Errors
/// Any other function.
pub fn ranks_by_sigmoid(file: &Path, config: &Map<String, Value>) -> Result<Option<bool>> {
    let (new, old) = ("sentence_transformers", "sbert_ce_default_activation_function");
    let of_new = config.get(new).and_then(|all| all.get("activation_fn"));
    let (key, found) = of_new.map_or((old, config.get(old)), |found| (new, Some(found)));
    match found.and_then(Value::as_str).map(|name| name.rsplit('.').next().unwrap_or(name)) {
        None => Ok(None),
        Some("Sigmoid") => Ok(Some(true)),
        Some("Identity") => Ok(Some(false)),
        Some(other) => Err(Error::config(file, key, format!("names {other}; supported: Sigmoid, Identity"))),
    }
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_what_the_task_says() {
        assert_eq!(Task::Number.scores(vec![2.5]), [2.5]);
        assert_eq!(Task::EachOf.scores(vec![0.0, 0.0]), [0.5, 0.5]);
        let far = Task::OneOf.scores(vec![200.0, 200.0, -200.0]);
        assert_eq!(far, [0.5, 0.5, 0.0]);
    }
}
