//! Verdicts of rails: what a rail decided about a text, and where. No verdict contains text that was judged.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Origin of a judged text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// A prompt, or a message of a user.
    Input,
    /// An answer of the model, with its reasoning.
    Output,
    /// A passage that was retrieved for a prompt.
    Retrieval,
    /// A call of a tool by the model; the text is its arguments as JSON.
    ToolCall,
    /// A tool's result, before the model reads it.
    ToolResult,
}

impl Direction {
    /// All directions.
    pub const ALL: [Direction; 5] = [
        Direction::Input,
        Direction::Output,
        Direction::Retrieval,
        Direction::ToolCall,
        Direction::ToolResult,
    ];

    /// Name in configurations and records.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Input => "input",
            Direction::Output => "output",
            Direction::Retrieval => "retrieval",
            Direction::ToolCall => "tool_call",
            Direction::ToolResult => "tool_result",
        }
    }
}

/// Decision about a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The text passes as it is.
    Allow,
    /// The text passes as it is; the findings are recorded.
    Flag,
    /// The text passes with [`Verdict::edits`].
    Rewrite,
    /// The text does not pass.
    Block,
}

impl Decision {
    /// Name in records.
    pub fn name(self) -> &'static str {
        match self {
            Decision::Allow => "allow",
            Decision::Flag => "flag",
            Decision::Rewrite => "rewrite",
            Decision::Block => "block",
        }
    }
}

/// Reason of a verdict: a closed list, so that no reason quotes a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nothing was found.
    Clean,
    /// A configured pattern or word.
    Pattern,
    /// Personal data.
    PersonalData,
    /// A key, token or password.
    Secret,
    /// Code, SQL, template or cross-site injection.
    Injection,
    /// Invisible, bidirectional or confusable characters.
    HiddenText,
    /// A text too long for its limit.
    TooLong,
    /// Repetitive or bloated text.
    Repetition,
    /// A language that is not allowed.
    Language,
    /// More requests than allowed.
    Rate,
    /// A judge's policy.
    SelfCheck,
    /// A category of unsafe content.
    Unsafe,
    /// A topic outside the policy.
    OffTopic,
    /// An attempt to override the instructions of the model.
    Jailbreak,
    /// A statement without support in the evidence.
    Unsupported,
    /// Answers to the same question that contradict each other.
    Inconsistent,
    /// A label of a classifier.
    Label,
    /// A tool that is not declared or not allowed.
    UnknownTool,
    /// Arguments that do not match a tool's schema.
    Arguments,
    /// A `deny_when` rule of a tool.
    Denied,
    /// An exhausted budget of calls, bytes or spend.
    Budget,
    /// The rail returned an error.
    Failed,
    /// The rail exceeded its time limit.
    TimedOut,
    /// The rail panicked.
    Panicked,
    /// The rail failed repeatedly and is not asked for a while.
    BreakerOpen,
    /// The text cannot be judged: it is not text, or more is held than allowed.
    Unreadable,
    /// Text that was condemned only after its beginning had been released.
    Late,
}

impl Reason {
    /// Sentence for people who read a refusal.
    pub fn words(self) -> &'static str {
        match self {
            Reason::Clean => "nothing was found",
            Reason::Pattern => "the text matches a configured pattern",
            Reason::PersonalData => "the text contains personal data",
            Reason::Secret => "the text contains a secret",
            Reason::Injection => "the text contains an injection",
            Reason::HiddenText => "the text contains hidden characters",
            Reason::TooLong => "the text is too long",
            Reason::Repetition => "the text repeats itself",
            Reason::Language => "the language is not supported",
            Reason::Rate => "there were too many requests",
            Reason::SelfCheck => "the text violates the policy",
            Reason::Unsafe => "the content is unsafe",
            Reason::OffTopic => "the topic is outside the policy",
            Reason::Jailbreak => "the text tries to override instructions",
            Reason::Unsupported => "a statement has no support in the evidence",
            Reason::Inconsistent => "the answer is not consistent",
            Reason::Label => "a classifier condemned the text",
            Reason::UnknownTool => "the tool is not available",
            Reason::Arguments => "the arguments do not match the tool's schema",
            Reason::Denied => "a rule denies this call",
            Reason::Budget => "the budget is exhausted",
            Reason::Failed => "a rail failed",
            Reason::TimedOut => "a rail took too long",
            Reason::Panicked => "a rail stopped unexpectedly",
            Reason::BreakerOpen => "a rail is out of order",
            Reason::Unreadable => "the text cannot be judged",
            Reason::Late => "the text was condemned after its beginning was sent",
        }
    }
}

/// A part of a text that a rail found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// UTF-8 byte offsets in the judged text; the whole text if the rail judges it as one.
    pub span: Range<usize>,
    /// Kind of the finding, such as `card` or a category; never a part of the text.
    pub kind: Cow<'static, str>,
}

impl Finding {
    /// A finding of this kind.
    pub fn new(span: Range<usize>, kind: impl Into<Cow<'static, str>>) -> Finding {
        Finding { span, kind: kind.into() }
    }
}

/// A replacement of a part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// UTF-8 byte offsets in the judged text.
    pub span: Range<usize>,
    /// Text in its place.
    pub text: String,
}

/// Text with edits applied; they are ascending and do not overlap.
pub fn edited(text: &str, edits: &[Edit]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for edit in edits {
        out.push_str(&text[done..edit.span.start]);
        out.push_str(&edit.text);
        done = edit.span.end;
    }
    out.push_str(&text[done..]);
    out
}

/// Verdict of one rail about one text. Made by the engine from a rail's [`Opinion`](crate::Opinion), so that these
/// invariants hold: edits exist exactly with [`Decision::Rewrite`], are ascending and disjoint; `failed` occurs only
/// with [`Decision::Block`], or with [`Decision::Allow`] for a rail whose failures are allowed by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Name of the rail in the configuration.
    pub rail: String,
    /// Direction of the text.
    pub direction: Direction,
    /// Decision.
    pub decision: Decision,
    /// Reason of the decision.
    pub reason: Reason,
    /// Findings, in ascending order.
    pub findings: Vec<Finding>,
    /// Score of a model, from 0 to 1, if there is one.
    pub score: Option<f64>,
    /// Replacements.
    pub edits: Vec<Edit>,
    /// True if the rail failed rather than judged.
    pub failed: bool,
    /// Refusal for the user, if the rail has a specific one.
    pub message: Option<String>,
    /// Time that the rail took.
    pub took: Duration,
}

impl Verdict {
    /// Kinds of the findings with their number.
    pub fn kinds(&self) -> std::collections::BTreeMap<&str, usize> {
        let mut kinds = std::collections::BTreeMap::new();
        self.findings.iter().for_each(|finding| *kinds.entry(&*finding.kind).or_default() += 1);
        kinds
    }
}
