//! Facts: whether evidence supports an answer, sentence by sentence with an entailment classifier, or the whole answer
//! with a language model.

use crate::config::Setting;
use crate::judge::{
    Choices, Classifier, Judge, JudgeError, JudgePrompt, PromptText, Question, Turn, sentences,
};
use crate::needs::Needs;
use crate::rail::{Action, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, Until};
use crate::rails::judging::{ScoredSpan, asked, judge_options, message_text, opinion, opinion_of, question};
use crate::registry::{OptionError, RailKind};
use crate::verdict::{Direction, Reason};

/// Places of a prompt.
const PLACES: &[&str] = &["text", "evidence", "question"];

const PROMPT: &str = "Evidence:\n\"\"\"\n{{ evidence }}\n\"\"\"\n\nStatement:\n\"\"\"\n{{ text }}\n\"\"\"\n\n\
                      Using the evidence alone, is everything in the statement supported by it? Answer yes or no.";

/// Words of a piece of evidence that is paired with a sentence, and words that two pieces share.
const EVIDENCE_WORDS: (usize, usize) = (180, 60);

judge_options!(Options, 2048, 128, {
    /// How support is judged.
    #[serde(default)]
    method: Method,
    /// The whole prompt, with the places `{{ text }}` and `{{ evidence }}`; it asks whether the text is supported.
    #[serde(default)]
    prompt: Option<String>,
    /// Label of the classifier that means support.
    #[serde(default = "entailment")]
    label: String,
    /// Treatment of an answer without any evidence.
    #[serde(default)]
    without_evidence: WithoutEvidence,
});

fn entailment() -> String {
    "entailment".into()
}

/// How support is judged.
#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// A language model is asked about the whole answer.
    #[default]
    Prompt,
    /// A classifier of pairs of texts is asked about each sentence.
    Entailment,
}

/// Treatment of an answer without evidence.
#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutEvidence {
    /// The answer is condemned.
    #[default]
    Block,
    /// The answer passes: there is nothing that it has to agree with.
    Allow,
}

enum Checker {
    Prompt(Judge, PromptText),
    Entailment(Classifier, usize),
}

/// The kind `facts`.
pub struct Facts {
    checker: Checker,
    without_evidence: WithoutEvidence,
    threshold: f64,
}

impl RailKind for Facts {
    type Options = Options;

    const MANIFEST: &'static Manifest = &Manifest {
        name: "facts",
        summary: "support of an answer by the given evidence",
        directions: &[Direction::Output],
        actions: &[Action::Block, Action::Flag],
        cost: Cost::Model,
    };

    fn build(options: Options, _: &Setting, needs: &Needs) -> Result<Box<dyn Rail>, OptionError> {
        let checker = match options.method {
            Method::Prompt => {
                let prompt = PromptText::parse(options.prompt.as_deref().unwrap_or(PROMPT), PLACES);
                Checker::Prompt(
                    options.judging(needs).judge()?,
                    prompt.map_err(|why| OptionError::new("prompt", why))?,
                )
            }
            Method::Entailment if options.prompt.is_some() => {
                return Err(OptionError::new("prompt", "is read by method = \"prompt\" only"));
            }
            Method::Entailment => {
                let classifier = options.judging(needs).classifier()?;
                let label = classifier.labels(std::slice::from_ref(&options.label));
                let label = label.map_err(|why| OptionError::new("label", why.to_string()))?[0];
                Checker::Entailment(classifier, label)
            }
        };
        let (without_evidence, threshold) = (options.without_evidence, options.threshold);
        Ok(Box::new(Facts { checker, without_evidence, threshold }))
    }
}

/// The evidence of an answer: passages of the request, and results of tools in the conversation.
fn evidence(judged: &RailInput<'_>) -> Vec<String> {
    let tools = judged.context.messages.iter().map(message_text).filter(|(role, _)| role == "tool");
    let all = judged.context.evidence.iter().cloned().chain(tools.map(|(_, text)| text));
    all.filter(|text| !text.trim().is_empty()).collect()
}

impl Facts {
    fn opinion(&self, judged: &RailInput<'_>, asked: Question<'_>) -> Result<Opinion, JudgeError> {
        let evidence = evidence(judged);
        if evidence.is_empty() {
            return Ok(match self.without_evidence {
                WithoutEvidence::Allow => Opinion::clean(),
                WithoutEvidence::Block => Opinion::whole(judged, Reason::Unsupported, "no_evidence"),
            });
        }
        let spans = match &self.checker {
            Checker::Prompt(judge, prompt) => by_prompt(judge, prompt, judged, &evidence, asked)?,
            Checker::Entailment(classifier, label) => {
                by_entailment(classifier, *label, judged.text, &evidence, asked)?
            }
        };
        Ok(opinion_of(spans, self.threshold, Reason::Unsupported))
    }
}

/// Asks about windows of the whole answer.
fn by_prompt(
    judge: &Judge,
    prompt: &PromptText,
    judged: &RailInput<'_>,
    evidence: &[String],
    asked: Question<'_>,
) -> Result<Vec<ScoredSpan>, JudgeError> {
    let pieces = prompt.pieces(&|place| match place {
        "evidence" => evidence.join("\n\n"),
        _ => question(judged.context),
    });
    let turns = [Turn::new("user", pieces)];
    let prompt = JudgePrompt::conversation(&*judge.service, &turns, Default::default(), "")?;
    let windows = judge.ask(judged.text, &prompt, &Choices::new(&["yes", "no"]), asked)?;
    let scored = windows.into_iter().map(|window| ScoredSpan {
        span: window.span,
        score: window.probabilities[1],
        kinds: vec!["unsupported".into()],
    });
    Ok(scored.collect())
}

/// Asks about each sentence with each piece of evidence. A sentence has the support of the piece that supports it most.
fn by_entailment(
    classifier: &Classifier,
    label: usize,
    text: &str,
    evidence: &[String],
    asked: Question<'_>,
) -> Result<Vec<ScoredSpan>, JudgeError> {
    let sentences = sentences(text);
    let pieces: Vec<String> = evidence.iter().flat_map(|text| pieces(text)).collect();
    let pair = |span: &std::ops::Range<usize>| {
        let sentence = text[span.clone()].to_string();
        pieces.iter().map(move |piece| (piece.clone(), sentence.clone()))
    };
    let pairs: Vec<(String, String)> = sentences.iter().flat_map(pair).collect();
    let rows = if pairs.is_empty() { Vec::new() } else { classifier.pairs(&pairs, asked)? };
    let support = rows
        .chunks(pieces.len().max(1))
        .map(|rows| rows.iter().filter_map(|row| row.get(label)).fold(0.0f32, |most, own| most.max(*own)));
    let scored = sentences.into_iter().zip(support).map(|(span, support)| ScoredSpan {
        span,
        score: 1.0 - f64::from(support),
        kinds: vec!["unsupported".into()],
    });
    Ok(scored.collect())
}

/// Evidence in pieces of whole words that a classifier reads at once, each sharing its beginning with the one before.
fn pieces(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let windows = crate::judge::cut(words.len(), EVIDENCE_WORDS.0, EVIDENCE_WORDS.1);
    windows.into_iter().map(|window| words[window].join(" ")).collect()
}

impl Rail for Facts {
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure> {
        opinion(judged, asked(judged, until, |question| self.opinion(judged, question)))
    }

    fn horizon(&self) -> Horizon {
        match self.checker {
            Checker::Prompt(..) => Horizon::Whole,
            Checker::Entailment(..) => Horizon::Bytes(0),
        }
    }

    /// A sentence may change until it has ended.
    fn mark(&self, judged: &RailInput<'_>, _: &Opinion) -> usize {
        match (&self.checker, judged.whole) {
            (Checker::Prompt(..), _) => 0,
            (Checker::Entailment(..), true) => judged.text.len(),
            (Checker::Entailment(..), false) => sentences(judged.text).last().map_or(0, |last| last.start),
        }
    }

    fn ready(&self, until: &Until) -> Result<(), Failure> {
        crate::rails::judging::ready(self, Direction::Output, until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_paired_in_pieces_that_cover_it() {
        let text: Vec<String> = (0..400).map(|at| at.to_string()).collect();
        let found = pieces(&text.join(" "));
        assert_eq!(found.len(), 3);
        assert!(found[0].starts_with("0 ") && found[2].ends_with(" 399"));
        assert_eq!(pieces("short text"), ["short text"]);
    }
}
