//! Row-wise segments: every input yields one part, independent of its neighbours.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use fathom_prose::extract::Extraction;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::crew::{self, Lane};
use super::env::{Env, Progress};
use super::manifest::{self, KeyHasher, Manifest, TablePart, part_path};
use super::part::{PartReader, PartWriter};
use super::recipe::Input;
use super::stage::Stage;
use super::tally::Tally;
use super::units::{RawBatch, Unit, UnitReader};
use super::verify::FileFacts;
use crate::counters::DocumentCounts;
use crate::durable;
use crate::error::Error;
use crate::read::{RawOptions, Snapshot};

/// Stages applied one after another to each batch.
pub(crate) struct Rows {
    /// Text extraction from records; `None` if the input is a table.
    pub extraction: Option<Extraction>,
    /// Stages with their names.
    pub stages: Vec<(String, Box<dyn Stage>)>,
    /// Serialized stages and options.
    pub key: String,
    /// Output folder of the parts.
    pub folder: PathBuf,
}

/// Input of one part.
pub(crate) enum Source<'a> {
    /// Input files, and their reader options.
    Unit(&'a Unit, &'a Input, &'a RawOptions),
    /// A part of the preceding table.
    Part(&'a TablePart),
}

impl Source<'_> {
    fn name(&self) -> String {
        match self {
            Source::Unit(unit, ..) => unit.name.clone(),
            // Folder and file name only: the location of the curation must not affect its bytes.
            Source::Part(part) => {
                let name = |path: Option<&Path>| {
                    path.and_then(Path::file_name)
                        .map(|n| n.to_string_lossy().into_owned())
                        .unwrap_or_default()
                };
                format!("{}/{}", name(part.path.parent()), name(Some(&part.path)))
            }
        }
    }

    pub fn key(&self, key: KeyHasher) -> Result<String, Error> {
        let key = match self {
            Source::Part(part) => key.with("part").with(&part.facts.hash),
            Source::Unit(unit, input, _) => {
                // The location of the files is already covered by the unit.
                let how = Input {
                    paths: Vec::new(),
                    snapshot: Snapshot::default(),
                    unit_bytes: 0,
                    max_units: None,
                    follow_links: false,
                    ..(*input).clone()
                };
                unit.key(key.with("unit").with(&format!("{how:?}")))?
            }
        };
        Ok(key.finish())
    }

    fn open(&self, env: &Env) -> Result<Reader, Error> {
        Ok(match self {
            Source::Unit(unit, _, reading) => {
                Reader::Unit(Box::new(unit.open(reading, env.options.on_read.clone())))
            }
            // A part made by another rank has not been verified yet.
            Source::Part(part) if !env.is_whole(&part.path, &part.facts.file()) => {
                return Err(Error::Changed { path: part.path.clone() });
            }
            Source::Part(part) => Reader::Part(Box::new(PartReader::open(&part.path)?)),
        })
    }
}

enum Reader {
    Unit(Box<UnitReader>),
    Part(Box<PartReader>),
}

impl Reader {
    fn next(&mut self) -> Result<Option<Fresh>, Error> {
        match self {
            Reader::Unit(unit) => Ok(unit.next()?.map(Fresh::Records)),
            Reader::Part(part) => Ok(part.next()?.map(Fresh::Batch)),
        }
    }

    /// An empty batch with the columns of all others.
    fn empty(&self) -> Result<Fresh, Error> {
        match self {
            Reader::Unit(unit) => Ok(Fresh::Records(unit.empty())),
            Reader::Part(part) => {
                let table = arrow_array::RecordBatch::new_empty(part.schema());
                Batch::new(table).map(Fresh::Batch).map_err(|detail| Error::Table { detail })
            }
        }
    }
}

/// Output of a reader.
pub(crate) enum Fresh {
    /// Records whose text is yet to be extracted.
    Records(RawBatch),
    /// Documents.
    Batch(Batch),
}

/// Runs the segment over the entries of `work` (part number, key, source) that belong to this process and are not
/// done.
///
/// # Errors
/// A stage or the disk fails, or [`Env::point`] ends the run; [`Error::Unread`] when all parts are done except those
/// whose files cannot be read now.
pub(crate) fn run(rows: &Rows, work: &[(usize, String, &Source<'_>)], env: &Env) -> Result<(), Error> {
    std::fs::create_dir_all(&rows.folder).map_err(|e| Error::write("create", &rows.folder, e))?;
    let mine: Vec<_> = work.iter().filter(|(index, ..)| env.options.rank.owns(*index)).collect();
    let undone = |(index, key, _): &&&(usize, String, &Source<'_>)| {
        let is_whole = |path: &Path, facts: &FileFacts| env.is_whole(path, facts);
        manifest::finished(&part_path(&rows.folder, *index), key, &is_whole).is_none()
    };
    // Verification reads each part, so it runs in parallel.
    let missing: Vec<_> = env.pool()?.install(|| mine.par_iter().filter(undone).collect());
    let current = Mutex::new(Progress {
        segment: rows.stages.last().map_or("read".to_owned(), |(name, _)| name.clone()),
        parts_done: mine.len() - missing.len(),
        parts: mine.len(),
        documents: 0,
        text_bytes: 0,
    });
    let tell = |change: &dyn Fn(&mut Progress)| {
        let mut progress = current.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut progress);
        env.progress(&progress);
    };
    tell(&|_| {});
    let unread = Mutex::new(BTreeMap::new());
    let shared = SegmentState { env, tell: &tell, unread: &unread };
    let open = |lane: usize| {
        let (index, key, source) = missing[lane];
        PartLane::open(rows, source, (*index, key), &shared)
    };
    if missing.is_empty() {
        return Ok(());
    }
    let tools = env.tools();
    let ran = rows
        .stages
        .iter()
        .try_for_each(|(name, stage)| stage.begin(&tools).map_err(|error| placed(name, error)))
        .and_then(|()| crew::run(env.limits(), missing.len(), &open, &|fresh| process(rows, fresh, env)));
    rows.stages.iter().for_each(|(_, stage)| stage.end());
    ran?;
    let mut unread = unread.into_inner().unwrap_or_else(PoisonError::into_inner);
    let parts = unread.len();
    match unread.pop_first() {
        Some((_, first)) => Err(Error::Unread { parts, of: mine.len(), first: Box::new(first) }),
        None => Ok(()),
    }
}

/// State shared by the parts of a segment.
struct SegmentState<'a> {
    env: &'a Env,
    tell: &'a Tell<'a>,
    /// Errors of unreadable parts, by part number.
    unread: &'a Mutex<BTreeMap<usize, Error>>,
}

/// Processes an empty batch, to determine the columns of the segment's output.
///
/// # Errors
/// A stage does not find a column that it needs.
pub(crate) fn rehearse(rows: &Rows, empty: Fresh, env: &Env) -> Result<Batch, Error> {
    Ok(process(rows, empty, env)?.batch)
}

/// A batch after all stages.
struct BatchOutput {
    documents_in: u64,
    bytes_in: u64,
    batch: Batch,
    tallies: Vec<Tally>,
    seconds: Vec<f64>,
}

/// A part being written.
struct PartLane<'a> {
    index: usize,
    path: PathBuf,
    input: String,
    key: &'a str,
    reader: Reader,
    writer: PartWriter,
    tallies: Vec<Tally>,
    seconds: Vec<f64>,
    read_s: f64,
    /// Transient read failure; the part will not be made.
    unread: Option<Error>,
    shared: &'a SegmentState<'a>,
}

type Tell<'a> = dyn Fn(&dyn Fn(&mut Progress)) + Sync + 'a;

impl<'a> PartLane<'a> {
    fn open(
        rows: &Rows,
        source: &Source<'_>,
        (index, key): (usize, &'a str),
        shared: &'a SegmentState<'a>,
    ) -> Result<PartLane<'a>, Error> {
        let env = shared.env;
        let path = part_path(&rows.folder, index);
        manifest::forget(&path)?;
        let reader = source.open(env)?;
        // The stages determine the columns, so that a part without documents has them too.
        let schema = process(rows, reader.empty()?, env)?.batch.table().schema();
        let writer = PartWriter::create(&path, schema)?;
        let stages = rows.stages.len() + usize::from(matches!(reader, Reader::Unit(_)));
        let (tallies, seconds) = (vec![Tally::default(); stages], vec![0.0; stages]);
        let (input, read_s, unread) = (source.name(), 0.0, None);
        Ok(PartLane { index, path, input, key, reader, writer, tallies, seconds, read_s, unread, shared })
    }
}

impl Lane for PartLane<'_> {
    type Job = Fresh;
    type Output = BatchOutput;

    fn next(&mut self) -> Result<Option<Fresh>, Error> {
        self.shared.env.point("batch")?;
        let started = Instant::now();
        let batch = self.reader.next();
        self.read_s += started.elapsed().as_secs_f64();
        match batch {
            // Other parts may be readable, so this ends the part and not the run.
            Err(error @ Error::Unavailable { .. }) => {
                self.unread = Some(error);
                Ok(None)
            }
            other => other,
        }
    }

    fn bytes(fresh: &Fresh) -> u64 {
        match fresh {
            Fresh::Records(records) => records.bytes(),
            Fresh::Batch(batch) => batch.text_bytes(),
        }
    }

    fn accept(&mut self, done: BatchOutput) -> Result<(), Error> {
        for (sum, tally) in self.tallies.iter_mut().zip(&done.tallies) {
            sum.add(tally);
        }
        for (sum, seconds) in self.seconds.iter_mut().zip(&done.seconds) {
            *sum += seconds;
        }
        self.writer.write(&done.batch)?;
        (self.shared.tell)(&|progress| {
            progress.documents += done.documents_in;
            progress.text_bytes += done.bytes_in;
        });
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        let PartLane { index, path, input, key, reader, writer, mut tallies, mut seconds, .. } = self;
        let SegmentState { env, tell, unread } = self.shared;
        if let Some(error) = self.unread {
            writer.discard()?;
            unread.lock().unwrap_or_else(PoisonError::into_inner).insert(index, error);
            return Ok(());
        }
        if let Reader::Unit(unit) = &reader {
            tallies.insert(0, unit.tally());
            seconds.insert(0, self.read_s);
        }
        let closed = writer.close()?;
        env.point("written")?;
        let facts = closed.publish()?;
        env.hashes.note(&path, &facts.file());
        env.point("renamed")?;
        let done = Manifest { key: key.to_owned(), input, facts, stages: tallies };
        durable::save(&manifest::manifest_path(&path), &done)?;
        env.point("manifest")?;
        log_seconds(&path, index, seconds, env)?;
        tell(&|progress| progress.parts_done += 1);
        Ok(())
    }
}

/// Passes a batch through the stages. If a stage panics, its documents are processed one by one, and those it panics
/// on are dropped and counted: crawled data must not end a run.
fn process(rows: &Rows, fresh: Fresh, env: &Env) -> Result<BatchOutput, Error> {
    let mut done = begin(rows, fresh)?;
    for (_, stage) in &rows.stages {
        let started = Instant::now();
        let mut tally = Tally {
            documents_in: done.batch.rows() as u64,
            bytes_in: done.batch.text_bytes(),
            ..Tally::default()
        };
        let whole = crew::fenced(|| {
            let mut tally = tally.clone();
            stage.run(done.batch.clone(), &mut tally).map(|batch| (batch, tally))
        });
        match whole {
            Ok((batch, full)) => (done.batch, tally) = (batch, full),
            Err(Error::Panicked { detail }) if done.batch.rows() == 0 => {
                return Err(Error::Panicked { detail });
            }
            Err(Error::Panicked { .. }) => done.batch = one_by_one(stage.as_ref(), &done.batch, &mut tally)?,
            Err(error) => return Err(error),
        }
        tally.documents_out = done.batch.rows() as u64;
        tally.bytes_out = done.batch.text_bytes();
        done.tallies.push(tally);
        done.seconds.push(started.elapsed().as_secs_f64());
    }
    // Only after the last stage of the segment, whose output is the written table.
    if let (Some(last), false) = (done.tallies.last_mut(), rows.stages.is_empty()) {
        (0..done.batch.rows()).for_each(|row| last.lengths.add(done.batch.text(row).len() as f64));
    }
    env.point("stages")?;
    Ok(done)
}

/// The batch before the first stage: unchanged, or extracted from records.
fn begin(rows: &Rows, fresh: Fresh) -> Result<BatchOutput, Error> {
    let started = Instant::now();
    let records = match fresh {
        Fresh::Records(records) => records,
        Fresh::Batch(batch) => {
            let (documents_in, bytes_in) = (batch.rows() as u64, batch.text_bytes());
            return Ok(BatchOutput {
                documents_in,
                bytes_in,
                batch,
                tallies: Vec::new(),
                seconds: Vec::new(),
            });
        }
    };
    let Some(extraction) = &rows.extraction else {
        return Err(Error::Table { detail: "records come where documents should".to_owned() });
    };
    let mut tally = Tally::default();
    let batch = records.extract(extraction, &mut tally);
    (tally.documents_out, tally.bytes_out) = (batch.rows() as u64, batch.text_bytes());
    let (documents_in, bytes_in) = (tally.documents_in, tally.bytes_in);
    let seconds = vec![started.elapsed().as_secs_f64()];
    Ok(BatchOutput { documents_in, bytes_in, batch, tallies: vec![tally], seconds })
}

fn one_by_one(stage: &dyn Stage, batch: &Batch, tally: &mut Tally) -> Result<Batch, Error> {
    // An empty batch supplies the columns in case no document is left.
    let mut tables = vec![stage.run(batch.slice(0, 0), &mut Tally::default())?.into_table()];
    for row in 0..batch.rows() {
        let alone = batch.slice(row, 1);
        match crew::fenced(|| stage.run(alone, tally)) {
            Ok(kept) => tables.push(kept.into_table()),
            Err(Error::Panicked { detail }) => {
                let bytes = batch.text(row).len() as u64;
                let (file, place) = (batch.id(row).to_owned(), String::new());
                tally.drop_many("stage_panicked", DocumentCounts { documents: 1, bytes });
                tally.note(crate::counters::Damage {
                    file,
                    place,
                    reason: crate::counters::Reason::Unreadable,
                    detail,
                });
            }
            Err(error) => return Err(error),
        }
    }
    let schema = tables[0].schema();
    let table = arrow_select::concat::concat_batches(&schema, &tables)
        .map_err(|e| Error::Table { detail: e.to_string() })?;
    Batch::new(table).map_err(|detail| Error::Table { detail })
}

/// Seconds spent per stage on a part, summed over threads. Logged separately from the manifests, whose bytes do not
/// depend on the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SecondsLine {
    /// Folder of the table.
    pub table: String,
    /// Part number.
    pub part: usize,
    /// Seconds by stage.
    pub seconds: Vec<f64>,
}

/// Timing log: one file per process, one line per part.
pub(crate) fn seconds_log(out: &Path, rank: usize) -> PathBuf {
    out.join("seconds").join(format!("rank-{rank}.jsonl"))
}

pub(crate) fn log_seconds(path: &Path, part: usize, seconds: Vec<f64>, env: &Env) -> Result<(), Error> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let table = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let log = seconds_log(folder.parent().unwrap_or(folder), env.options.rank.rank);
    let line = SecondsLine { table, part, seconds };
    let mut text = serde_json::to_string(&line).map_err(|e| Error::write("write", &log, e.into()))?;
    text.push('\n');
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).map_err(|e| Error::write("create", folder, e))?;
    }
    // A single write, so that lines of several threads do not interleave.
    durable::append(&log)?.write_all(text.as_bytes()).map_err(|e| Error::write("write", &log, e))
}

/// Adds the option's path to an error that a stage could raise only after seeing a table or a model.
pub(super) fn placed(stage: &str, error: Error) -> Error {
    match error {
        Error::Setting { key, found, advice } => {
            placed(stage, Error::Option { stage: "stage", key: key.to_owned(), found, advice })
        }
        Error::Option { key, found, advice, .. } => {
            let (place, key) = ("recipe".to_owned(), option_path(stage, &key));
            fathom_base::Error::Refused { place, key, message: format!("is {found}; {advice}") }.into()
        }
        error => error,
    }
}

/// Path of an option in settings.
pub(super) fn option_path(stage: &str, key: &str) -> String {
    format!("stage.{stage}.{key}")
}
