//! Kinds of requests, and the metrics of a task by its configuration.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::index::function;
use crate::metrics::aggregate::Aggregation;
use crate::metrics::exact::ExactMatch;
use crate::metrics::score::{SCORE, Score};

/// Kind of request to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputType {
    /// The likelihood of each choice.
    MultipleChoice,
    /// The likelihood of the target.
    LogLikelihood,
    /// The likelihood of a whole text.
    Rolling,
    /// A text.
    GenerateUntil,
}

/// A metric of a task.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Its name.
    pub name: String,
    /// How items become one figure.
    pub aggregation: Aggregation,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// Other options.
    pub options: Map<String, Value>,
    /// Rule of `score`, and of an `exact_match` that has one.
    pub score: Option<Arc<Score>>,
}

/// Names that `rouge` stands for.
pub const ROUGE: [&str; 4] = ["rouge1", "rouge2", "rougeL", "rougeLsum"];

/// Aggregation and direction of a metric by its name.
fn known(name: &str) -> Option<(Aggregation, bool)> {
    use Aggregation as A;
    Some(match name {
        "acc" | "acc_norm" | "acc_bytes" | "acc_mutual_info" | "exact_match" | "rouge" | "string_match"
        | "pass_at_k" | SCORE => (A::Mean, true),
        "brier_score" => (A::Brier, false),
        "f1" => (A::F1, true),
        "mcc" => (A::Mcc, true),
        "perplexity" => (A::Perplexity, false),
        "word_perplexity" | "byte_perplexity" => (A::WeightedPerplexity, false),
        "bits_per_byte" => (A::BitsPerByte, false),
        "bleu" => (A::Bleu, true),
        "chrf" => (A::Chrf, true),
        "chrf++" => (A::ChrfPlusPlus, true),
        "ter" => (A::Ter, false),
        "bypass" => (A::Bypass, true),
        _ if ROUGE.contains(&name) => (A::Mean, true),
        _ => return None,
    })
}

impl Measure {
    /// The metrics of `metric_list`, or those that are usual for the kind of requests.
    ///
    /// # Errors
    /// A metric or an aggregation that is unknown or written in Python.
    pub fn all(keys: &Map<String, Value>, output: OutputType) -> std::result::Result<Vec<Measure>, String> {
        let usual = |names: &[&str]| names.iter().map(|name| serde_json::json!({ "metric": name })).collect();
        let list: Vec<Value> = match keys.get("metric_list").and_then(Value::as_array) {
            Some(list) => list.clone(),
            None => match output {
                OutputType::MultipleChoice => usual(&["acc", "acc_norm"]),
                OutputType::LogLikelihood => usual(&["perplexity", "acc"]),
                OutputType::Rolling => usual(&["word_perplexity", "byte_perplexity", "bits_per_byte"]),
                OutputType::GenerateUntil => usual(&["exact_match"]),
            },
        };
        list.iter().map(Measure::new).collect()
    }

    fn new(entry: &Value) -> std::result::Result<Measure, String> {
        let python = |what: &Value| function(what).map(str::to_string);
        if let Some(called) = python(&entry["metric"]).or(python(&entry["aggregation"])) {
            return Err(format!(
                "the metric `{called}` is written in Python, which Fathom does not run; `lm_eval run --model \
                 local-completions` can, against `fathom serve`"
            ));
        }
        let name = entry["metric"].as_str().ok_or("an entry of `metric_list` has no `metric`")?.to_string();
        let (usual, direction) = known(&name).ok_or_else(|| format!("there is no metric `{name}`"))?;
        let aggregation = match entry["aggregation"].as_str() {
            Some(called) => {
                Aggregation::named(called).ok_or_else(|| format!("there is no aggregation `{called}`"))?
            }
            None => usual,
        };
        const OWN: [&str; 4] = ["metric", "aggregation", "higher_is_better", "hf_evaluate"];
        let options: Map<String, Value> =
            entry.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let options: Map<String, Value> =
            options.into_iter().filter(|(key, _)| !OWN.contains(&key.as_str())).collect();
        // `exact_match` with a rule is that of tasks whose answers are compared by code of their own.
        let is_scored = name == SCORE || (name == "exact_match" && options.contains_key("rule"));
        let score = if is_scored { Some(Arc::new(Score::new(&options)?)) } else { None };
        if name == "exact_match" && !is_scored {
            ExactMatch::new(&options)?;
        }
        Ok(Measure {
            name,
            aggregation,
            higher_is_better: entry["higher_is_better"].as_bool().unwrap_or(direction),
            options,
            score,
        })
    }
}
