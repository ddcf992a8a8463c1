//! Local sets: JSON, JSON lines, CSV and Parquet files by split. Nothing is downloaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fathom_text::Tokenizer;
use fathom_text::lessons::Rows;
use serde_json::{Map, Value};

use super::config::TaskConfig;
use super::files::{self, FileSettings};
use super::languages;
use crate::error::{Error, Result};
use crate::{long, ruler};

/// Where sets come from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sets<'s> {
    /// Folder of sets.
    pub folder: Option<&'s Path>,
    /// The model's tokenizer, by which RULER's sets are drawn.
    pub tokenizer: Option<&'s Tokenizer>,
    /// Tokens that the chat template adds to a prompt.
    pub template_tokens: usize,
}

/// Rows of a split; all have the same columns.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Map<String, Value>>,
}

/// The splits of a task's set that were read.
#[derive(Debug, Default)]
pub struct Data {
    splits: BTreeMap<String, Split>,
}

impl Data {
    /// Reads the splits that a task uses; of a set that is drawn, `most` rows at most.
    ///
    /// # Errors
    /// Files that are missing, with where people get them; rows that cannot be read; a split without rows.
    pub fn open(config: &TaskConfig, sets: &Sets<'_>, most: &dyn Fn(usize) -> usize) -> Result<Data> {
        let eval = config.split()?.to_string();
        let mut wanted = vec![eval];
        if config.num_fewshot > 0 && config.fewshot.samples.is_none() {
            wanted.extend(fewshot_split(config));
        }
        let mut data = Data::default();
        for name in wanted {
            if data.splits.contains_key(&name) {
                continue;
            }
            if let Some(split) = made(config, sets, &name, most)? {
                data.splits.insert(name, split);
                continue;
            }
            let settings = FileSettings::of(config)?;
            let files = match files::named(config, sets.folder, &name)? {
                Some(named) => named,
                None => stored(config, sets.folder, &name)?,
            };
            let split = read(config, &settings, &files)?;
            if split.rows.is_empty() {
                let shown: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                return Err(Error::task(
                    &config.name,
                    format!("split `{name}` has no rows: {}", shown.join(", ")),
                ));
            }
            data.splits.insert(name, split);
        }
        Ok(data)
    }

    /// A split that was read.
    ///
    /// # Panics
    /// Never for splits that the task uses.
    pub fn split(&self, name: &str) -> &Split {
        &self.splits[name]
    }
}

/// The split that examples are drawn from.
pub fn fewshot_split(config: &TaskConfig) -> Option<String> {
    let named = ["training_split", "validation_split", "test_split"].iter().find_map(|key| config.text(key));
    config.fewshot.split.clone().or(named.map(str::to_string))
}

/// Rows of a set that is not read as it is: drawn, or made of other files.
fn made(
    config: &TaskConfig,
    sets: &Sets<'_>,
    split: &str,
    most: &dyn Fn(usize) -> usize,
) -> Result<Option<Split>> {
    let kwargs = config.keys.get("dataset_kwargs").cloned().unwrap_or_default();
    let (task, folder) = (config.name.as_str(), sets.folder);
    let rows = match config.text("dataset_path") {
        Some(ruler::DATASET) => return drawn(config, sets, most).map(Some),
        Some(languages::FLORES) => languages::pairs(task, &kwargs, folder, split)?,
        Some(path) => {
            let kwargs = &kwargs.as_object().cloned().unwrap_or_default();
            let request = long::Request { task, path, kwargs, folder, tokenizer: sets.tokenizer };
            let Some(rows) = long::rows(&request, most)? else { return Ok(None) };
            rows
        }
        None => return Ok(None),
    };
    Ok(Some(Split { columns: rows[0].keys().cloned().collect(), rows }))
}

/// Tokens of the context that the rows of a set are made for, with one that begins the text; `None` for other sets.
pub fn room(config: &TaskConfig) -> Option<usize> {
    let kwargs = config.keys.get("dataset_kwargs")?;
    let tokens = match config.text("dataset_path") {
        Some(ruler::DATASET) => kwargs["tokens"].as_u64(),
        Some(long::NOLIMA) => kwargs["room"].as_u64(),
        _ => None,
    };
    tokens.map(|tokens| tokens as usize + 1)
}

/// Rows of a set of RULER's.
fn drawn(config: &TaskConfig, sets: &Sets<'_>, most: &dyn Fn(usize) -> usize) -> Result<Split> {
    let wrong = |reason: &str| Error::task(&config.name, reason);
    let kwargs = &config.keys["dataset_kwargs"];
    let number = |key: &str| kwargs[key].as_u64();
    let (Some(task), Some(tokens)) = (kwargs["task"].as_str(), number("tokens")) else {
        return Err(wrong(
            "`dataset_path: ruler` needs `dataset_kwargs` with a `task` and a number of `tokens`",
        ));
    };
    let tokenizer = sets.tokenizer.ok_or_else(|| wrong("is drawn by a tokenizer, and there is none"))?;
    let request = ruler::Request {
        task,
        tokens: tokens as usize,
        template_tokens: sets.template_tokens,
        rows: most(number("rows").map_or(ruler::ITEMS, |rows| rows as usize)).max(1),
        seed: number("seed").unwrap_or(ruler::SEED),
        folder: sets.folder,
    };
    let rows = ruler::rows(&request, tokenizer)?;
    Ok(Split { columns: rows[0].keys().cloned().collect(), rows })
}

/// The files of a split that a task does not name itself.
fn stored(config: &TaskConfig, folder: Option<&Path>, split: &str) -> Result<Vec<PathBuf>> {
    let wrong = |reason: String| Error::task(&config.name, reason);
    let path = config.text("dataset_path").ok_or_else(|| wrong("has no `dataset_path`".into()))?;
    let name = config.text("dataset_name");
    let found =
        folder.map_or_else(Vec::new, |folder| in_folder(folder, config, [path, name.unwrap_or("")], split));
    if !found.is_empty() {
        return Ok(found);
    }
    let set = name.map_or_else(|| path.to_string(), |name| format!("{path}, configuration `{name}`"));
    let place = folder.unwrap_or_else(|| Path::new("DIR")).join(path.replace('/', "__"));
    let place = place.join(name.unwrap_or_default()).join(format!("{split}.jsonl"));
    let one_file = name.filter(|_| is_only_split(config, split));
    let one_file = one_file.map_or_else(String::new, |name| format!(", from DIR/{name}.jsonl"));
    Err(wrong(format!(
        "the split `{split}` of {set} is not there, and nothing is downloaded. People get it from \
         https://huggingface.co/datasets/{path}; with --data-dir DIR it is read from {} (or .json, .csv, .parquet)\
         {one_file}, or from a copy of that repository in DIR/{path}",
        place.display()
    )))
}

/// Files of a split in the folder of `--data-dir`: `PATH__SET/NAME/SPLIT.jsonl`, `TASK/SPLIT.jsonl`, or the layout of a
/// repository of data sets.
fn in_folder(folder: &Path, config: &TaskConfig, [path, name]: [&str; 2], split: &str) -> Vec<PathBuf> {
    let flat = path.replace('/', "__");
    let last = path.rsplit('/').next().unwrap_or(path);
    let mut roots: Vec<PathBuf> =
        [flat.as_str(), path, last].iter().map(|at| folder.join(at).join(name)).collect();
    roots.push(folder.join(&config.name));
    if !name.is_empty() && is_only_split(config, split) {
        for root in [folder.join(&flat), folder.join(path), folder.join(last), folder.to_path_buf()] {
            for file in [root.join(format!("{name}.jsonl")), root.join("data").join(format!("{name}.jsonl"))]
            {
                if file.is_file() {
                    return vec![file];
                }
            }
        }
    }
    if name.is_empty() {
        let plain: Vec<PathBuf> = roots.iter().map(|root| root.join("data")).collect();
        roots.extend(plain);
        roots.extend([flat.as_str(), path, last].iter().map(|at| folder.join(at).join("default")));
    }
    for root in roots {
        for extension in ["jsonl", "json", "csv", "parquet", "jsonl.gz", "jsonl.zst"] {
            let file = root.join(format!("{split}.{extension}"));
            if file.is_file() {
                return vec![file];
            }
        }
        let Ok(inside) = std::fs::read_dir(&root) else { continue };
        let is_part = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with(&format!("{split}-")) && (name.ends_with(".parquet") || name.ends_with(".jsonl"))
        };
        let mut parts: Vec<PathBuf> = inside.filter_map(|it| Some(it.ok()?.path())).filter(is_part).collect();
        parts.sort();
        if !parts.is_empty() {
            return parts;
        }
    }
    Vec::new()
}

/// True if a task uses no other split, so that a file of the configuration's name can only be this one.
fn is_only_split(config: &TaskConfig, split: &str) -> bool {
    config.num_fewshot == 0 || fewshot_split(config).is_none_or(|name| name == split)
}

fn read(config: &TaskConfig, settings: &FileSettings, files: &[PathBuf]) -> Result<Split> {
    let mut rows: Vec<Map<String, Value>> = Vec::new();
    for file in files {
        let wrong = |reason: String| Error::task(&config.name, format!("{}: {reason}", file.display()));
        if file.extension().is_some_and(|it| it == "csv" || it == "tsv") {
            rows.extend(table(file, settings.delimiter).map_err(wrong)?);
            continue;
        }
        if let Some(field) = &settings.field {
            rows.extend(of_field(file, field).map_err(wrong)?);
            continue;
        }
        for row in Rows::open(file)? {
            match row? {
                Value::Object(row) => rows.push(row),
                other => return Err(wrong(format!("row {} is no object: {other:.60}", rows.len() + 1))),
            }
        }
    }
    let mut all = Map::new();
    rows.iter().for_each(|row| merge(&mut all, row));
    let rows = rows.into_iter().map(|row| conform(row, &all)).collect();
    Ok(Split { columns: all.keys().cloned().collect(), rows })
}

/// Notes the members of a row, with a value that shows the kind of each column.
fn merge(all: &mut Map<String, Value>, row: &Map<String, Value>) {
    for (name, value) in row {
        match (all.entry(name.clone()).or_insert(Value::Null), value) {
            (Value::Object(known), Value::Object(own)) => merge(known, own),
            (known @ Value::Null, Value::Object(own)) => {
                let mut members = Map::new();
                merge(&mut members, own);
                *known = Value::Object(members);
            }
            (known @ Value::Null, own) => *known = own.clone(),
            (known @ Value::Number(_), Value::Number(own)) if own.is_f64() => *known = value.clone(),
            _ => {}
        }
    }
}

/// A row with all columns, `null` where it has none, and floating-point numbers in columns that have some.
fn conform(row: Map<String, Value>, all: &Map<String, Value>) -> Map<String, Value> {
    let mut row = row;
    let of = |(name, kind): (&String, &Value)| {
        let value = match (row.shift_remove(name).unwrap_or_default(), kind) {
            (Value::Object(own), Value::Object(known)) => Value::Object(conform(own, known)),
            (Value::Number(own), Value::Number(known)) if known.is_f64() => {
                own.as_f64().map_or(Value::Null, Value::from)
            }
            (own, _) => own,
        };
        (name.clone(), value)
    };
    all.iter().map(of).collect()
}

/// Rows of a member of a JSON file: a list of objects, or an object of columns.
fn of_field(file: &Path, field: &str) -> std::result::Result<Vec<Map<String, Value>>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let mut whole: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match whole[field].take() {
        Value::Array(rows) => rows
            .into_iter()
            .map(|row| match row {
                Value::Object(row) => Ok(row),
                other => Err(format!("a row of `{field}` is no object: {other:.60}")),
            })
            .collect(),
        Value::Object(columns) => {
            let count = columns.values().filter_map(Value::as_array).map(Vec::len).max().unwrap_or(0);
            let row = |at: usize| columns.iter().map(|(name, all)| (name.clone(), all[at].clone())).collect();
            Ok((0..count).map(row).collect())
        }
        _ => Err(format!("has no list `{field}` (`dataset_kwargs.field`)")),
    }
}

/// Rows of a CSV file, with columns of numbers and of booleans as pandas finds them.
fn table(file: &Path, delimiter: Option<u8>) -> std::result::Result<Vec<Map<String, Value>>, String> {
    let usual = if file.extension().is_some_and(|it| it == "tsv") { b'\t' } else { b',' };
    let delimiter = delimiter.unwrap_or(usual);
    let reader = csv::ReaderBuilder::new().delimiter(delimiter).from_path(file);
    let mut reader = reader.map_err(|error| error.to_string())?;
    let names: Vec<String> =
        reader.headers().map_err(|error| error.to_string())?.iter().map(str::to_string).collect();
    let cells: Vec<csv::StringRecord> =
        reader.records().collect::<std::result::Result<_, _>>().map_err(|error| error.to_string())?;
    let kinds: Vec<Cell> =
        (0..names.len()).map(|at| Cell::of(cells.iter().filter_map(|row| row.get(at)))).collect();
    let row = |record: &csv::StringRecord| {
        let values = record.iter().zip(&kinds).map(|(text, kind)| kind.value(text));
        names.iter().cloned().zip(values).collect()
    };
    Ok(cells.iter().map(row).collect())
}

/// Kind of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Int,
    Float,
    Bool,
    Text,
}

/// Texts that pandas reads as missing.
const MISSING: [&str; 17] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a",
];

impl Cell {
    fn of<'c>(cells: impl Iterator<Item = &'c str> + Clone) -> Cell {
        let there = cells.clone().filter(|text| !missing(text));
        let is_whole = cells.clone().all(|text| !missing(text));
        match () {
            () if there.clone().next().is_none() => Cell::Text,
            () if is_whole && there.clone().all(|text| text.trim().parse::<i64>().is_ok()) => Cell::Int,
            () if there.clone().all(|text| text.trim().parse::<f64>().is_ok()) => Cell::Float,
            () if is_whole && there.clone().all(|text| boolean(text).is_some()) => Cell::Bool,
            () => Cell::Text,
        }
    }

    fn value(self, text: &str) -> Value {
        if missing(text) {
            return Value::Null;
        }
        match self {
            Cell::Int => text.trim().parse::<i64>().map_or(Value::Null, Value::from),
            Cell::Float => text.trim().parse::<f64>().map_or(Value::Null, Value::from),
            Cell::Bool => boolean(text).map_or(Value::Null, Value::from),
            Cell::Text => text.into(),
        }
    }
}

fn missing(text: &str) -> bool {
    MISSING.contains(&text) || text == "nan" || text == "null"
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "True" | "true" | "TRUE" => Some(true),
        "False" | "false" | "FALSE" => Some(false),
        _ => None,
    }
}
