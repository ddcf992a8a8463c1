//! A judge asked about every window of a text.

use std::sync::Arc;

use fathom_base::Service;

use super::choice::Choices;
use super::prompt::{JudgePrompt, text_ids};
use super::question::{JudgeError, JudgeResult, Question};
use super::windows::{Windows, spans_of};

/// A model that judges, with its limits.
#[derive(Clone)]
pub(crate) struct Judge {
    /// The model.
    pub service: Arc<dyn Service>,
    /// How a text is divided.
    pub windows: Windows,
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
        let ids = text_ids(&*self.service, text)?;
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
