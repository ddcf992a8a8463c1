//! Execution of a plan: segment by segment, redoing only what is missing.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use fathom_base::lock::PATIENCE;

use super::barrier::{self, Job};
use super::env::{Env, Progress, Rank, RunOptions};
use super::manifest::{self, KeyHasher, Manifest, TableManifest, TablePart, part_path};
use super::plan::{Pipeline, Segment, SegmentWork};
use super::readiness::{PendingFile, Readiness};
use super::runner::{self, Fresh, Rows, Source, placed};
use super::stage::Barrier;
use super::stats::{StageStats, Stats, TableStats, seconds};
use super::tally::Tally;
use super::verify::FileFacts;
use super::{claim, shares};
use crate::durable;
use crate::error::Error;

/// Outcome of a run.
#[derive(Debug)]
pub enum Outcome {
    /// All results are complete.
    Done(Box<Stats>),
    /// This process has done its share, but others have not.
    Waiting {
        /// Stage that needs the missing files; `None` when every stage of this process is done.
        stage: Option<String>,
        /// Missing files, with the rank that writes each.
        missing: Vec<String>,
    },
}

/// Result of a segment.
enum Account {
    Rows(SegmentParts),
    Table(Box<TableManifest>),
}

/// Input parts of the next segment; `None` before the first segment, which reads files.
type InputParts = Option<Vec<Readiness<TablePart>>>;

/// Parts of a segment with their manifests.
type SegmentParts = Vec<Readiness<(TablePart, Manifest)>>;

impl Pipeline {
    /// Does the remaining work. If killed at any moment, the next call resumes and produces the same bytes.
    ///
    /// # Errors
    /// An input or folder cannot be read or written, or a stage fails. [`Error::Unread`] if all parts are done except
    /// those whose files cannot be read now.
    pub fn run(&self, options: &RunOptions) -> Result<Outcome, Error> {
        let started = Instant::now();
        let env = self.env(options);
        let first = env.options.rank.rank == 0;
        std::fs::create_dir_all(self.out()).map_err(|e| Error::write("create", self.out(), e))?;
        let _claimed = claim::claim(self.out(), env.options.rank, PATIENCE, &|text| env.say(text))?;
        // Check the models first: an unloadable model should not end a run after hours.
        for (folder, kind) in self.segments.iter().flat_map(|segment| segment.work.models()) {
            env.tools().models(&folder)?.check(&folder, kind)?;
        }
        self.rehearse()?;
        if first {
            self.take_over(&env)?;
        }
        let mut parts: InputParts = None;
        let mut accounts = Vec::new();
        for segment in &self.segments {
            match self.run_segment(segment, &mut parts, &env)? {
                Readiness::Ready(Account::Rows(read)) if accounts.is_empty() => {
                    self.refuse_nothing(&read)?;
                    accounts.push(Account::Rows(read));
                }
                Readiness::Ready(account) => accounts.push(account),
                Readiness::Pending(owed) => return Ok(waiting(Some(&segment.name), &owed)),
            }
        }
        if let Readiness::Pending(owed) = all_there(&parts) {
            return Ok(waiting(None, &owed));
        }
        let stats = self.stats(&accounts, &env, started.elapsed())?;
        if first {
            self.remarks(&stats).iter().for_each(|remark| env.say(remark));
            let path = self.out().join("stats.json");
            let text =
                serde_json::to_vec_pretty(&stats).map_err(|e| Error::write("write", &path, e.into()))?;
            durable::write_whole(&path, &text)?;
        }
        Ok(Outcome::Done(Box::new(stats)))
    }

    /// Passes an empty batch through all stages, so that a column which no stage adds is reported before the first
    /// file is read.
    fn rehearse(&self) -> Result<(), Error> {
        let Some(unit) = self.units.first() else { return Ok(()) };
        // Without callbacks: nothing is reported, and nothing can interrupt it.
        let env = self.env(&RunOptions::default());
        let mut fresh = Fresh::Records(unit.open(&self.reading, None).empty());
        for segment in &self.segments {
            match (&segment.work, &fresh) {
                (SegmentWork::Rows(rows), _) => fresh = Fresh::Batch(runner::rehearse(rows, fresh, &env)?),
                (SegmentWork::Table { stage, .. } | SegmentWork::Sink { stage, .. }, Fresh::Batch(batch)) => {
                    stage.rehearse(batch)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs a segment and replaces `parts` by its output parts.
    fn run_segment(
        &self,
        segment: &Segment,
        parts: &mut InputParts,
        env: &Env,
    ) -> Result<Readiness<Account>, Error> {
        let (stage, key, sink) = match &segment.work {
            SegmentWork::Rows(rows) => {
                let found = self.run_rows(rows, parts, env)?;
                *parts = Some(found.iter().map(|f| f.clone().map(|(part, _)| part)).collect());
                return Ok(Readiness::Ready(Account::Rows(found)));
            }
            SegmentWork::Table { stage, key } => (stage, key, false),
            SegmentWork::Sink { stage, key } => (stage, key, true),
        };
        let owed = share_out(segment, stage.as_ref(), key, parts, env)?;
        let whole = match all_there(parts) {
            Readiness::Ready(whole) if owed.is_empty() => whole,
            Readiness::Ready(_) => return Ok(Readiness::Pending(owed)),
            Readiness::Pending(owed) => return Ok(Readiness::Pending(owed)),
        };
        let table = match run_table(segment, stage.as_ref(), key, &whole, env)? {
            Readiness::Ready(table) => table,
            Readiness::Pending(owed) => return Ok(Readiness::Pending(owed)),
        };
        if !sink {
            let written = manifest::parts_of(&segment.folder, table.parts)?;
            *parts = Some(written.into_iter().map(Readiness::Ready).collect());
        }
        Ok(Readiness::Ready(Account::Table(Box::new(table))))
    }

    /// Runs a row-wise segment and returns the available parts of all ranks.
    fn run_rows(&self, rows: &Rows, parts: &InputParts, env: &Env) -> Result<SegmentParts, Error> {
        let sources: Vec<Option<Source<'_>>> = match parts {
            None => self
                .units
                .iter()
                .map(|unit| Some(Source::Unit(unit, &self.recipe.input, &self.reading)))
                .collect(),
            Some(parts) => parts.iter().map(|part| part.ready().map(Source::Part)).collect(),
        };
        let mut work = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let key = source.key(KeyHasher::new().with(&rows.key))?;
            work.push((index, key, source));
        }
        runner::run(rows, &work, env)?;
        // No rank owns parts beyond the last one, so rank 0 removes them.
        if env.options.rank.rank == 0 {
            remove_stale(rows, sources.len())?;
        }
        let mut found: SegmentParts = (0..sources.len())
            .map(|index| {
                let rank = index % env.options.rank.world_size.max(1);
                Readiness::file(part_path(&rows.folder, index), rank)
            })
            .collect();
        for (index, key, _) in work {
            let path = part_path(&rows.folder, index);
            // Parts of other ranks are verified by whoever reads them.
            let mine = env.options.rank.owns(index);
            let is_whole = |path: &Path, facts: &FileFacts| {
                if mine { env.is_whole(path, facts) } else { manifest::has_size(path, facts) }
            };
            if let Some(manifest) = manifest::finished(&path, &key, &is_whole) {
                let part = TablePart { path, facts: manifest.facts.clone() };
                found[index] = Readiness::Ready((part, manifest));
            }
        }
        Ok(found)
    }

    /// Rejects an input whose records are all lost: most likely the field or file name is wrong.
    fn refuse_nothing(&self, read: &SegmentParts) -> Result<(), Error> {
        let mut sum = Tally::default();
        for found in read {
            let Some((_, manifest)) = found.ready() else { return Ok(()) };
            manifest.stages.first().into_iter().for_each(|tally| sum.add(tally));
        }
        match sum.damage.first() {
            Some(first) if sum.documents_out == 0 => {
                let lost: Vec<String> =
                    sum.dropped.iter().map(|(reason, lost)| format!("{} {reason}", lost.documents)).collect();
                let looked_at = self.recipe.input.looked_at();
                Err(Error::EmptyCorpus { looked_at, outcome: format!("{}: {first}", lost.join(", ")) })
            }
            _ => Ok(()),
        }
    }

    fn stats(&self, accounts: &[Account], env: &Env, wall: Duration) -> Result<Stats, Error> {
        let seconds = seconds(self.out())?;
        let mut stats = Stats { threads: env.threads, wall_s: wall.as_secs_f64(), ..Stats::default() };
        for (number, (segment, account)) in self.segments.iter().zip(accounts).enumerate() {
            let mut stages: Vec<StageStats> = segment
                .stages
                .iter()
                .map(|stage| StageStats {
                    name: stage.name.clone(),
                    kind: stage.kind.clone(),
                    table: segment.name.clone(),
                    tally: Tally::default(),
                    seconds: 0.0,
                })
                .collect();
            let folder = segment.folder.file_name().map(|n| n.to_string_lossy().into_owned());
            let folder = folder.unwrap_or_default();
            let took = |part: usize, stages: &mut [StageStats]| {
                let none = Vec::new();
                let seconds = seconds.get(&(folder.clone(), part)).unwrap_or(&none);
                stages.iter_mut().zip(seconds).for_each(|(stage, s)| stage.seconds += s);
            };
            let mut parts = Vec::new();
            match account {
                Account::Rows(found) => {
                    if number == 0 {
                        stages[0].tally.add_reader(&self.unread);
                    }
                    for (index, found) in found.iter().enumerate() {
                        let Some((part, manifest)) = found.ready() else { continue };
                        stages.iter_mut().zip(&manifest.stages).for_each(|(s, t)| s.tally.add(t));
                        took(index, &mut stages);
                        parts.push(part.clone());
                    }
                }
                Account::Table(table) => {
                    stages[0].tally = table.stage.clone();
                    took(0, &mut stages);
                    parts = manifest::parts_of(&segment.folder, table.parts)?;
                }
            }
            if !matches!(segment.work, SegmentWork::Sink { .. }) {
                stats.tables.push(table_stats(segment, &parts));
            }
            stats.stages.extend(stages);
        }
        Ok(stats)
    }
}

fn table_stats(segment: &Segment, parts: &[TablePart]) -> TableStats {
    let sum = |of: fn(&TablePart) -> u64| parts.iter().map(of).sum();
    TableStats {
        name: segment.name.clone(),
        folder: segment.folder.clone(),
        parts: parts.len(),
        documents: sum(|part| part.facts.documents),
        text_bytes: sum(|part| part.facts.text_bytes),
        file_bytes: sum(|part| part.facts.file_bytes),
    }
}

/// Outcome of a run that waits for other ranks.
fn waiting(stage: Option<&String>, owed: &[PendingFile]) -> Outcome {
    Outcome::Waiting { stage: stage.cloned(), missing: owed.iter().map(PendingFile::to_string).collect() }
}

/// All parts, or the files they wait for.
fn all_there(parts: &InputParts) -> Readiness<Vec<TablePart>> {
    parts.iter().flatten().cloned().collect()
}

/// Key of a stage's work on a table with these parts.
fn table_key<'p>(key: &str, parts: impl Iterator<Item = &'p TablePart>, env: &Env) -> String {
    let hasher = KeyHasher::new().with(key).with(&env.seed.to_string());
    parts.fold(hasher, |hasher, part| hasher.with(&part.facts.hash)).finish()
}

/// Does this rank's share of a stage on the available parts, and returns what other ranks owe of the rest.
fn share_out(
    segment: &Segment,
    stage: &dyn Barrier,
    key: &str,
    parts: &InputParts,
    env: &Env,
) -> Result<Vec<PendingFile>, Error> {
    let Rank { rank, world_size } = env.options.rank;
    let (Some(share), Some(parts), true) = (stage.share(), parts, world_size > 1) else {
        return Ok(Vec::new());
    };
    let there: Vec<(usize, &TablePart)> =
        parts.iter().enumerate().filter_map(|(number, part)| Some((number, part.ready()?))).collect();
    let whole = table_key(key, there.iter().map(|(_, part)| *part), env);
    if there.len() == parts.len() && finished(segment, &whole, env).is_some() {
        if rank == 0 {
            shares::remove(&segment.folder)?;
        }
        return Ok(Vec::new());
    }
    shares::make(&segment.folder, key, &there, &*share, env)?;
    let made = |number, part: &TablePart| shares::made(&segment.folder, key, (number, part), env);
    let missing = there.iter().filter(|(number, part)| !made(*number, part));
    let owed = |(number, _): &(usize, &TablePart)| PendingFile {
        path: super::share_files::path(&segment.folder, *number),
        rank: number % world_size,
    };
    Ok(missing.map(owed).collect())
}

/// Manifest of a finished whole-table stage. Rank 0, which can redo the stage, verifies every byte.
fn finished(segment: &Segment, key: &str, env: &Env) -> Option<TableManifest> {
    let is_whole = |path: &Path, facts: &FileFacts| match env.options.rank.rank {
        0 => env.is_whole(path, facts),
        _ => manifest::has_size(path, facts),
    };
    manifest::finished_table(&segment.folder, key, &is_whole)
}

/// Runs a whole-table stage unless it is done.
fn run_table(
    segment: &Segment,
    stage: &dyn Barrier,
    key: &str,
    parts: &[TablePart],
    env: &Env,
) -> Result<Readiness<TableManifest>, Error> {
    let key = table_key(key, parts.iter(), env);
    if let Some(done) = finished(segment, &key, env) {
        return Ok(Readiness::Ready(done));
    }
    if env.options.rank.rank != 0 {
        return Ok(Readiness::file(manifest::table_path(&segment.folder), 0));
    }
    let changed = parts.iter().enumerate().filter(|(_, part)| !env.is_whole(&part.path, &part.facts.file()));
    let owed = |(number, part): (usize, &TablePart)| PendingFile {
        path: part.path.clone(),
        rank: number % env.options.rank.world_size.max(1),
    };
    let changed: Vec<PendingFile> = changed.map(owed).collect();
    if !changed.is_empty() {
        return Ok(Readiness::Pending(changed));
    }
    let started = Instant::now();
    barrier::clear(&segment.folder)?;
    std::fs::create_dir_all(&env.spill).map_err(|e| Error::write("create", &env.spill, e))?;
    let sum = |of: fn(&TablePart) -> u64| parts.iter().map(of).sum();
    let mut tally = Tally {
        documents_in: sum(|part| part.facts.documents),
        bytes_in: sum(|part| part.facts.text_bytes),
        ..Tally::default()
    };
    let mut progress = Progress {
        segment: segment.name.clone(),
        parts_done: 0,
        parts: 1,
        documents: tally.documents_in,
        text_bytes: tally.bytes_in,
    };
    env.progress(&progress);
    let mut job = Job::new(parts, &segment.folder, &key, env);
    job.shared = env.options.rank.world_size > 1 && stage.share().is_some();
    stage.run(&job, &mut tally).map_err(|error| placed(&segment.name, error))?;
    tally.lengths = job.lengths.into_inner().unwrap_or_else(PoisonError::into_inner);
    let written = barrier::written_parts(&segment.folder)?;
    if written.is_empty() {
        // A sink passes on everything it did not drop.
        let dropped: u64 = tally.dropped.values().map(|d| d.bytes).sum();
        tally.documents_out = tally.documents_in - tally.dropped_documents().min(tally.documents_in);
        tally.bytes_out = tally.bytes_in - dropped.min(tally.bytes_in);
    } else {
        tally.documents_out = written.iter().map(|part| part.facts.documents).sum();
        tally.bytes_out = written.iter().map(|part| part.facts.text_bytes).sum();
    }
    let files = manifest::files_of(&segment.folder, &env.hashes)?;
    let done = TableManifest { key, parts: written.len(), files, stage: tally };
    runner::log_seconds(&part_path(&segment.folder, 0), 0, vec![started.elapsed().as_secs_f64()], env)?;
    durable::save(&manifest::table_path(&segment.folder), &done)?;
    shares::remove(&segment.folder)?;
    env.point("table")?;
    progress.parts_done = 1;
    env.progress(&progress);
    Ok(Readiness::Ready(done))
}

/// Removes leftover parts of an earlier run with more inputs, so that they are not read as part of this table.
fn remove_stale(rows: &Rows, count: usize) -> Result<(), Error> {
    let mut index = count;
    loop {
        let path = part_path(&rows.folder, index);
        if !path.exists() && !manifest::manifest_path(&path).exists() {
            return Ok(());
        }
        manifest::forget(&path)?;
        durable::remove(&path)?;
        index += 1;
    }
}
