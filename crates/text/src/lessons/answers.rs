//! Tokenized answers: the split of a row's text into prompt and answer, following TRL 1.16.
//!
//! There are two methods. DPO, KTO and reward models encode prompt and answer as one text, with the tokenizer's own
//! template, and the answer begins where the tokens of the prompt alone and of both together diverge. ORPO and CPO
//! encode without that template, use the length of the prompt's own tokens, and add missing tokens for the beginning
//! and end of text.

use super::feedback::{FeedbackRow, RowResult, TextOrMessages};
use super::teaching::{Answers, Lesson, LessonConversion, Truncation};
use crate::Tokenizer;
use crate::chat::{Conversation, Template, Turns};

/// A tokenized prompt with its answer, and the index at which the answer begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Whole {
    pub ids: Vec<u32>,
    pub start: usize,
}

/// Converts rows to token sequences.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub tokenizer: &'a Tokenizer,
    pub template: Option<&'a Template>,
    pub teaching: &'a LessonConversion,
}

impl Maker<'_> {
    fn answers(&self) -> &Answers {
        &self.teaching.answers
    }

    /// Training examples of a row.
    pub fn documents(&self, judged: &FeedbackRow) -> RowResult<Vec<Lesson>> {
        match judged {
            FeedbackRow::Pair { prompt, answers: [chosen, rejected], rewards, margin } => {
                if self.answers().rewards && rewards.iter().any(|reward| reward.is_nan()) {
                    return Err(
                        "has no `chosen_reward` and `rejected_reward`, which the objective compares with"
                            .into(),
                    );
                }
                let wholes = self.wholes(prompt, &[chosen, rejected])?;
                let each = wholes.into_iter().zip(rewards);
                each.map(|(whole, reward)| self.lesson(whole, &[*reward, *margin])).collect()
            }
            FeedbackRow::Rated { prompt, answer, ratings } => {
                let whole = self.wholes(prompt, &[answer])?.swap_remove(0);
                Ok(vec![self.lesson(whole, ratings)?])
            }
            FeedbackRow::Responses { prompt, answers, known } => {
                let each = answers.iter().zip(known);
                each.map(|(answer, known)| self.lesson(self.shown(prompt, answer)?, known)).collect()
            }
            FeedbackRow::Steps { prompt, steps, right } => Ok(vec![self.steps(prompt, steps, right)?]),
            FeedbackRow::Answer { .. } => Err("is an answer without others to compare it with".into()),
        }
    }

    /// Examples for a block of desirable and undesirable answers: each with its own prompt, and its prompt with the
    /// answer of the preceding row (for the first, of the last row), from which KTO estimates its divergence.
    pub fn block(&self, rows: &[FeedbackRow]) -> Vec<RowResult<Vec<Lesson>>> {
        let whole = |row: &FeedbackRow| match row {
            FeedbackRow::Answer { prompt, answer, wanted } => {
                Ok((self.wholes(prompt, &[answer])?.swap_remove(0), *wanted))
            }
            _ => Err("is no single answer".to_string()),
        };
        let wholes: Vec<RowResult<(Whole, bool)>> = rows.iter().map(whole).collect();
        let good: Vec<&(Whole, bool)> = wholes.iter().flatten().collect();
        let mut before = good.last().copied();
        wholes
            .iter()
            .map(|row| {
                let (own, wanted) = row.as_ref().map_err(Clone::clone)?;
                let other = before.replace(row.as_ref().map_err(Clone::clone)?);
                let other = other.map_or(own, |(other, _)| other);
                let ids = [&own.ids[..own.start], &other.ids[other.start..]].concat();
                let mismatched = self.lesson(Whole { ids, start: own.start }, &[f32::NAN])?;
                Ok(vec![self.lesson(own.clone(), &[f32::from(u8::from(*wanted))])?, mismatched])
            })
            .collect()
    }

    /// Creates an example whose answer is a target, and the prompt as well if the objective requires it. Its values
    /// are the start of the answer, and `known`.
    fn lesson(&self, whole: Whole, known: &[f32]) -> RowResult<Lesson> {
        let Whole { mut ids, mut start } = whole;
        let (found, most) = (ids.len(), self.teaching.max_tokens);
        if found > most {
            if self.answers().whole || self.teaching.truncation == Truncation::Error {
                return Err(format!(
                    "has a text of {found} tokens, and there is room for {most}; raise stage.*.seq_tokens"
                ));
            }
            match self.teaching.truncation {
                Truncation::KeepEnd => {
                    ids.drain(..found - most);
                    start = start.saturating_sub(found - most);
                }
                _ => ids.truncate(most),
            }
        }
        if start >= ids.len() {
            return Err(format!(
                "has a prompt of {start} tokens, which leaves nothing of the answer where there is room for {most}; raise \
                 stage.*.seq_tokens, or take data.truncation=keep_end"
            ));
        }
        let learned = |at: usize| if at >= start || self.answers().prompts { 1.0 } else { 0.0 };
        let weights = (0..ids.len()).map(learned).collect();
        let values = [start as f32].into_iter().chain(known.iter().copied()).collect();
        Ok(Lesson { weights, cut: found.saturating_sub(most), ids, values, reference: None, best: None })
    }

    /// Tokenizes several answers to one prompt.
    fn wholes(&self, prompt: &TextOrMessages, answers: &[&TextOrMessages]) -> RowResult<Vec<Whole>> {
        if answers.iter().any(|answer| matches!(answer, TextOrMessages::Text(text) if text.is_empty())) {
            return Err("has an empty answer".into());
        }
        let texts: Vec<[String; 2]> =
            answers.iter().map(|answer| self.texts(prompt, answer)).collect::<RowResult<_>>()?;
        if self.answers().bare {
            return texts.into_iter().map(|[before, both]| self.bare(&before, &both)).collect();
        }
        let conversation = matches!(answers.first(), Some(TextOrMessages::Messages(_)));
        let encode = |text: &str| {
            let ids = if conversation {
                self.tokenizer.encode_special(text)
            } else {
                self.tokenizer.encode_prompt(text)
            };
            ids.map_err(|error| error.to_string())
        };
        let before = texts.first().map_or(Ok(Vec::new()), |[before, _]| encode(before))?;
        let wholes: Vec<Vec<u32>> = texts.iter().map(|[_, both]| encode(both)).collect::<RowResult<_>>()?;
        let starts = wholes.iter().map(|whole| common(&before, whole));
        let start = starts.min().unwrap_or(0);
        Ok(wholes.into_iter().map(|ids| Whole { ids, start }).collect())
    }

    /// Tokenizes a prompt with an answer that begins where the chat template marks the target; text that it writes
    /// before that, such as attributes, is context.
    fn shown(&self, prompt: &TextOrMessages, answer: &TextOrMessages) -> RowResult<Whole> {
        let (TextOrMessages::Messages(before), TextOrMessages::Messages(answer), Some(template)) =
            (prompt, answer, self.template)
        else {
            return Ok(self.wholes(prompt, &[answer])?.swap_remove(0));
        };
        let messages = [before.as_slice(), answer.as_slice()].concat();
        let conversation = Conversation { messages, tools: Vec::new(), prompt: before.len() };
        let spoken = template.lesson(&conversation, Turns::Last, self.tokenizer)?;
        let learned = |weight: &f32| *weight > 0.0;
        let start = spoken.weights.iter().position(learned).ok_or("has an answer without a token")?;
        // Text that a template writes after the end of a turn is not part of the answer.
        let end = spoken.weights.iter().rposition(learned).map_or(start, |last| last + 1);
        Ok(Whole { ids: spoken.ids[..end].to_vec(), start })
    }

    fn texts(&self, prompt: &TextOrMessages, answer: &TextOrMessages) -> RowResult<[String; 2]> {
        match (prompt, answer) {
            (TextOrMessages::Text(prompt), TextOrMessages::Text(answer)) => {
                let mut both = format!("{prompt}{answer}");
                if !self.answers().bare {
                    let eos = self.tokenizer.require_eos().map_err(|error| error.to_string())?;
                    let eos = self.tokenizer.token(eos).unwrap_or_default();
                    if !answer.ends_with(&eos) {
                        both.push_str(&eos);
                    }
                }
                Ok([prompt.clone(), both])
            }
            (TextOrMessages::Messages(prompt), TextOrMessages::Messages(answer)) => {
                let Some(template) = self.template else {
                    return Err("is a conversation, and the model has no chat template; name one \
                                (data.chat_template=FILE), or give strings"
                        .into());
                };
                let messages = [prompt.as_slice(), answer.as_slice()].concat();
                let (before, all) = (prompt.len(), messages.len());
                let conversation = Conversation { messages, tools: Vec::new(), prompt: before };
                let text = |count, open| -> RowResult<String> {
                    Ok(template.render(&conversation, count, open)?.text)
                };
                let before = if before == 0 { String::new() } else { text(before, true)? };
                Ok([before, text(all, false)?])
            }
            _ => Err("has a prompt that is a text and an answer of messages, or the other way round".into()),
        }
    }

    /// Tokenizes a row like TRL's ORPO and CPO.
    fn bare(&self, before: &str, both: &str) -> RowResult<Whole> {
        let same = before.chars().zip(both.chars()).take_while(|(one, other)| one == other);
        let before = &before[..same.map(|(one, _)| one.len_utf8()).sum()];
        let encode = |text: &str| self.tokenizer.encode_special(text).map_err(|error| error.to_string());
        let (prompt, mut ids) = (encode(before)?, encode(both)?);
        let mut start = prompt.len();
        if ids.get(..start) != Some(&prompt) {
            start = start.saturating_sub(1).min(ids.len());
        }
        if let Some(bos) = self.tokenizer.own_bos().filter(|bos| start == 0 || ids.first() != Some(bos)) {
            ids.insert(0, bos);
            start += 1;
        }
        let eos = self.tokenizer.require_eos().map_err(|error| error.to_string())?;
        if ids.len() == start || ids.last() != Some(&eos) {
            ids.push(eos);
        }
        Ok(Whole { ids, start })
    }

    /// Tokenizes steps, each followed by a line end whose last token is the judged one: weight 1 for wrong, 2 for
    /// right.
    fn steps(&self, prompt: &str, steps: &[String], right: &[bool]) -> RowResult<Lesson> {
        let encode = |text: &str| self.tokenizer.encode(text).map_err(|error| error.to_string());
        let mut ids = self.tokenizer.encode_prompt(prompt).map_err(|error| error.to_string())?;
        let start = ids.len();
        let mut weights = vec![0.0; start];
        for (step, right) in steps.iter().zip(right) {
            ids.extend(encode(step)?);
            ids.extend(encode("\n")?);
            weights.resize(ids.len(), 0.0);
            if let Some(last) = weights.last_mut() {
                *last = if *right { 2.0 } else { 1.0 };
            }
        }
        let (found, most) = (ids.len(), self.teaching.max_tokens);
        if found > most {
            return Err(format!(
                "has a text of {found} tokens, and there is room for {most}; raise stage.*.seq_tokens"
            ));
        }
        Ok(Lesson { ids, weights, values: vec![start as f32], ..Lesson::default() })
    }
}

fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
