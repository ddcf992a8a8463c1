//! Judges: models that are asked for a verdict. A judge chooses among fixed texts under a grammar, and its verdict is
//! the probability of a choice in the model's own distribution, so that a threshold is a number and no answer has to be
//! parsed.

mod ask;
mod choice;
mod classes;
mod perplexity;
mod prompt;
mod question;
mod sentences;
mod windows;

pub(crate) use ask::{Judge, WindowScore};
pub(crate) use choice::{Choices, answers, written};
pub(crate) use classes::{Classifier, WindowClasses};
pub use perplexity::{Perplexity, jailbreak_affixes, perplexity};
pub(crate) use prompt::{JudgePrompt, Piece, PromptText, Turn};
pub use question::JudgeError;
pub(crate) use question::Question;
pub(crate) use sentences::sentences;
pub(crate) use windows::{Windows, cut};
