//! Rows of several answers to one prompt before anything is known of them: what is asked of models (SteerLM 2).

use serde_json::{Map, Value};

use super::answers::Maker;
use super::judged::{self, Judged};
use super::{Answers, Judge, Lesson, Teaching};
use crate::Tokenizer;
use crate::chat::{Keys, Template};

/// What a model reads of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The prompt and the answer, as a reward model is taught.
    Judged,
    /// The same as a language model writes it: the answer is learned.
    Plain,
    /// The answer behind the row's label.
    Labelled,
}

/// The answers of a row (`prompt` or `prompt_turns`, a `label`, and `responses` with a `value` each) in their order. With a label they
/// have the tokens that a run of `steerlm2` learns.
///
/// # Errors
/// In words: what the row lacks; a prompt that is a string, which contains its label, where it is read without one.
pub fn responses(
    row: &Map<String, Value>,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    reads: Reads,
) -> Result<Vec<Lesson>, String> {
    let (prompt, answers, _) = judged::several(row, &Keys::default(), reads == Reads::Labelled)?;
    let answers_are = Answers { judge: Judge::Responses, responses: answers.len(), ..Answers::default() };
    let teaching = Teaching { max_tokens: usize::MAX, answers: answers_are, ..Teaching::default() };
    let maker = Maker { tokenizer, template, teaching: &teaching };
    if reads != Reads::Judged {
        let known = vec![[0.0; 2]; answers.len()];
        return maker.documents(&Judged::Responses { prompt, answers, known });
    }
    let rated = answers.into_iter().map(|answer| {
        maker.documents(&Judged::Rated { prompt: prompt.clone(), answer, ratings: Vec::new() })
    });
    Ok(rated.collect::<Result<Vec<_>, _>>()?.concat())
}
