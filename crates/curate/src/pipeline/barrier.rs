//! Context of a whole-table stage: the input parts, a folder for the output parts, and helpers that preserve row
//! order.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{Array, StringArray};

use super::batch::Batch;
use super::crew::{self, Lane};
use super::env::Env;
use super::histogram::Histogram;
use super::manifest::{self, Manifest, TablePart, part_path};
use super::models::{Models, Tools};
use super::part::{PartReader, PartWriter};
use super::share_files::ShareOf;
use super::tally::Tally;
use crate::durable::{self, rename, temporary_of};
use crate::error::Error;
use crate::tables::TableEngine;

/// Text size at which a part written directly by a stage is closed.
const PART_TEXT_BYTES: u64 = 256 << 20;

/// Context of one whole-table stage.
pub struct Job<'a> {
    pub(crate) parts: &'a [TablePart],
    pub(crate) folder: &'a Path,
    pub(crate) key: &'a str,
    pub(crate) env: &'a Env,
    /// Distribution of document lengths, in bytes, over the parts written.
    pub(crate) lengths: Mutex<Histogram>,
    /// True if the ranks have left a file for each part.
    pub(crate) shared: bool,
}

impl<'a> Job<'a> {
    pub(crate) fn new(parts: &'a [TablePart], folder: &'a Path, key: &'a str, env: &'a Env) -> Job<'a> {
        Job { parts, folder, key, env, lengths: Mutex::default(), shared: false }
    }
}

impl Job<'_> {
    /// Parts of the input table, in order.
    pub fn parts(&self) -> &[TablePart] {
        self.parts
    }

    /// Output folder.
    pub fn folder(&self) -> &Path {
        self.folder
    }

    /// Files that the ranks prepared for this stage, one per part in order; `None` if the stage does that work
    /// itself.
    pub fn shares(&self) -> Option<Vec<PathBuf>> {
        self.shared
            .then(|| (0..self.parts.len()).map(|part| super::share_files::path(self.folder, part)).collect())
    }

    /// Number of documents in the whole table.
    pub fn num_documents(&self) -> u64 {
        self.parts.iter().map(|part| part.facts.documents).sum()
    }

    /// Bytes of text in the whole table.
    pub fn text_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.facts.text_bytes).sum()
    }

    /// Seed of random choices.
    pub fn seed(&self) -> u64 {
        self.env.seed
    }

    /// Number of threads to use.
    pub fn threads(&self) -> usize {
        self.env.threads
    }

    /// Memory budget of the stage, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.env.memory_bytes
    }

    /// Loader for the model in `folder`.
    ///
    /// # Errors
    /// The run has no model loader.
    pub fn models(&self, folder: &Path) -> Result<&Arc<dyn Models>, Error> {
        Tools::offered(self.env.options.models.as_ref(), folder)
    }

    /// Engine that runs whole-table plans.
    pub fn engine(&self) -> &TableEngine {
        &self.env.options.engine
    }

    /// Spill folder; the stage removes what it creates there.
    pub fn spill(&self) -> &Path {
        &self.env.spill
    }

    /// Interruption point: returns, or ends the run as a kill would. Long stages call it regularly.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn point(&self, name: &str) -> Result<(), Error> {
        self.env.point(name)
    }

    /// Batches of the table in order, each with the number of its first document.
    pub fn batches(&self) -> Batches {
        let (parts, env) = (self.parts.to_vec(), self.env.clone());
        Batches { parts, env, next_part: 0, reader: None, next_number: 0 }
    }

    /// Like [`batches`](Job::batches); with more than one thread, batches are read ahead in the background.
    pub fn ahead(&self) -> Box<dyn Iterator<Item = Result<(u64, Batch), Error>> + Send> {
        let mut batches = self.batches();
        if self.env.threads <= 1 {
            return Box::new(batches);
        }
        let (sender, receiver) = std::sync::mpsc::sync_channel(2);
        // Ends when the receiver is dropped.
        std::thread::spawn(move || batches.try_for_each(|batch| sender.send(batch)));
        Box::new(receiver.into_iter())
    }

    /// Documents of the table in order with their numbers; texts are shared, not copied.
    pub fn documents(&self) -> Documents {
        Documents { batches: self.ahead(), texts: None, number: 0, row: 0 }
    }

    /// Shows a message to the user, such as a stage's memory needs.
    pub fn say(&self, text: &str) {
        self.env.say(text);
    }

    /// Runs `work` on a rayon pool with this run's threads.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn on_threads<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        Ok(self.env.pool()?.install(work))
    }

    /// Calls `visit` with (number of the first document, batch) for every batch, on all threads and in any order.
    ///
    /// # Errors
    /// A part cannot be read, or `visit` fails.
    pub fn for_each(&self, visit: &(dyn Fn(u64, &Batch) -> Result<(), Error> + Sync)) -> Result<(), Error> {
        let first = self.first_numbers();
        let open = |part: usize| {
            let reader = PartReader::open(&self.parts[part].path)?;
            Ok(Visit { reader, number: first[part], env: self.env })
        };
        let work = |(number, batch): (u64, Batch)| visit(number, &batch);
        crew::run(self.env.limits(), self.parts.len(), &open, &work)
    }

    /// Rewrites the table part by part, passing each batch and the number of its first document through `change`.
    ///
    /// # Errors
    /// A part cannot be read or written, or `change` fails.
    pub fn rewrite(&self, change: &Change<'_>, tally: &mut Tally) -> Result<(), Error> {
        let first = self.first_numbers();
        let tallies = Mutex::new(vec![Tally::default(); self.parts.len()]);
        let open = |part: usize| {
            let reader = PartReader::open(&self.parts[part].path)?;
            let empty = arrow_array::RecordBatch::new_empty(reader.schema());
            let empty = Batch::new(empty).map_err(|detail| Error::Table { detail })?;
            let schema = change(first[part], empty, &mut Tally::default())?.table().schema();
            let writer = PartWriter::create(&part_path(self.folder, part), schema)?;
            let sum = Tally::default();
            Ok(Rewrite { part, reader, number: first[part], writer, sum, job: self, tallies: &tallies })
        };
        let work = |(number, batch): (u64, Batch)| {
            let mut tally = Tally::default();
            let batch = change(number, batch, &mut tally)?;
            Ok((batch, tally))
        };
        crew::run(self.env.limits(), self.parts.len(), &open, &work)?;
        let tallies = tallies.into_inner().unwrap_or_else(PoisonError::into_inner);
        tallies.iter().for_each(|part| tally.add(part));
        Ok(())
    }

    /// Writes one file per part, at the path given by `name`: the bytes of its batches, concatenated.
    ///
    /// # Errors
    /// A part cannot be read, a file cannot be written, or `bytes` fails.
    pub fn export(&self, name: &(dyn Fn(usize) -> PathBuf + Sync), bytes: &ShareOf<'_>) -> Result<(), Error> {
        if let Some(made) = self.shares() {
            return made
                .iter()
                .enumerate()
                .try_for_each(|(part, made)| super::share_files::hand_over(made, &name(part)));
        }
        let open = |part: usize| {
            let reader = PartReader::open(&self.parts[part].path)?;
            let path = name(part);
            let temporary = temporary_of(&path);
            let file = durable::create(&temporary)?;
            Ok(Export { reader, file, path, temporary, env: self.env })
        };
        crew::run(self.env.limits(), self.parts.len(), &open, &|batch: Batch| bytes(&batch))
    }

    /// Writer for new parts, one after another.
    pub fn writer(&self) -> PartsWriter<'_> {
        PartsWriter { job: self, next: 0, open: None, text_bytes: 0 }
    }

    fn first_numbers(&self) -> Vec<u64> {
        let mut next = 0;
        let number = |part: &TablePart| {
            let first = next;
            next += part.facts.documents;
            first
        };
        self.parts.iter().map(number).collect()
    }

    /// Publishes a part that this stage wrote, with its manifest.
    pub(super) fn publish(&self, index: usize, writer: PartWriter) -> Result<(), Error> {
        let path = part_path(self.folder, index);
        manifest::forget(&path)?;
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner).merge(writer.lengths());
        let closed = writer.close()?;
        self.env.point("written")?;
        let facts = closed.publish()?;
        self.env.hashes.note(&path, &facts.file());
        self.env.point("renamed")?;
        let key = format!("{} part {index}", self.key);
        let done = Manifest { key, input: "table".to_owned(), facts, stages: Vec::new() };
        durable::save(&manifest::manifest_path(&path), &done)?;
        self.env.point("manifest")
    }
}

/// Function that [`Job::rewrite`] applies to each batch.
pub type Change<'a> = dyn Fn(u64, Batch, &mut Tally) -> Result<Batch, Error> + Sync + 'a;

/// Iterator over the batches of a table, each with the number of its first document.
pub struct Batches {
    parts: Vec<TablePart>,
    env: Env,
    next_part: usize,
    reader: Option<PartReader>,
    next_number: u64,
}

impl Iterator for Batches {
    type Item = Result<(u64, Batch), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.next() {
                    Ok(Some(batch)) => {
                        let number = self.next_number;
                        self.next_number += batch.rows() as u64;
                        return Some(Ok((number, batch)));
                    }
                    Ok(None) => self.reader = None,
                    Err(error) => return Some(Err(error)),
                }
            }
            let part = self.parts.get(self.next_part)?;
            self.next_part += 1;
            match self.env.point("batch").and_then(|()| PartReader::open(&part.path)) {
                Ok(reader) => self.reader = Some(reader),
                Err(error) => {
                    self.next_part = self.parts.len();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// A text within a batch.
#[derive(Clone, Debug)]
pub struct Text {
    texts: StringArray,
    row: usize,
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self.texts.value(self.row)
    }
}

/// Iterator over the documents of a table, each with its number.
pub struct Documents {
    batches: Box<dyn Iterator<Item = Result<(u64, Batch), Error>> + Send>,
    texts: Option<StringArray>,
    number: u64,
    row: usize,
}

impl Iterator for Documents {
    type Item = Result<(u64, Text), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(texts) = self.texts.as_ref().filter(|texts| self.row < texts.len()) {
                let row = self.row;
                self.row += 1;
                return Some(Ok((self.number + row as u64, Text { texts: texts.clone(), row })));
            }
            match self.batches.next()? {
                Ok((number, batch)) => {
                    (self.number, self.row) = (number, 0);
                    self.texts = Some(batch.texts().clone());
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Writer of table parts whose boundaries depend only on the text.
pub struct PartsWriter<'a> {
    job: &'a Job<'a>,
    next: usize,
    open: Option<PartWriter>,
    text_bytes: u64,
}

impl PartsWriter<'_> {
    /// Appends a batch; all batches must have the same columns.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub fn write(&mut self, batch: &Batch) -> Result<(), Error> {
        if self.open.is_none() {
            let path = part_path(self.job.folder, self.next);
            self.open = Some(PartWriter::create(&path, batch.table().schema())?);
        }
        if let Some(part) = &mut self.open {
            part.write(batch)?;
        }
        self.text_bytes += batch.text_bytes();
        if self.text_bytes >= PART_TEXT_BYTES { self.close() } else { Ok(()) }
    }

    /// Closes the last part.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        if let Some(part) = self.open.take() {
            self.job.publish(self.next, part)?;
            self.next += 1;
            self.text_bytes = 0;
        }
        Ok(())
    }
}

struct Visit<'a> {
    reader: PartReader,
    number: u64,
    env: &'a Env,
}

impl Lane for Visit<'_> {
    type Job = (u64, Batch);
    type Output = ();

    fn next(&mut self) -> Result<Option<Self::Job>, Error> {
        self.env.point("batch")?;
        numbered(&mut self.reader, &mut self.number)
    }

    fn bytes((_, batch): &Self::Job) -> u64 {
        batch.text_bytes()
    }

    fn accept(&mut self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        Ok(())
    }
}

struct Export<'a> {
    reader: PartReader,
    file: File,
    path: PathBuf,
    temporary: PathBuf,
    env: &'a Env,
}

impl Lane for Export<'_> {
    type Job = Batch;
    type Output = Vec<u8>;

    fn next(&mut self) -> Result<Option<Batch>, Error> {
        self.env.point("batch")?;
        self.reader.next()
    }

    fn bytes(batch: &Batch) -> u64 {
        batch.text_bytes()
    }

    fn accept(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        self.file.write_all(&bytes).map_err(|e| Error::write("write", &self.temporary, e))
    }

    fn finish(self) -> Result<(), Error> {
        self.file.sync_all().map_err(|e| Error::write("write", &self.temporary, e))?;
        self.env.point("written")?;
        rename(&self.temporary, &self.path)
    }
}

fn numbered(reader: &mut PartReader, number: &mut u64) -> Result<Option<(u64, Batch)>, Error> {
    let Some(batch) = reader.next()? else { return Ok(None) };
    let first = *number;
    *number += batch.rows() as u64;
    Ok(Some((first, batch)))
}

struct Rewrite<'a> {
    part: usize,
    reader: PartReader,
    number: u64,
    writer: PartWriter,
    sum: Tally,
    job: &'a Job<'a>,
    tallies: &'a Mutex<Vec<Tally>>,
}

impl Lane for Rewrite<'_> {
    type Job = (u64, Batch);
    type Output = (Batch, Tally);

    fn next(&mut self) -> Result<Option<Self::Job>, Error> {
        self.job.env.point("batch")?;
        numbered(&mut self.reader, &mut self.number)
    }

    fn bytes((_, batch): &Self::Job) -> u64 {
        batch.text_bytes()
    }

    fn accept(&mut self, (batch, tally): Self::Output) -> Result<(), Error> {
        self.sum.add(&tally);
        self.writer.write(&batch)
    }

    fn finish(self) -> Result<(), Error> {
        self.job.publish(self.part, self.writer)?;
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)[self.part] = self.sum;
        Ok(())
    }
}

/// Parts of a folder written by a whole-table stage: those with manifests, from 0 on.
pub(crate) fn written_parts(folder: &Path) -> Result<Vec<TablePart>, Error> {
    let mut count = 0;
    while manifest::manifest_path(&part_path(folder, count)).exists() {
        count += 1;
    }
    manifest::parts_of(folder, count)
}

/// Empties a folder before it is refilled, except for files that ranks have prepared for the new contents.
pub(crate) fn clear(folder: &Path) -> Result<(), Error> {
    // Remove the table's manifest first: without it nothing else is valid.
    durable::remove(&manifest::table_path(folder))?;
    std::fs::create_dir_all(folder).map_err(|e| Error::write("create", folder, e))?;
    let kept = super::share_files::hidden(folder);
    for entry in std::fs::read_dir(folder).map_err(|e| Error::read(folder, e))? {
        let path = entry.map_err(|e| Error::read(folder, e))?.path();
        if path == kept {
            continue;
        }
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(|e| Error::write("remove", &path, e))?;
    }
    Ok(())
}
