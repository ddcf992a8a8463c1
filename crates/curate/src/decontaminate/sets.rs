//! Evaluation sets from local files.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Decontaminator;
use crate::counters::Counters;
use crate::error::Error;
use crate::files::{Links, below};
use crate::kinds::Kind;
use crate::pipeline::split_name;
use crate::read::lenient::leniently;
use crate::read::packed::{Codec, Decompressor, Expansion};
use crate::read::{ReadOptions, open};

/// Bytes of the largest JSON file that is one value, which is parsed at once.
const MOST_JSON_BYTES: u64 = 256 << 20;
/// Length limit of a line of JSON lines, which may come from a small compressed file. Parsed JSON takes up to thirty
/// times its text.
const LONGEST_LINE: u64 = 64 << 20;
/// Limit of field names listed in a message.
const MOST_NAMED: usize = 12;

/// An evaluation set: its path and the fields that hold the texts to keep out of training. A recipe may also give
/// just the path, or `name=path`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationSet {
    /// Name in the report; defaults to the file name without extensions.
    pub name: String,
    /// File or folder: JSON lines (`.jsonl`, `.gz`, `.zst`), JSON, Parquet, or text files of one text each.
    pub path: PathBuf,
    /// JSON fields or Parquet columns; defaults to `text`. `questions.text` is the field `text` inside `questions`; a
    /// list stands for all its elements.
    pub fields: Vec<String>,
}

/// How a set is written as a table.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EvaluationSetToml {
    name: Option<String>,
    path: PathBuf,
    fields: Option<Vec<String>>,
}

impl JsonSchema for EvaluationSet {
    fn schema_name() -> Cow<'static, str> {
        "EvaluationSet".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [generator.subschema_for::<String>(), generator.subschema_for::<EvaluationSetToml>()] })
    }
}

impl From<EvaluationSetToml> for EvaluationSet {
    fn from(toml: EvaluationSetToml) -> EvaluationSet {
        let name = || {
            let file = toml.path.file_name().map(|name| name.to_string_lossy().into_owned());
            let file = file.unwrap_or_else(|| toml.path.display().to_string());
            file.split('.').find(|part| !part.is_empty()).map_or_else(|| file.clone(), str::to_owned)
        };
        let name = toml.name.clone().unwrap_or_else(name);
        let fields = toml.fields.unwrap_or_else(|| vec!["text".to_owned()]);
        EvaluationSet { name, path: toml.path, fields }
    }
}

impl<'de> Deserialize<'de> for EvaluationSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EvaluationSet, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = EvaluationSet;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or { name = \"quiz\", path = \"quiz.jsonl\", fields = [\"question\"] }")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<EvaluationSet, E> {
                let (name, path) = split_name(text).map_or((None, text), |(name, path)| (Some(name), path));
                let name = name.map(str::to_owned);
                Ok(EvaluationSetToml { name, path: path.into(), fields: None }.into())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EvaluationSet, A::Error> {
                EvaluationSetToml::deserialize(MapAccessDeserializer::new(map)).map(EvaluationSet::from)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl Decontaminator {
    /// Reads an evaluation set. Files below a folder are read in name order.
    ///
    /// # Errors
    /// The path cannot be read, a line is not JSON, or a field contains no text anywhere.
    pub fn add_set(&mut self, set: &EvaluationSet) -> Result<(), Error> {
        self.task(&set.name);
        let metadata = std::fs::metadata(&set.path).map_err(|e| Error::read(&set.path, e))?;
        let files: Vec<PathBuf> = if metadata.is_dir() {
            let mut counters = Counters::default();
            let found = below(&set.path, Links::Within, |_| false, &mut counters)?;
            // A skipped part of the set would leak into training.
            if let Some(lost) = counters.damage.pop() {
                let (path, detail) = (set.path.clone(), lost.to_string());
                return Err(Error::BadFile { path, kind: "evaluation set", detail });
            }
            found.into_iter().map(|file| file.path).collect()
        } else {
            vec![set.path.clone()]
        };
        let mut texts = Texts { counts: vec![0; set.fields.len()], named: BTreeSet::new() };
        for path in &files {
            self.add_file(set, path, &mut texts)?;
        }
        self.files.extend(files);
        let advice = if texts.named.is_empty() {
            "choose a file with texts".to_owned()
        } else {
            let names = texts.named.into_iter().collect::<Vec<_>>().join(", ");
            let path = set.path.display();
            format!("text is in {names}; write {{ path = \"{path}\", fields = [..] }} with those that count")
        };
        match texts.counts.iter().position(|&count| count == 0) {
            Some(field) => Err(Error::BadFile {
                path: set.path.clone(),
                kind: "evaluation set",
                detail: format!(
                    "the field `{}` of `{}` holds no text; {advice}",
                    set.fields[field], set.name
                ),
            }),
            None if set.fields.is_empty() => Err(Error::Setting {
                key: "sets",
                found: format!("without fields for {}", set.name),
                advice: "name the fields that hold its texts".into(),
            }),
            None => Ok(()),
        }
    }

    fn add_file(&mut self, set: &EvaluationSet, path: &Path, texts: &mut Texts) -> Result<(), Error> {
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
            let mut bytes = Vec::new();
            let file = File::open(path).map_err(|e| Error::read(path, e))?;
            let length = file.metadata().map_err(|e| Error::read(path, e))?.len();
            if length <= MOST_JSON_BYTES {
                file.take(MOST_JSON_BYTES + 1).read_to_end(&mut bytes).map_err(|e| Error::read(path, e))?;
            }
            if length.max(bytes.len() as u64) > MOST_JSON_BYTES {
                let detail =
                    format!("is one value of more than {MOST_JSON_BYTES} bytes; write it as JSON lines");
                return Err(no_json(path, detail));
            }
            let value = leniently(&bytes, |bytes| serde_json::from_slice(bytes))
                .map_err(|e| no_json(path, e.to_string()))?;
            self.add_value(set, &value, texts);
            return Ok(());
        }
        match Kind::of(path) {
            Some(Kind::Jsonl(codec)) => self.add_lines(set, path, codec, texts),
            Some(Kind::Parquet) => {
                for (field, count) in set.fields.iter().zip(&mut texts.counts) {
                    *count += self.add_documents(set, path, field)?;
                }
                Ok(())
            }
            _ => {
                let count = self.add_documents(set, path, "text")?;
                texts.counts.iter_mut().for_each(|texts| *texts += count);
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
        texts: &mut Texts,
    ) -> Result<(), Error> {
        let file = File::open(path).map_err(|e| Error::read(path, e))?;
        let mut input = Decompressor::new(Box::new(file), codec, Expansion::default());
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|e| Error::read(path, e))? as u64;
            if read == 0 {
                break;
            }
            if read == LONGEST_LINE && !line.ends_with(b"\n") {
                let detail = format!("line {number} is longer than {LONGEST_LINE} bytes; split the row");
                return Err(no_json(path, detail));
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let value = leniently(&line, |line| serde_json::from_slice(line))
                .map_err(|e| no_json(path, format!("line {number}: {e}")))?;
            self.add_value(set, &value, texts);
        }
        Ok(())
    }

    fn add_value(&mut self, set: &EvaluationSet, value: &Value, texts: &mut Texts) {
        if texts.named.len() < MOST_NAMED {
            name_strings(value, "", &mut texts.named);
        }
        for (field, count) in set.fields.iter().zip(&mut texts.counts) {
            let mut found = Vec::new();
            strings(value, &field.split('.').collect::<Vec<_>>(), &mut found);
            *count += found.len() as u64;
            found.into_iter().for_each(|text| self.add(&set.name, text));
        }
    }
}

/// Texts found in a set.
struct Texts {
    /// Number of texts by field.
    counts: Vec<u64>,
    /// JSON fields that hold text, for messages.
    named: BTreeSet<String>,
}

/// Collects the paths of all strings of a value.
fn name_strings(value: &Value, path: &str, named: &mut BTreeSet<String>) {
    match value {
        Value::String(_) if !path.is_empty() && named.len() < MOST_NAMED => {
            named.insert(path.to_owned());
        }
        Value::Array(values) => values.iter().for_each(|value| name_strings(value, path, named)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            name_strings(value, &path, named);
        }),
        _ => {}
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
