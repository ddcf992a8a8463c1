//! Parts that the rails of judges share: options, the model, texts of a conversation, and opinions of scores.

use std::ops::Range;

use serde_json::Value;

use crate::judge::{Classifier, Judge, JudgeError, Question, Windows};
use crate::needs::Needs;
use crate::rail::{Context, Failure, Opinion, Rail, RailInput, Until};
use crate::registry::OptionError;
use crate::verdict::{Direction, Finding, Reason};

/// Bytes of earlier messages that a judge reads with a text. They were judged themselves when they came.
const HISTORY_BYTES: usize = 4096;

/// Declares the options of a rail that asks a model: its own, then those that all of them have.
macro_rules! judge_options {
    ($name:ident, $window:literal, $overlap:literal, { $($(#[$meta:meta])* $field:ident: $type:ty,)* }) => {
        /// Options of the rail.
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$meta])* $field: $type,)*
            /// Model: a folder, or a name that the caller knows.
            model: String,
            /// Score from which a text is condemned.
            #[serde(default = "judge_defaults::threshold")]
            threshold: f64,
            /// Tokens that are judged at once; longer texts are judged in windows.
            #[serde(default = "judge_defaults::window_tokens")]
            window_tokens: usize,
            /// Tokens that two windows share.
            #[serde(default = "judge_defaults::overlap_tokens")]
            overlap_tokens: usize,
            /// Most tokens of a text; longer ones are blocked.
            #[serde(default = "judge_defaults::max_tokens")]
            max_tokens: usize,
        }

        mod judge_defaults {
            pub fn threshold() -> f64 {
                0.5
            }
            pub fn window_tokens() -> usize {
                $window
            }
            pub fn overlap_tokens() -> usize {
                $overlap
            }
            pub fn max_tokens() -> usize {
                1 << 15
            }
        }

        impl $name {
            fn judging<'a>(&'a self, needs: &'a crate::needs::Needs) -> crate::rails::judging::JudgeOptions<'a> {
                crate::rails::judging::JudgeOptions {
                    needs,
                    model: &self.model,
                    threshold: self.threshold,
                    windows: (self.window_tokens, self.overlap_tokens, self.max_tokens),
                }
            }
        }
    };
}
pub(super) use judge_options;

/// The common options of a judge.
pub(crate) struct JudgeOptions<'a> {
    /// Source of models.
    pub needs: &'a Needs,
    /// Name or folder of the model.
    pub model: &'a str,
    /// Score from which a text is condemned.
    pub threshold: f64,
    /// Tokens of a window, of its overlap and of a text.
    pub windows: (usize, usize, usize),
}

impl JudgeOptions<'_> {
    /// The checked windows.
    ///
    /// # Errors
    /// Impossible windows, or a threshold that is no probability.
    fn windows(&self) -> Result<Windows, OptionError> {
        let (tokens, overlap, most) = self.windows;
        if !(self.threshold > 0.0 && self.threshold <= 1.0) {
            return Err(OptionError::new("threshold", "is a probability: above 0 and at most 1"));
        }
        if tokens < 8 {
            return Err(OptionError::new("window_tokens", "a window has at least 8 tokens"));
        }
        if overlap > tokens / 2 {
            return Err(OptionError::new("overlap_tokens", "windows share at most half of their tokens"));
        }
        if most == 0 {
            return Err(OptionError::new("max_tokens", "would block every text; give a positive number"));
        }
        Ok(Windows { tokens, overlap, most })
    }

    /// The model that generates verdicts.
    ///
    /// # Errors
    /// An impossible option, no such model, or one that generates nothing.
    pub fn judge(&self) -> Result<Judge, OptionError> {
        let windows = self.windows()?;
        let service = service(self.needs, "model", self.model)?;
        if !service.card().generates {
            return Err(OptionError::new(
                "model",
                format!("`{}` generates no text; use the rail classifier", self.model),
            ));
        }
        Ok(Judge { service, windows })
    }

    /// The model that classifies.
    ///
    /// # Errors
    /// An impossible option, no such model, or one without labels.
    pub fn classifier(&self) -> Result<Classifier, OptionError> {
        let windows = self.windows()?;
        let service = service(self.needs, "model", self.model)?;
        if service.card().labels.is_empty() {
            return Err(OptionError::new(
                "model",
                format!("`{}` is no classifier: it has no labels", self.model),
            ));
        }
        Ok(Classifier { service, windows })
    }
}

/// A model by its folder next to the configuration, or by its name.
///
/// # Errors
/// There is no such model.
pub(crate) fn service(
    needs: &Needs,
    key: &'static str,
    name: &str,
) -> Result<std::sync::Arc<dyn fathom_base::Service>, OptionError> {
    let models = needs.models.as_ref().ok_or_else(|| {
        OptionError::new(
            key,
            format!("the model `{name}` cannot be opened here: this command serves no models"),
        )
    })?;
    let next = needs.folder.join(name);
    let name = if next.exists() { next.to_string_lossy().into_owned() } else { name.to_string() };
    models.service(&name).map_err(|error| OptionError::new(key, error.to_string()))
}

/// Asks a judge with the scope and the time limit of a text.
pub(crate) fn asked<T>(
    judged: &RailInput<'_>,
    until: &Until,
    ask: impl FnOnce(Question<'_>) -> Result<T, JudgeError>,
) -> Result<T, JudgeError> {
    let scope = format!("guard {}", judged.context.key.as_deref().unwrap_or_default());
    let called = |model: &str, began, tokens| until.called(model, began, tokens);
    ask(Question { scope: &scope, wanted: &|| until.wanted(), called: &called })
}

/// An opinion, or the failure that an error is: a text that is too long is condemned.
pub(crate) fn opinion(
    judged: &RailInput<'_>,
    found: Result<Opinion, JudgeError>,
) -> Result<Opinion, Failure> {
    match found {
        Ok(opinion) => Ok(opinion),
        Err(JudgeError::TooLong { .. }) => Ok(Opinion::whole(judged, Reason::TooLong, "too_long")),
        Err(JudgeError::Late) => Err(Failure::TimedOut),
        Err(JudgeError::Model(error)) => Err(error.into()),
        Err(JudgeError::Unfit(why)) => Err(Failure::Malformed(why)),
    }
}

/// Asks a rail about a short text, so that its model has answered once.
///
/// # Errors
/// The rail fails.
pub(crate) fn ready(rail: &dyn Rail, direction: Direction, until: &Until) -> Result<(), Failure> {
    let messages = vec![serde_json::json!({"role": "user", "content": "Hello."})];
    let context = Context { messages, evidence: vec!["Hello.".into()], ..Context::default() };
    let judged = RailInput { text: "Hello.", from: 0, whole: true, direction, context: &context, tool: None };
    rail.judge(&judged, until).map(drop)
}

/// A window of a text with its score, and the kinds of what was found there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScoredSpan {
    /// Bytes of the text.
    pub span: Range<usize>,
    /// Probability that it is to be condemned.
    pub score: f64,
    /// Kinds, if it is condemned.
    pub kinds: Vec<String>,
}

/// An opinion from the scores of all windows: condemned if one reaches the threshold.
pub(crate) fn opinion_of(spans: Vec<ScoredSpan>, threshold: f64, reason: Reason) -> Opinion {
    let score = spans.iter().map(|span| span.score).fold(0.0, f64::max);
    let mut condemned: Vec<ScoredSpan> = spans.into_iter().filter(|span| span.score >= threshold).collect();
    condemned.sort_by_key(|span| (span.span.start, span.span.end));
    let mut merged: Vec<ScoredSpan> = Vec::new();
    for next in condemned {
        match merged.last_mut().filter(|last| next.span.start < last.span.end || next.span == last.span) {
            Some(last) => {
                last.span.end = last.span.end.max(next.span.end);
                last.kinds.extend(next.kinds);
            }
            None => merged.push(next),
        }
    }
    let finding = |mut span: ScoredSpan| {
        let mut seen = std::collections::BTreeSet::new();
        span.kinds.retain(|kind| seen.insert(kind.clone()));
        Finding::new(span.span, span.kinds.join(","))
    };
    Opinion::of(reason, merged.into_iter().map(finding).collect()).scored(score)
}

/// Role and text of a message; parts that are not text are left out.
pub(crate) fn message_text(message: &Value) -> (String, String) {
    let role = message["role"].as_str().unwrap_or_default().to_string();
    let text = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    (role, text)
}

/// The last message of a user.
pub(crate) fn question(context: &Context) -> String {
    let mut texts = context.messages.iter().rev().map(message_text);
    texts.find(|(role, _)| role == "user").map(|(_, text)| text).unwrap_or_default()
}

/// Earlier messages of users and models up to a judged text, which is not among them, oldest first and at most
/// [`HISTORY_BYTES`] long. The first may be cut at its beginning.
pub(crate) fn history(judged: &RailInput<'_>) -> Vec<(&'static str, String)> {
    let all = &judged.context.messages;
    let own = matches!(judged.direction, Direction::Input | Direction::ToolResult);
    let earlier = &all[..all.len() - usize::from(own && !all.is_empty())];
    let (mut room, mut kept) = (HISTORY_BYTES, Vec::new());
    for (role, text) in earlier.iter().rev().map(message_text) {
        let role = match role.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            _ => continue,
        };
        let cut = text.ceil_char_boundary(text.len().saturating_sub(room));
        room -= text.len() - cut;
        kept.push((role, text[cut..].to_string()));
        if room == 0 {
            break;
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_overlap_are_one_finding_with_all_kinds() {
        let span = |range: Range<usize>, score, kind: &str| ScoredSpan {
            span: range,
            score,
            kinds: vec![kind.into()],
        };
        let found = opinion_of(
            vec![
                span(0..10, 0.9, "S1"),
                span(5..15, 0.6, "S2"),
                span(10..20, 0.1, "S3"),
                span(30..40, 0.7, "S1"),
            ],
            0.5,
            Reason::Unsafe,
        );
        assert_eq!(found.score, Some(0.9));
        assert_eq!(found.findings, [Finding::new(0..15, "S1,S2"), Finding::new(30..40, "S1")]);
        let clean = opinion_of(vec![span(0..10, 0.4, "S1")], 0.5, Reason::Unsafe);
        assert_eq!((clean.condemned, clean.score), (None, Some(0.4)));
    }

    #[test]
    fn history_is_bounded_and_leaves_the_judged_message_out() {
        let long = "é".repeat(HISTORY_BYTES);
        let messages = vec![
            serde_json::json!({"role": "user", "content": long}),
            serde_json::json!({"role": "assistant", "content": "short"}),
            serde_json::json!({"role": "user", "content": [{"type": "text", "text": "judged"}]}),
        ];
        let context = Context { messages, ..Context::default() };
        let judged = RailInput {
            text: "judged",
            from: 0,
            whole: true,
            direction: Direction::Input,
            context: &context,
            tool: None,
        };
        let found = history(&judged);
        assert_eq!(found.len(), 2);
        assert!(found[0].1.len() + found[1].1.len() <= HISTORY_BYTES);
        assert_eq!(question(&context), "judged");
    }
}
