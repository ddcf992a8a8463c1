//! Evaluation sets from local files.

use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Decontaminator;
use crate::counters::Counters;
use crate::error::Error;
use crate::files::{Kind, below};
use crate::read::packed::{Codec, Expansion, Packed};
use crate::read::{ReadOptions, open};

/// A JSON file that is one value, and a line of JSON lines, are at most so large.
const MOST_JSON_BYTES: u64 = 1 << 30;

/// An evaluation set: where it lies, and which of its fields hold the texts that must not be learnt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationSet {
    /// Its name in the report.
    pub name: String,
    /// A file or a folder: JSON lines (`.jsonl`, `.gz`, `.zst`), JSON, Parquet, or text files that are one text each.
    pub path: PathBuf,
    /// The fields of JSON and the columns of Parquet. `questions.text` is the field `text` inside `questions`;
    /// a list stands for all its elements.
    #[serde(default = "text_field")]
    pub fields: Vec<String>,
}

fn text_field() -> Vec<String> {
    vec!["text".into()]
}

impl Decontaminator {
    /// Reads an evaluation set. Files below a folder are read by name.
    ///
    /// # Errors
    /// The path cannot be read, a line is no JSON, or a field holds no text anywhere.
    pub fn add_set(&mut self, set: &EvaluationSet) -> Result<(), Error> {
        self.task(&set.name);
        let metadata = std::fs::metadata(&set.path).map_err(|e| Error::read(&set.path, e))?;
        let files: Vec<PathBuf> = if metadata.is_dir() {
            let found = below(&set.path, true, |_| false, &mut Counters::default())?;
            found.into_iter().map(|file| file.path).collect()
        } else {
            vec![set.path.clone()]
        };
        let mut texts = vec![0u64; set.fields.len()];
        for path in &files {
            self.add_file(set, path, &mut texts)?;
        }
        match texts.iter().position(|&count| count == 0) {
            Some(field) => Err(Error::BadFile {
                path: set.path.clone(),
                kind: "evaluation set",
                detail: format!("the field `{}` of `{}` holds no text", set.fields[field], set.name),
            }),
            None if set.fields.is_empty() => Err(Error::Setting {
                key: "decontaminate.sets.fields",
                found: format!("empty for {}", set.name),
                advice: "name the fields that hold its texts".into(),
            }),
            None => Ok(()),
        }
    }

    fn add_file(&mut self, set: &EvaluationSet, path: &Path, texts: &mut [u64]) -> Result<(), Error> {
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
            let mut bytes = Vec::new();
            let file = File::open(path).map_err(|e| Error::read(path, e))?;
            file.take(MOST_JSON_BYTES).read_to_end(&mut bytes).map_err(|e| Error::read(path, e))?;
            let value = serde_json::from_slice(&bytes).map_err(|e| no_json(path, e.to_string()))?;
            self.add_value(set, &value, texts);
            return Ok(());
        }
        match Kind::of(path) {
            Some(Kind::Jsonl(codec)) => self.add_lines(set, path, codec, texts),
            Some(Kind::Parquet) => {
                for (field, count) in set.fields.iter().zip(texts) {
                    *count += self.add_documents(set, path, field)?;
                }
                Ok(())
            }
            _ => {
                let count = self.add_documents(set, path, "text")?;
                texts.iter_mut().for_each(|texts| *texts += count);
                Ok(())
            }
        }
    }

    fn add_documents(&mut self, set: &EvaluationSet, path: &Path, field: &str) -> Result<u64, Error> {
        let options = ReadOptions { field: field.to_owned(), ..ReadOptions::default() };
        let mut count = 0;
        for document in open(&[path.to_owned()], &options)? {
            self.add(&set.name, &document?.text);
            count += 1;
        }
        Ok(count)
    }

    fn add_lines(
        &mut self,
        set: &EvaluationSet,
        path: &Path,
        codec: Codec,
        texts: &mut [u64],
    ) -> Result<(), Error> {
        let file = File::open(path).map_err(|e| Error::read(path, e))?;
        let mut input = Packed::new(Box::new(file), codec, Expansion::default());
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = input.by_ref().take(MOST_JSON_BYTES).read_until(b'\n', &mut line);
            if read.map_err(|e| Error::read(path, e))? == 0 {
                break;
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let value =
                serde_json::from_slice(&line).map_err(|e| no_json(path, format!("line {number}: {e}")))?;
            self.add_value(set, &value, texts);
        }
        Ok(())
    }

    fn add_value(&mut self, set: &EvaluationSet, value: &Value, texts: &mut [u64]) {
        for (field, count) in set.fields.iter().zip(texts) {
            let mut found = Vec::new();
            strings(value, &field.split('.').collect::<Vec<_>>(), &mut found);
            *count += found.len() as u64;
            found.into_iter().for_each(|text| self.add(&set.name, text));
        }
    }
}

/// All strings at a path; lists on the way stand for each of their elements.
fn strings<'v>(value: &'v Value, path: &[&str], found: &mut Vec<&'v str>) {
    match (value, path) {
        (Value::Array(values), _) => values.iter().for_each(|value| strings(value, path, found)),
        (Value::String(text), []) => found.push(text),
        (Value::Object(fields), [name, rest @ ..]) => {
            fields.get(*name).into_iter().for_each(|value| strings(value, rest, found));
        }
        _ => {}
    }
}

fn no_json(path: &Path, detail: String) -> Error {
    Error::BadFile { path: path.to_owned(), kind: "JSON", detail }
}
