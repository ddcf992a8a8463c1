//! The trait of rails. A rail only finds: the engine turns its [`Opinion`] into a verdict by the configured action, so
//! that every rail blocks, masks, omits, truncates or flags in the same way, and every failure blocks.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fathom_base::Usage;
use fathom_base::clock::{Clock, Deadline};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::{Journal, ModelCall};
use crate::ledger::Ledger;
use crate::verdict::{Direction, Finding, Reason};

/// Treatment of a text in which a rail found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Refuses the text.
    Block,
    /// Replaces each finding by a mark of its kind, `<CREDIT_CARD>`.
    Mask,
    /// Deletes each finding.
    Omit,
    /// Deletes the text from the first finding on.
    Truncate,
    /// Records the findings and changes nothing.
    Flag,
}

impl Action {
    /// Returns whether the action changes texts.
    pub fn rewrites(self) -> bool {
        matches!(self, Action::Mask | Action::Omit | Action::Truncate)
    }

    /// Name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Action::Block => "block",
            Action::Mask => "mask",
            Action::Omit => "omit",
            Action::Truncate => "truncate",
            Action::Flag => "flag",
        }
    }
}

/// Resources that a rail uses, which decide how it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Linear time in the text, microseconds: runs on the thread of its caller.
    Text,
    /// Asks a model: runs on a thread of its own next to others, with a time limit that abandons it.
    Model,
}

/// Bytes at the end of a growing text that may still change a rail's opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// At most this many bytes. A rail that judges windows of a stream on their own has 0.
    Bytes(usize),
    /// Any: only the whole text can be judged, and nothing is released before its end.
    Whole,
}

/// Static facts of a kind of rail.
#[derive(Debug)]
pub struct Manifest {
    /// Name in configurations (`use`).
    pub name: &'static str,
    /// One sentence for lists and documentation.
    pub summary: &'static str,
    /// Directions in which it may be configured.
    pub directions: &'static [Direction],
    /// Actions that may be configured; the first is the default.
    pub actions: &'static [Action],
    /// Resources that it uses.
    pub cost: Cost,
}

/// Circumstances of a text, the same for all rails and directions of a request.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Messages of the conversation up to the text, as clients send them (`role`, `content`, ..). In the direction of
    /// input or of a tool's result the last one is the judged message; of output, the last one is what was answered.
    pub messages: Vec<Value>,
    /// Declared tools, as JSON schemas.
    pub tools: Vec<Value>,
    /// Passages on which the answer has to be based.
    pub evidence: Vec<String>,
    /// Name of the thread, if the client gave one.
    pub thread: Option<String>,
    /// Hash or name of the caller's key.
    pub key: Option<String>,
    /// Name of the guarded model.
    pub model: String,
    /// Uses of tools in the thread, if the client names one.
    pub ledger: Option<Arc<Ledger>>,
    /// Where runs of rails are noted, if they are.
    pub journal: Option<Arc<Journal>>,
}

/// A call of a tool, or its result.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// Name of the tool.
    pub name: String,
    /// Arguments of the call; null for a result without its call.
    pub arguments: Value,
    /// Schema of the arguments, if the tool is declared.
    pub schema: Option<Value>,
    /// True if the tool is declared by the request.
    pub declared: bool,
}

/// A text to be judged.
#[derive(Clone, Copy, Debug)]
pub struct RailInput<'a> {
    /// The text: all of it, or the part of a stream that is still in view.
    pub text: &'a str,
    /// Offset from which the text is open. The text before it was judged earlier and is given as context: it has been
    /// released, and findings that end there are ignored.
    pub from: usize,
    /// True if the text is complete and begins at its beginning; false for a window of a stream.
    pub whole: bool,
    /// Direction.
    pub direction: Direction,
    /// Circumstances.
    pub context: &'a Context,
    /// The call or the result that the text belongs to.
    pub tool: Option<&'a ToolUse>,
}

/// Opinion of a rail about a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Opinion {
    /// Reason for which the text is condemned; `None` if it is not.
    pub condemned: Option<Reason>,
    /// Parts of the text that were found, in ascending order and disjoint; empty only if nothing is condemned.
    pub findings: Vec<Finding>,
    /// Score of a model, from 0 to 1.
    pub score: Option<f64>,
    /// Refusal for the user, in place of the configured one.
    pub message: Option<String>,
}

impl Opinion {
    /// Nothing was found.
    pub fn clean() -> Opinion {
        Opinion::default()
    }

    /// These findings, for this reason; clean if there are none.
    pub fn of(reason: Reason, findings: Vec<Finding>) -> Opinion {
        let condemned = (!findings.is_empty()).then_some(reason);
        Opinion { condemned, findings, ..Opinion::default() }
    }

    /// The whole text is condemned, by this kind (a category, a label).
    pub fn whole(judged: &RailInput<'_>, reason: Reason, kind: impl Into<Cow<'static, str>>) -> Opinion {
        Opinion::of(reason, vec![Finding::new(0..judged.text.len(), kind)])
    }

    /// With this score.
    pub fn scored(self, score: f64) -> Opinion {
        Opinion { score: Some(score), ..self }
    }
}

/// Failure of a rail, which blocks the text. Messages are for the log and never quote the text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The time limit passed, or the call is not wanted any more.
    #[error("took longer than its time limit")]
    TimedOut,
    /// The rail panicked.
    #[error("stopped unexpectedly: {0}")]
    Panicked(String),
    /// A model cannot be reached or refused the request.
    #[error("{0}")]
    Unavailable(String),
    /// A model's answer has not the required form.
    #[error("{0}")]
    Malformed(String),
    /// The text cannot be judged.
    #[error("{0}")]
    Unreadable(String),
    /// The rail failed repeatedly and is not asked. Only the engine fails so.
    #[error("is out of order")]
    BreakerOpen,
}

impl Failure {
    /// Reason of the verdict.
    pub fn reason(&self) -> Reason {
        match self {
            Failure::TimedOut => Reason::TimedOut,
            Failure::Panicked(_) => Reason::Panicked,
            Failure::Unavailable(_) | Failure::Malformed(_) => Reason::Failed,
            Failure::Unreadable(_) => Reason::Unreadable,
            Failure::BreakerOpen => Reason::BreakerOpen,
        }
    }
}

impl From<fathom_base::Error> for Failure {
    fn from(error: fathom_base::Error) -> Failure {
        Failure::Unavailable(error.to_string())
    }
}

/// Limit of a rail's work: a deadline, and the wish of the caller for a result.
#[derive(Clone, Debug)]
pub struct Until {
    deadline: Deadline,
    cancelled: Arc<AtomicBool>,
    /// Where calls of models are noted, with the rail's name.
    noted: Option<(Arc<Journal>, String)>,
}

impl Until {
    /// This many seconds from now.
    pub fn within(clock: &Clock, seconds: f64) -> Until {
        Until { deadline: clock.within(seconds), cancelled: Arc::default(), noted: None }
    }

    /// With a journal in which the calls of models by a rail are noted.
    pub fn noting(self, journal: Option<&Arc<Journal>>, rail: &str) -> Until {
        Until { noted: journal.map(|journal| (journal.clone(), rail.to_string())), ..self }
    }

    /// Notes a call of a model that began at `began`, with its tokens.
    pub(crate) fn called(&self, model: &str, began: std::time::SystemTime, usage: Usage) {
        let Some((journal, rail)) = &self.noted else { return };
        let (rail, model, took) = (rail.clone(), model.to_string(), began.elapsed().unwrap_or_default());
        journal.called(ModelCall { rail, model, began, took, usage });
    }

    /// Returns whether a result is still wanted; for `generate_while` and loops.
    pub fn wanted(&self) -> bool {
        !self.cancelled.load(Ordering::Relaxed) && self.deadline.left_s() > 0.0
    }

    /// Seconds left; negative after the deadline.
    pub fn left_s(&self) -> f64 {
        self.deadline.left_s()
    }

    /// Ends the wish for a result, for all clones.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A rail, built from its options. Its work has no side effects on the text: equal texts and circumstances have equal
/// opinions, except for rails with counters (`rate`, budgets).
pub trait Rail: Send + Sync {
    /// Judges a text.
    ///
    /// # Errors
    /// The rail cannot judge the text; the engine blocks it.
    fn judge(&self, judged: &RailInput<'_>, until: &Until) -> Result<Opinion, Failure>;

    /// Bytes at the end of a growing text that may still change the opinion.
    fn horizon(&self) -> Horizon;

    /// Offset before which no later text can change `opinion` about a growing text. By default its end minus the
    /// horizon; the caller moves it out of findings and graphemes.
    fn mark(&self, judged: &RailInput<'_>, _opinion: &Opinion) -> usize {
        match self.horizon() {
            Horizon::Bytes(bytes) => judged.text.floor_char_boundary(judged.text.len().saturating_sub(bytes)),
            Horizon::Whole => 0,
        }
    }

    /// Text in place of a masked finding.
    fn mask(&self, finding: &Finding) -> String {
        format!("<{}>", finding.kind.to_uppercase())
    }

    /// Text in place of an omitted finding: nothing, unless it stands for another text.
    fn omit(&self, _text: &str, _finding: &Finding) -> String {
        String::new()
    }

    /// Asks the rail's model once, so that a server is ready only with all of them.
    ///
    /// # Errors
    /// The model does not answer.
    fn ready(&self, _until: &Until) -> Result<(), Failure> {
        Ok(())
    }
}
