//! Input of a curation: files in the order of the recipe and of their names, small ones grouped into units.
//!
//! A unit is the granularity of work: each unit yields one part. The grouping depends only on names and sizes.

use std::collections::BTreeMap;
use std::path::Path;

use super::batch::{Batch, Collector};
use super::crew;
use super::histogram::Histogram;
use super::manifest::KeyHasher;
use super::recipe::Input;
use super::tally::Tally;
use crate::counters::{Counters, Damage, DocumentCounts, Reason};
use crate::error::Error;
use fathom_prose::extract::Content;
use fathom_prose::extract::Extraction;

use crate::read::{
    InputFile, OnRead, RawOptions, RawRecord, RawRecords, RemoteOptions, input_files, is_remote, named_files,
    snapshot_files,
};

/// Maximum number of files in a unit, so that a million tiny files are still spread over threads.
const MAX_FILES: usize = 4096;
/// Assumed size of a remote file whose size is not known before it is read.
const REMOTE_BYTES: u64 = 64 << 20;

/// Column for the detected languages of pages.
const LANGUAGE: &str = "language";

/// Files that are read one after another.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Name of the first file, and the number of further ones.
    pub name: String,
    /// Source of its documents.
    pub source: String,
    files: Vec<InputFile>,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Unit {
    /// Adds the files to a key: local ones by name, path, size and modification time, remote ones by name, address
    /// and, if a listing gave it, size.
    pub fn key(&self, mut key: KeyHasher) -> Result<KeyHasher, Error> {
        key = key.with(&self.source);
        for file in &self.files {
            key = key.with(file.name()).with(file.location());
            key = if is_remote(file.location()) {
                key.with(&format!("{:?}", file.bytes()))
            } else {
                key.with_file(Path::new(file.location()))?
            };
        }
        Ok(key)
    }

    /// Starts reading; `on_read` is called before every access.
    pub fn open(&self, options: &RawOptions, on_read: Option<OnRead>) -> UnitReader {
        let mut files = self.files.clone();
        files.reverse();
        UnitReader {
            options: options.clone(),
            on_read,
            source: self.source.clone(),
            files,
            open: None,
            tally: Tally::default(),
            counters: Counters::default(),
        }
    }
}

/// Reader options for an input.
pub(crate) fn raw_options(input: &Input, remote: RemoteOptions) -> RawOptions {
    RawOptions {
        field: input.field.clone(),
        columns: input.columns.clone(),
        format: input.format,
        charset: input.charset,
        max_document_bytes: usize::try_from(input.max_document_bytes).unwrap_or(usize::MAX),
        follow_links: input.follow_links,
        // Clamped to the window sizes that zstd supports.
        window_log: input.max_window_bytes.max(1).ilog2().clamp(10, 31),
        remote,
    }
}

/// Lists the units of an input, and counts files without a reader.
///
/// # Errors
/// A path does not exist or cannot be listed, a named file has no reader, two files would give documents the same
/// ids, or there is nothing to read.
pub(crate) fn list(input: &Input, options: &RawOptions) -> Result<(Vec<Unit>, Counters), Error> {
    let mut counters = Counters::default();
    let mut units = Vec::new();
    let mut left = input.max_bytes.unwrap_or(u64::MAX);
    for written in &input.paths {
        let (source, (files, unread)) = match split_name(written) {
            Some((name, location)) => (name, named_files(name, location, options)?),
            None => (written.as_str(), input_files(std::slice::from_ref(written), options)?),
        };
        counters = unread.then(&counters);
        let files = within(&mut left, files, &mut counters);
        group(files, source, input.unit_bytes, &mut units);
    }
    if !input.snapshot.name.is_empty() {
        let (files, unread) = snapshot_files(&input.snapshot, options)?;
        counters = unread.then(&counters);
        let files = within(&mut left, files, &mut counters);
        group(files, &input.snapshot.full_name(), input.unit_bytes, &mut units);
    }
    check_names(&units)?;
    if let Some(most) = input.max_units {
        units.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    if units.is_empty() {
        let first = counters.damage.first().map_or(String::new(), |damage| format!(": {damage}"));
        let looked_at = input.looked_at();
        return Err(Error::EmptyCorpus { looked_at, outcome: counters.summary() + &first });
    }
    Ok((units, counters))
}

/// Groups explicitly chosen files into units of one source.
pub(crate) fn chosen(files: Vec<InputFile>, source: &str, unit_bytes: u64) -> Vec<Unit> {
    let mut units = Vec::new();
    group(files, source, unit_bytes, &mut units);
    units
}

/// Keeps the first files, up to and including the one that exhausts the remaining budget; the others are counted. A
/// file of unknown size uses none of the budget.
fn within(left: &mut u64, mut files: Vec<InputFile>, counters: &mut Counters) -> Vec<InputFile> {
    let bytes_of = |file: &InputFile| file.bytes().unwrap_or(0);
    let mut fits = |file: &&InputFile| {
        let fits = *left > 0;
        *left = left.saturating_sub(bytes_of(file));
        fits
    };
    let beyond = files.split_off(files.iter().take_while(&mut fits).count());
    if !beyond.is_empty() {
        let bytes = beyond.iter().map(bytes_of).sum();
        counters.drop_documents(Reason::OverBudget, beyond.len() as u64, bytes);
    }
    files
}

/// Splits `name=path`; `None` for a path without a name, including an existing path that contains `=`.
pub(crate) fn split_name(written: &str) -> Option<(&str, &str)> {
    let (name, location) = written.split_once('=')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let named = !name.is_empty() && name.chars().all(plain) && !Path::new(written).exists();
    named.then_some((name, location))
}

/// Rejects files of the same name: draws by id would be duplicated, and the documents could not be distinguished.
fn check_names(units: &[Unit]) -> Result<(), Error> {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for file in units.iter().flat_map(|unit| &unit.files) {
        if let Some(first) = known.insert(file.name(), file.location()) {
            let (name, second) = (file.name().to_owned(), file.location().to_owned());
            return Err(Error::SameName { name, first: first.to_owned(), second });
        }
    }
    Ok(())
}

fn group(files: Vec<InputFile>, source: &str, unit_bytes: u64, units: &mut Vec<Unit>) {
    let first = units.len();
    for file in files {
        let bytes = file.bytes().unwrap_or(REMOTE_BYTES);
        match units[first..].last_mut() {
            Some(unit) if unit.bytes + bytes <= unit_bytes && unit.files.len() < MAX_FILES => {
                unit.bytes += bytes;
                unit.files.push(file);
            }
            _ => units.push(Unit {
                name: file.name().to_owned(),
                source: source.to_owned(),
                bytes,
                files: vec![file],
            }),
        }
    }
    for unit in &mut units[first..] {
        if unit.files.len() > 1 {
            unit.name = format!("{} and {} more", unit.name, unit.files.len() - 1);
        }
    }
}

/// Tally group that counts the documents per reader column.
pub(crate) const COLUMNS: &str = "column";

/// Records to be passed to the threads that extract their text.
pub(crate) struct RawBatch {
    records: Vec<RawRecord>,
    source: String,
    columns: Vec<String>,
}

/// Reads the records of a unit, one batch at a time.
pub(crate) struct UnitReader {
    options: RawOptions,
    on_read: Option<OnRead>,
    source: String,
    /// Files to be read, the next one last.
    files: Vec<InputFile>,
    open: Option<RawRecords>,
    /// Files that could not be opened or read to their end.
    tally: Tally,
    /// Counters of the completed files.
    counters: Counters,
}

impl UnitReader {
    /// Returns the next records; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if a file cannot be read now for a transient reason; [`Error::NoTextColumn`] if a file
    /// lacks the configured text column. All other problems are counted.
    pub fn next(&mut self) -> Result<Option<RawBatch>, Error> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < Batch::MAX_ROWS && bytes < Batch::MAX_TEXT_BYTES {
            let Some(record) = self.record()? else { break };
            bytes += record.content.len();
            records.push(record);
        }
        Ok((!records.is_empty()).then(|| RawBatch { records, ..self.empty() }))
    }

    fn record(&mut self) -> Result<Option<RawRecord>, Error> {
        loop {
            if let Some(file) = &mut self.open {
                match file.next() {
                    Some(Ok(record)) => return Ok(Some(record)),
                    Some(Err(error)) => {
                        let location = file.location().to_owned();
                        self.lost_file(location, error)?;
                    }
                    None => {}
                }
                if let Some(file) = self.open.take() {
                    add(&mut self.counters, file.counters());
                }
            }
            let Some(file) = self.files.pop() else { return Ok(None) };
            match file.open_asking(&self.options, self.on_read.clone()) {
                Ok(records) => self.open = Some(records),
                Err(error) => self.lost_file(file.location().to_owned(), error)?,
            }
        }
    }

    /// Counts a file that cannot be opened or read further; returns the error if it is transient or if the file lacks
    /// the text column.
    fn lost_file(&mut self, file: String, error: Error) -> Result<(), Error> {
        // Most likely the wrong column or file was given; a run must not end silently without any text.
        let wrong_column = matches!(error, Error::NoTextColumn { .. });
        let Some(reason) = error.reason().filter(|_| !wrong_column) else { return Err(error) };
        let damage = Damage { file, place: String::new(), reason, detail: error.to_string() };
        self.tally.documents_in += 1;
        self.tally.damaged(damage, DocumentCounts { documents: 1, bytes: 0 });
        Ok(())
    }

    /// Tally of documents read and lost.
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        tally.add_reader(&self.counters);
        tally
    }

    /// An empty batch with the columns of all others.
    pub fn empty(&self) -> RawBatch {
        RawBatch { records: Vec::new(), source: self.source.clone(), columns: self.options.columns.clone() }
    }
}

/// Adds the counters of the next file.
fn add(sum: &mut Counters, file: &Counters) {
    let read = (sum.read_documents + file.read_documents, sum.read_bytes + file.read_bytes);
    *sum = std::mem::take(sum).then(file);
    (sum.read_documents, sum.read_bytes) = read;
}

impl RawBatch {
    /// Total bytes of the records.
    pub fn bytes(&self) -> u64 {
        self.records.iter().map(|record| record.content.len() as u64).sum()
    }

    /// Extracts text from the records; those without text are counted.
    pub fn extract(self, extraction: &Extraction, tally: &mut Tally) -> Batch {
        let mut names: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        if extraction.finds_language() && !names.contains(&LANGUAGE) {
            names.push(LANGUAGE);
        }
        let mut out = Collector::new(&names);
        let mut lengths = Histogram::default();
        for record in self.records {
            let bytes = record.content.len() as u64;
            tally.documents_in += 1;
            tally.bytes_in += bytes;
            let kind = match record.content {
                Content::Text(_) => "text",
                Content::Page { .. } => "page",
                Content::Wikitext(_) => "wikitext",
                Content::Latex(_) => "latex",
            };
            tally.count("content", kind, bytes);
            let value = |name: &str| {
                record.columns.iter().find(|(column, _)| column == name).map(|(_, value)| value.as_str())
            };
            // Third-party parsers face arbitrary pages here.
            let (text, charset, language) = match crew::fenced(|| Ok(extraction.text(record.content))) {
                Ok(Ok(extracted)) => {
                    (extracted.text, extracted.charset.or(value("charset")), extracted.language)
                }
                Ok(Err(refusal)) => {
                    tally.drop(refusal.reason(), bytes);
                    continue;
                }
                Err(error) => {
                    let (file, place) = (record.location.to_string(), format!("document {}", record.id));
                    let reason = Reason::Unreadable;
                    tally.drop("extractor_panicked", bytes);
                    tally.note(Damage { file, place, reason, detail: error.to_string() });
                    continue;
                }
            };
            if text.trim().is_empty() {
                tally.drop("blank", bytes);
                continue;
            }
            lengths.add(text.len() as f64);
            if let Some(charset) = charset.filter(|charset| *charset != "UTF-8") {
                tally.count("charset", charset, bytes);
            }
            if let Some(language) = &language {
                tally.count("page_language", language, text.len() as u64);
            }
            let found = |name: &&str| value(name).or(language.as_deref().filter(|_| *name == LANGUAGE));
            let values: Vec<Option<&str>> = names.iter().map(found).collect();
            for (name, value) in names.iter().zip(&values) {
                if let Some(value) = value {
                    tally.count(COLUMNS, name, value.len() as u64);
                }
            }
            out.push(&record.id, &text, &self.source, &values);
        }
        tally.lengths.merge(&lengths);
        out.take()
    }
}
