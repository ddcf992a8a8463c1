//! Judges: models that are asked for a verdict. A judge chooses among fixed texts under a grammar, and its verdict is
//! the probability of a choice in the model's own distribution, so that a threshold is a number and no answer has to be
//! parsed.

mod choice;
mod classes;
mod perplexity;
mod prompt;
mod sentences;
mod windows;

use std::sync::Arc;

use fathom_base::{Error, Service};

pub(crate) use choice::{Choices, answers, written};
pub(crate) use classes::{Classifier, WindowClasses};
pub use perplexity::{Perplexity, jailbreak_affixes, perplexity};
pub(crate) use prompt::{JudgePrompt, Piece, PromptText, Turn};
pub(crate) use sentences::sentences;
use windows::spans_of;
pub(crate) use windows::{Windows, cut};

/// Reason why a judge gave no verdict.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The text needs more windows than are allowed.
    #[error("the text has {tokens} tokens; this rail reads at most {most}")]
    TooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Most tokens that are read.
        most: usize,
    },
    /// The time limit passed.
    #[error("the judge did not answer within the time limit")]
    Late,
    /// The model failed, or refused the request.
    #[error(transparent)]
    Model(#[from] Error),
    /// The model cannot serve this rail.
    #[error("{0}")]
    Unfit(String),
}

/// Shorthand for results of judges.
pub(crate) type JudgeResult<T> = Result<T, JudgeError>;

/// A model that judges, with its limits.
#[derive(Clone)]
pub(crate) struct Judge {
    /// The model.
    pub service: Arc<dyn Service>,
    /// How a text is divided.
    pub windows: Windows,
}

/// One question to a judge: its scope in the prefix cache, and how long the answer is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    /// Scope of the prefix cache.
    pub scope: &'a str,
    /// Returns false once the time limit has passed.
    pub wanted: &'a dyn Fn() -> bool,
}

/// A window's probability of each choice, and the bytes of the text that the window covers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowScore {
    /// Bytes of the judged text.
    pub span: std::ops::Range<usize>,
    /// Probability of each choice; they sum to 1.
    pub probabilities: Vec<f64>,
    /// Token ids of the prompt that was answered.
    pub prompt: Vec<u32>,
}

impl Judge {
    /// Asks about every window of a text.
    ///
    /// # Errors
    /// The text is too long, the prompt does not fit into the context, or the model fails.
    pub fn ask(
        &self,
        text: &str,
        prompt: &JudgePrompt,
        choices: &Choices,
        question: Question<'_>,
    ) -> JudgeResult<Vec<WindowScore>> {
        let context = self.service.card().context_tokens;
        let taken = prompt.len() + choices.most_tokens();
        let room = context.saturating_sub(taken);
        if room == 0 {
            return Err(JudgeError::Unfit(format!(
                "the judge's prompt has {} tokens, and its context only {context}; use a shorter prompt or conversation",
                prompt.len()
            )));
        }
        let ids = prompt::text_ids(&*self.service, text)?;
        let windows = self.windows.of(ids.len(), room)?;
        let prompts: Vec<Vec<u32>> =
            windows.iter().map(|window| prompt.around(&ids[window.clone()])).collect();
        let spans = spans_of(text, &ids, &windows, &|id| self.service.token_bytes(id).len());
        let found = choices.probabilities(&*self.service, prompts.clone(), question)?;
        let scores = spans.into_iter().zip(found).zip(prompts);
        Ok(scores
            .map(|((span, probabilities), prompt)| WindowScore { span, probabilities, prompt })
            .collect())
    }
}
