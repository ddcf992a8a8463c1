//! Lessons: rows of a file as tokens, each with a weight as a target. Weight 0 marks context, which is read but not
//! trained on.
//!
//! Conversations ([`crate::chat`]) are rendered by the model's chat template. Two kinds of rows need no template:
//! token rows (`input_ids` with `labels`, `completion_mask`, `assistant_masks` or `weights`, as in TRL's prepared
//! data sets) and pairs of strings (`prompt` and `completion`, or `input` and `output`). Masks are by position, never
//! by token id. Rows that compare or judge answers become several documents that stay together ([`Judge`]).
//! Independent of stores and models.

mod answers;
mod feedback;
mod prompts;
mod responses;
mod rows;
mod teaching;
mod texts;

use std::collections::VecDeque;
use std::path::PathBuf;

use serde_json::{Map, Value};

use answers::Maker;
pub use prompts::{Prompt, prompts};
pub use responses::{Reads, responses};
pub use rows::{Rows, has_rows, is_lesson_file};
pub use teaching::{Answers, Columns, Judge, Lesson, LessonConversion, Supervise, Truncation};

use crate::Tokenizer;
use crate::chat::{Conversation, Keys, Template, TokenizedConversation, Turns};
use crate::error::{Error, OrIo, Result};

/// Iterator over the rows of files as lessons, in file and line order.
#[derive(Debug)]
pub struct Lessons<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a Template>,
    teaching: &'a LessonConversion,
    paths: std::vec::IntoIter<PathBuf>,
    rows: Option<Rows>,
    /// Lessons already made but not yet returned.
    ready: VecDeque<Result<Vec<Lesson>>>,
}

/// A row or its error, with its file and line.
type LocatedRow = (Result<Value>, PathBuf, u64);

impl<'a> Lessons<'a> {
    /// Opens the rows of these files. Conversations need a chat template.
    pub fn new(
        paths: Vec<PathBuf>,
        (tokenizer, template): (&'a Tokenizer, Option<&'a Template>),
        teaching: &'a LessonConversion,
    ) -> Lessons<'a> {
        let (paths, ready) = (paths.into_iter(), VecDeque::new());
        Lessons { tokenizer, template, teaching, paths, rows: None, ready }
    }

    /// Returns the next row of the files.
    fn row(&mut self) -> Option<Result<LocatedRow>> {
        loop {
            if let Some(rows) = &mut self.rows {
                if let Some(row) = rows.next() {
                    return Some(Ok((row, rows.path().to_owned(), rows.line())));
                }
                self.rows = None;
            }
            match Rows::open(&self.paths.next()?) {
                Ok(rows) => self.rows = Some(rows),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn maker(&self) -> Maker<'a> {
        Maker { tokenizer: self.tokenizer, template: self.template, teaching: self.teaching }
    }

    /// Documents of a row, or a message that describes its problem.
    fn documents(&mut self, row: &Value) -> std::result::Result<Vec<Lesson>, String> {
        let (teaching, maker) = (self.teaching, self.maker());
        let (answers, keys) = (&teaching.answers, teaching.columns.keys());
        if answers.judge == Judge::None {
            let mut lesson = lesson(row, (self.tokenizer, self.template), teaching)?;
            feedback::learn_from(object(row)?, &mut lesson)?;
            return Ok(vec![lesson]);
        }
        let row = object(row)?;
        if let Some(made) = texts::documents(row, self.tokenizer, teaching) {
            return made;
        }
        let mut documents = maker.documents(&match answers.judge {
            Judge::Ratings => feedback::rated(row, &answers.ratings, &keys)?,
            Judge::Steps => feedback::steps(row, &keys)?,
            Judge::Responses => feedback::responses(row, answers.responses, &keys)?,
            // NeMo-Aligner's pairs are two rows, the better text first.
            _ if row.contains_key("text") && !row.contains_key("chosen") => {
                let other = self.row().transpose().map_err(|error| error.to_string())?;
                let other = other.and_then(|(row, ..)| row.ok());
                let text =
                    |row: &Map<String, Value>| row.get("text").and_then(Value::as_str).map(str::to_string);
                let texts = (text(row), other.as_ref().and_then(Value::as_object).and_then(text));
                let (Some(chosen), Some(rejected)) = texts else {
                    return Err("is a `text` without another after it to compare it with".into());
                };
                let pair = serde_json::json!({"chosen": chosen, "rejected": rejected});
                feedback::pair(object(&pair)?, &keys)?
            }
            _ => feedback::pair(row, &keys)?,
        })?;
        feedback::refer(row, &mut documents)?;
        Ok(documents)
    }

    /// Reads the rows of a block within which answers are exchanged.
    fn fill(&mut self) {
        let (mut rows, mut places) = (Vec::new(), Vec::new());
        let keys = self.teaching.columns.keys();
        while rows.len() < self.teaching.answers.block.max(1) {
            let (row, path, line) = match self.row() {
                None => break,
                Some(Ok(placed)) => placed,
                Some(Err(error)) => {
                    self.ready.push_back(Err(error));
                    break;
                }
            };
            let read = row.and_then(|row| {
                let read = object(&row).and_then(|row| feedback::labelled(row, &keys));
                read.map_err(|reason| Error::Row { path: path.clone(), line, reason })
            });
            match read {
                Ok(read) => {
                    places.extend(read.iter().map(|_| (path.clone(), line)));
                    rows.extend(read);
                }
                Err(error) => self.ready.push_back(Err(error)),
            }
        }
        let made = self.maker().block(&rows).into_iter().zip(places);
        let place = |(made, (path, line)): (std::result::Result<_, String>, _)| {
            made.map_err(|reason| Error::Row { path, line, reason })
        };
        self.ready.extend(made.map(place));
    }
}

impl Iterator for Lessons<'_> {
    type Item = Result<Vec<Lesson>>;

    /// Returns the documents of the next row. An error in a row names its file and line; later rows can still be
    /// read.
    fn next(&mut self) -> Option<Result<Vec<Lesson>>> {
        if self.teaching.answers.judge == Judge::Labels {
            if self.ready.is_empty() {
                self.fill();
            }
            return self.ready.pop_front();
        }
        Some(self.row()?.and_then(|(row, path, line)| {
            self.documents(&row?).map_err(|reason| Error::Row { path, line, reason })
        }))
    }
}

fn object(row: &Value) -> std::result::Result<&Map<String, Value>, String> {
    row.as_object().ok_or_else(|| "is no JSON object with named fields".into())
}

/// Converts a row to a lesson, or returns a message that describes its problem.
fn lesson(
    row: &Value,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    teaching: &LessonConversion,
) -> std::result::Result<Lesson, String> {
    let row = object(row)?;
    let is_tokens = row.contains_key("input_ids");
    let conversation = if is_tokens { None } else { Conversation::read(row, &teaching.columns.keys())? };
    let mut lesson = match conversation {
        Some(conversation) => spoken(&conversation, (tokenizer, template), teaching)?,
        None if is_tokens => tokens(row, tokenizer.vocab_size())?,
        None => pair(row, tokenizer, teaching)?,
    };
    if teaching.supervise == Supervise::All {
        lesson.weights.fill(1.0);
    }
    truncate(&mut lesson, teaching)?;
    if lesson.supervised() > 0 {
        return Ok(lesson);
    }
    Err(match lesson.cut {
        0 => format!("has no supervised token among {}", lesson.ids.len()),
        cut => format!(
            "has no supervised token left: {cut} tokens were cut off to keep {}; raise stage.*.seq_tokens, or take \
             data.truncation=keep_end",
            lesson.ids.len()
        ),
    })
}

/// Converts a conversation with the model's chat template.
fn spoken(
    conversation: &Conversation,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    teaching: &LessonConversion,
) -> std::result::Result<Lesson, String> {
    let Some(template) = template else {
        return Err("is a conversation, and the model has no chat template; name one (data.chat_template=FILE), or give rows of \
                    `prompt` and `completion`"
            .into());
    };
    let turns = match teaching.supervise {
        Supervise::Completion => Turns::Assistant,
        Supervise::LastTurn => Turns::Last,
        Supervise::All => Turns::All,
    };
    let TokenizedConversation { ids, weights, .. } = template.lesson(conversation, turns, tokenizer)?;
    Ok(Lesson { ids, weights, ..Lesson::default() })
}

impl Columns {
    /// Key names for conversations.
    pub fn keys(&self) -> Keys {
        let Columns { prompt, completion, messages, role, content, system, tools, chosen, rejected, label } =
            self.clone();
        Keys { messages, role, content, prompt, completion, system, tools, chosen, rejected, label }
    }
}

fn truncate(lesson: &mut Lesson, teaching: &LessonConversion) -> std::result::Result<(), String> {
    let (found, most) = (lesson.ids.len(), teaching.max_tokens);
    if found <= most {
        return Ok(());
    }
    if teaching.truncation == Truncation::Error {
        return Err(format!(
            "has {found} tokens, and a sample {most}; raise stage.*.seq_tokens, or let it be cut (data.truncation=keep_start)"
        ));
    }
    let kept = teaching.truncation.kept(found, most);
    lesson.ids = lesson.ids[kept.clone()].to_vec();
    lesson.weights = lesson.weights[kept].to_vec();
    lesson.cut = found - most;
    Ok(())
}

/// Row of ready-made tokens, with one of the masks.
fn tokens(row: &Map<String, Value>, vocab: usize) -> std::result::Result<Lesson, String> {
    let list = |key: &str| -> std::result::Result<Option<Vec<f64>>, String> {
        let Some(value) = row.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let numbers = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        numbers.map(Some).ok_or_else(|| format!("`{key}` is no list of numbers"))
    };
    let ids = list("input_ids")?.unwrap_or_default();
    let is_id = |id: &&f64| id.fract() == 0.0 && (0.0..vocab as f64).contains(*id);
    if let Some(wrong) = ids.iter().find(|id| !is_id(id)) {
        return Err(format!("`input_ids` has {wrong}, and the tokenizer has the ids 0 to {}", vocab - 1));
    }
    // Just verified to be integers below the vocabulary size.
    let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
    let mut weights = vec![1.0; ids.len()];
    for key in ["labels", "completion_mask", "assistant_masks", "weights"] {
        let Some(mask) = list(key)? else { continue };
        if mask.len() != ids.len() {
            return Err(format!("`{key}` has {} values for {} tokens", mask.len(), ids.len()));
        }
        for (at, (weight, value)) in weights.iter_mut().zip(mask).enumerate() {
            *weight *= match key {
                "labels" if value == f64::from(ids[at]) => 1.0,
                "labels" if value < 0.0 => 0.0,
                "labels" => return Err(format!("`labels` has {value} where `input_ids` has {}", ids[at])),
                _ if value.is_finite() && value >= 0.0 => value as f32,
                _ => return Err(format!("`{key}` has {value}; a weight is a number from 0 up")),
            };
        }
    }
    Ok(Lesson { ids, weights, ..Lesson::default() })
}

/// A prompt and its completion, both strings, tokenized as one text with a final end-of-text token, as in TRL 1.16:
/// the completion begins where the tokens of the prompt alone and of both together diverge.
fn pair(
    row: &Map<String, Value>,
    tokenizer: &Tokenizer,
    teaching: &LessonConversion,
) -> std::result::Result<Lesson, String> {
    let (prompt, completion) = pair_keys(row, &teaching.columns)?;
    let text = |key: &str| match &row[key] {
        Value::String(text) => Ok(text.as_str()),
        Value::Array(_) => Err(format!("`{key}` is a list of messages, and the other is none")),
        _ => Err(format!("`{key}` is no string")),
    };
    let (prompt, completion) = (text(&prompt)?, text(&completion)?);
    if completion.is_empty() {
        return Err("has an empty completion: there is nothing to learn".into());
    }
    let encode = |text: &str| tokenizer.encode_prompt(text).map_err(|error| error.to_string());
    let eos = tokenizer.require_eos().map_err(|error| error.to_string())?;
    let before = encode(prompt)?;
    let mut ids = encode(&format!("{prompt}{completion}"))?;
    if ids.last() != Some(&eos) {
        ids.push(eos);
    }
    let common = before.iter().zip(&ids).take_while(|(one, other)| one == other).count();
    let weights = (0..ids.len()).map(|at| if at < common { 0.0 } else { 1.0 }).collect();
    Ok(Lesson { ids, weights, ..Lesson::default() })
}

/// Usual keys of a pair in TRL and NeMo.
const PAIRS: [[&str; 2]; 2] = [["prompt", "completion"], ["input", "output"]];

/// Keys of a row's prompt and completion.
fn pair_keys(row: &Map<String, Value>, columns: &Columns) -> std::result::Result<(String, String), String> {
    let has = |key: &str| row.contains_key(key);
    let named = PAIRS.iter().find(|keys| keys.iter().all(|key| has(key)) && !has("instruction"));
    let usual = |at: usize| named.map(|keys| keys[at].to_owned());
    let prompt = columns.prompt.clone().or(usual(0)).filter(|key| has(key));
    let completion = columns.completion.clone().or(usual(1)).filter(|key| has(key));
    if let (Some(prompt), Some(completion)) = (prompt, completion) {
        return Ok((prompt, completion));
    }
    let seen: Vec<String> = row.keys().map(|key| format!("`{key}`")).collect();
    Err(format!(
        "has the keys {}; a lesson has `messages` or `conversations`, `prompt` and `completion`, `instruction` and `output`, or \
         `input_ids`, or others that data.columns names",
        if seen.is_empty() { "of an empty object".into() } else { seen.join(", ") }
    ))
}

/// Files denoted by a list of paths: files themselves, and for folders the files with rows in them (`.jsonl` or
/// `.json`, possibly followed by `.gz` or `.zst`, and `.parquet`), in name order.
///
/// # Errors
/// A path does not exist, or a folder contains no such file.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        if !std::fs::metadata(path).or_io("read", path)?.is_dir() {
            all.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.or_io("read", path)?;
        let mut found: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        found.retain(|file| rows::has_rows(file));
        found.sort();
        if found.is_empty() {
            let reason = format!(
                "{}: the folder has no .jsonl, .json or .parquet file, compressed or not",
                path.display()
            );
            return Err(Error::Documents(reason));
        }
        all.append(&mut found);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
