//! Attempts to override a model's instructions: by the perplexity of the text, or by a classifier.

use std::sync::Arc;

use fathom_base::Service;

use crate::config::Setting;
use crate::judge::{Classifier, JudgeError, Perplexity, Question, jailbreak_affixes};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::classifier::scored;
use crate::rails::judging::{asked, judge_options, opinion, opinion_of};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Finding, Reason};

judge_options!(Options, 512, 64, {
    /// How attempts are found.
    #[serde(default)]
    method: Method,
    /// Labels of the classifier that condemn a text.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    blocked_labels: Vec<String>,
    /// Formula of the perplexity.
    #[serde(default)]
    formula: Formula,
    /// Characters per perplexity from which a text is condemned.
    #[serde(default = "length_per_perplexity")]
    length_per_perplexity: f64,
    /// Perplexity of a text's first or last words from which it is condemned.
    #[serde(default = "prefix_suffix_perplexity")]
    prefix_suffix_perplexity: f64,
});

/// Threshold of 0.24.1, for GPT-2 large.
fn length_per_perplexity() -> f64 {
    89.79
}

/// Threshold of 0.24.1, for GPT-2 large.
fn prefix_suffix_perplexity() -> f64 {
    1845.65
}

/// How attempts are found.
#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// By a classifier's labels.
    #[default]
    Classifier,
    /// By perplexity under a language model.
    Perplexity,
}

/// Formula of the perplexity.
#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Formula {
    /// Every token counts equally.
    #[default]
    Tokens,
    /// Every window counts equally, as in 0.24.1.
    Windows,
}

/// Thresholds of the heuristics.
struct Heuristics {
    service: Arc<dyn Service>,
    formula: Formula,
    length_per_perplexity: f64,
    prefix_suffix_perplexity: f64,
    most_tokens: usize,
}

enum Finder {
    Classifier(Classifier, Vec<(String, usize)>, f64),
    Perplexity(Heuristics),
}

/// The kind `jailbreak`.
pub struct Jailbreak(Finder);

impl RailKind for Jailbreak {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "jailbreak",
        summary: "attempts to override instructions, by a classifier or by perplexity",
        directions: &[Direction::Input, Direction::Retrieval, Direction::ToolResult],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        match options.method {
            Method::Classifier => {
                let model = options.judging(needs).classifier()?;
                let mut names = options.blocked_labels.clone();
                if names.is_empty() {
                    names = usual_labels(&model.service.card().labels).ok_or_else(|| {
                        OptionError::new(
                            "blocked_labels",
                            "is needed: no label of the classifier names an attack",
                        )
                    })?;
                }
                let places = model.labels(&names);
                let places = places.map_err(|why| OptionError::new("blocked_labels", why.to_string()))?;
                let labels = names.into_iter().zip(places).collect();
                Ok(Box::new(Jailbreak(Finder::Classifier(model, labels, options.threshold))))
            }
            Method::Perplexity => {
                if !options.blocked_labels.is_empty() {
                    return Err(OptionError::new(
                        "blocked_labels",
                        "is read by method = \"classifier\" only",
                    ));
                }
                for (key, value) in [
                    ("length_per_perplexity", options.length_per_perplexity),
                    ("prefix_suffix_perplexity", options.prefix_suffix_perplexity),
                ] {
                    if value.is_nan() || value <= 0.0 {
                        return Err(OptionError::new(key, "is above 0"));
                    }
                }
                Ok(Box::new(Jailbreak(Finder::Perplexity(Heuristics {
                    service: options.judging(needs).judge()?.service,
                    formula: options.formula,
                    length_per_perplexity: options.length_per_perplexity,
                    prefix_suffix_perplexity: options.prefix_suffix_perplexity,
                    most_tokens: options.max_tokens,
                }))))
            }
        }
    }
}

/// Labels of a classifier that name an attack by themselves, as Prompt Guard's and its kin's do.
fn usual_labels(labels: &[String]) -> Option<Vec<String>> {
    const ATTACKS: &[&str] = &["malicious", "jailbreak", "injection", "prompt_injection", "unsafe", "attack"];
    let found: Vec<String> =
        labels.iter().filter(|label| ATTACKS.contains(&label.to_lowercase().as_str())).cloned().collect();
    (!found.is_empty()).then_some(found)
}

impl Heuristics {
    fn perplexity(&self, text: &str, question: Question<'_>) -> Result<Option<f64>, JudgeError> {
        let found = Perplexity::of(&*self.service, text, self.most_tokens, question)?;
        Ok(found.map(|found| match self.formula {
            Formula::Tokens => found.by_tokens,
            Formula::Windows => found.by_windows,
        }))
    }

    /// The score is the larger of both measures' ratios to twice their thresholds, so that 0.5 condemns.
    fn opinion(&self, judged: &RailInput<'_>, question: Question<'_>) -> Result<Opinion, JudgeError> {
        let mut kinds = Vec::new();
        let mut most = 0.0f64;
        let mut measure = |value: f64, threshold: f64, kind: &'static str| {
            most = most.max(value / threshold);
            if value >= threshold || value.is_nan() {
                kinds.push(kind);
            }
        };
        if let Some(perplexity) = self.perplexity(judged.text, question)? {
            let length = judged.text.chars().count() as f64;
            measure(length / perplexity, self.length_per_perplexity, "length_per_perplexity");
        }
        for affix in jailbreak_affixes(judged.text).into_iter().flatten() {
            if let Some(perplexity) = self.perplexity(&affix, question)? {
                measure(perplexity, self.prefix_suffix_perplexity, "prefix_suffix_perplexity");
            }
        }
        kinds.dedup();
        let findings = (!kinds.is_empty()).then(|| Finding::new(0..judged.text.len(), kinds.join(",")));
        Ok(Opinion::of(Reason::Jailbreak, findings.into_iter().collect()).scored((most / 2.0).min(1.0)))
    }
}

impl Rail for Jailbreak {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        let found = asked(judged, until, |question| match &self.0 {
            Finder::Perplexity(heuristics) => heuristics.opinion(judged, question),
            Finder::Classifier(model, labels, threshold) => {
                Ok(opinion_of(scored(model, labels, judged.text, question)?, *threshold, Reason::Jailbreak))
            }
        });
        opinion(judged, found)
    }

    fn horizon(&self) -> Horizon {
        Horizon::Whole
    }

    fn ready(&self, until: &Until) -> Result<(), Failure> {
        crate::rails::judging::ready(self, Direction::Input, until)
    }
}
