//! Rows of several answers to one prompt before scoring: the inputs of the scoring models (SteerLM 2).

use serde_json::{Map, Value};

use super::answers::Maker;
use super::feedback::{self, FeedbackRow};
use super::teaching::{Answers, Judge, Lesson, LessonConversion};
use crate::Tokenizer;
use crate::chat::{Keys, Template};

/// Form in which a model reads an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Prompt and answer, in the form used for reward models.
    Judged,
    /// Prompt and answer in the form of language modeling, with the answer as the target.
    Plain,
    /// Answer preceded by the row's label.
    Labelled,
}

/// Answers of a row (`prompt` or `prompt_turns`, a `label`, and `responses` with a `value` each) in order. With a
/// label, the tokens are those that a `steerlm2` run trains on.
///
/// # Errors
/// A message if the row lacks a key, or if it is read without its label but the prompt is a string, which contains
/// the label.
pub fn responses(
    row: &Map<String, Value>,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    reads: Reads,
) -> Result<Vec<Lesson>, String> {
    let (prompt, answers, _) = feedback::several(row, &Keys::default(), reads == Reads::Labelled)?;
    let answers_are = Answers { judge: Judge::Responses, responses: answers.len(), ..Answers::default() };
    let teaching =
        LessonConversion { max_tokens: usize::MAX, answers: answers_are, ..LessonConversion::default() };
    let maker = Maker { tokenizer, template, teaching: &teaching };
    if reads != Reads::Judged {
        let known = vec![[0.0; 2]; answers.len()];
        return maker.documents(&FeedbackRow::Responses { prompt, answers, known });
    }
    let rated = answers.into_iter().map(|answer| {
        maker.documents(&FeedbackRow::Rated { prompt: prompt.clone(), answer, ratings: Vec::new() })
    });
    Ok(rated.collect::<Result<Vec<_>, _>>()?.concat())
}
