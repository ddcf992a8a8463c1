//! Deduplication of a whole table: exact, fuzzy, by paragraphs and by substrings.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use fathom_base::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use crate::dedup::{
    Bands, BloomOptions, Digest, Duplicates, Engine, ExactFinder, FuzzyFinder, FuzzyOptions, MinHashScratch,
    Needs, ParagraphFilter, Paragraphs, SubstringOptions, band_keys, exact_needs, fuzzy_needs,
    substring_needs, substrings,
};
use crate::error::Error;
use crate::pipeline::{Barrier, Batch, Job, RowSet, ShareOf, Tally, Work};

/// Number of clusters whose text the report shows.
const SHOWN_CLUSTERS: usize = 16;

/// Options of `exact`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExactOptions {
    /// Digest that stands for a text when texts are compared.
    pub digest: Digest,
}

/// Keeps the first of all documents with the same text.
pub(super) struct Exact(ExactOptions);

impl Maker for Exact {
    type Options = ExactOptions;
    const NAME: &'static str = "exact";
    const ABOUT: &'static str = "keeps the first of all documents with the same text";

    fn make(options: ExactOptions) -> Result<Work, Error> {
        Ok(Work::Table(Box::new(Exact(options))))
    }
}

impl Barrier for Exact {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let engine_bytes = job.memory_bytes() / 2;
        say(job, exact_needs(job.num_documents(), engine_bytes));
        let found = with_engine(job, engine_bytes, |engine, work| {
            let mut finder = ExactFinder::new(work)?;
            let digests = |number: u64, batch: &Batch| {
                let of = |row: usize| (number + row as u64, self.0.digest.of(batch.text(row)));
                Ok((0..batch.rows()).map(of).collect::<Vec<_>>())
            };
            job.in_order(&digests, &mut |digests| {
                digests.into_iter().try_for_each(|(number, digest)| finder.take(number, digest))
            })?;
            finder.finish(engine)
        })?;
        remove(job, &found, &all_but_first(&found), "duplicate", tally)
    }
}

/// Keeps the first of all near-duplicates.
pub(super) struct Fuzzy(FuzzyOptions);

impl Maker for Fuzzy {
    type Options = FuzzyOptions;
    const NAME: &'static str = "fuzzy";
    const ABOUT: &'static str =
        "keeps the first of all documents that are nearly the same (MinHash, LSH, components)";

    fn make(options: FuzzyOptions) -> Result<Work, Error> {
        // Only validates the options; the hash functions are drawn again at run time.
        Bands::new(&options)?;
        Ok(Work::Table(Box::new(Fuzzy(options))))
    }

    fn preset(written: &BTreeMap<String, toml::Value>) -> Option<FuzzyOptions> {
        let named = written.get("preset").and_then(toml::Value::as_str);
        (named == Some("datatrove")).then(FuzzyOptions::datatrove)
    }
}

impl Barrier for Fuzzy {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let engine_bytes = job.memory_bytes() / 2;
        say(job, fuzzy_needs(&self.0, job.num_documents(), job.text_bytes(), engine_bytes));
        let found = with_engine(job, engine_bytes, |engine, work| {
            let bands = Bands::new(&self.0)?;
            let mut finder = FuzzyFinder::new(&bands, work)?;
            match job.shares() {
                Some(files) => taken(&files, bands.bands(), &mut finder)?,
                None => {
                    let keys = |number: u64, batch: &Batch| Ok((number, keys_of(&bands, batch)));
                    job.in_order(&keys, &mut |(number, keys)| {
                        (number..).zip(keys).try_for_each(|(number, keys)| finder.take(number, &keys))
                    })?;
                }
            }
            let found = finder.finish(engine)?;
            match self.0.check {
                Some(threshold) => found.checked(self.0.shingles, threshold, job.documents(), work),
                None => Ok(found),
            }
        })?;
        remove(job, &found, &all_but_first(&found), "near_duplicate", tally)
    }

    /// For each document a flag telling if it has keys, followed by its band keys.
    fn share(&self) -> Option<Box<ShareOf<'_>>> {
        let bands = Bands::new(&self.0).ok()?;
        Some(Box::new(move |batch: &Batch| {
            let mut bytes = Vec::new();
            for keys in keys_of(&bands, batch) {
                bytes.push(u8::from(!keys.is_empty()));
                keys.iter().for_each(|key| bytes.extend(key.to_le_bytes()));
            }
            Ok(bytes)
        }))
    }
}

/// Band keys of the documents of a batch.
fn keys_of(bands: &Bands, batch: &Batch) -> Vec<Vec<u64>> {
    let mut scratch = MinHashScratch::default();
    (0..batch.rows()).map(|row| band_keys(bands, batch.text(row), &mut scratch)).collect()
}

/// Passes on the keys written by the ranks, document by document.
fn taken(files: &[PathBuf], bands: usize, finder: &mut FuzzyFinder) -> Result<(), Error> {
    let mut number = 0;
    for path in files {
        let bad = |e| Error::read(path, e);
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(bad)?);
        while !file.fill_buf().map_err(bad)?.is_empty() {
            let (mut has, mut key) = ([0], [0; 8]);
            file.read_exact(&mut has).map_err(bad)?;
            let count = if has == [1] { bands } else { 0 };
            let mut keys = Vec::with_capacity(count);
            for _ in 0..count {
                file.read_exact(&mut key).map_err(bad)?;
                keys.push(u64::from_le_bytes(key));
            }
            finder.take(number, &keys)?;
            number += 1;
        }
    }
    Ok(())
}

pub(super) fn say(job: &Job<'_>, needs: Needs) {
    let (memory, disk) = (human::bytes(needs.memory_bytes), human::bytes(needs.disk_bytes));
    job.say(&format!("needs at most {memory} of memory and {disk} of disk in {}", job.spill().display()));
}

/// Runs `find` with an engine and an empty folder, on the threads of the run.
fn with_engine<T: Send>(
    job: &Job<'_>,
    engine_bytes: u64,
    find: impl FnOnce(&Engine, &std::path::Path) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let work = scratch(job)?;
    let engine = Engine::on(job.engine(), engine_bytes, job.threads(), &work.join("sort"))?;
    let found = job.on_threads(|| find(&engine, &work))??;
    drop(engine);
    std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))?;
    Ok(found)
}

/// An empty folder for this stage below the spill folder.
pub(super) fn scratch(job: &Job<'_>) -> Result<PathBuf, Error> {
    let work = scratch_path(job);
    if work.exists() {
        std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))?;
    }
    kept_scratch(job)
}

/// The same folder, keeping the contents left by an earlier run.
pub(super) fn kept_scratch(job: &Job<'_>) -> Result<PathBuf, Error> {
    let work = scratch_path(job);
    std::fs::create_dir_all(&work).map_err(|e| Error::write("create", &work, e))?;
    Ok(work)
}

fn scratch_path(job: &Job<'_>) -> PathBuf {
    let name = job.folder().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    job.spill().join(name)
}

fn all_but_first(found: &Duplicates) -> RowSet {
    found.pairs().map(|(document, _)| document).collect()
}

/// Writes the table without the documents of `dropped`, and lists the largest clusters.
pub(super) fn remove(
    job: &Job<'_>,
    found: &Duplicates,
    dropped: &RowSet,
    reason: &'static str,
    tally: &mut Tally,
) -> Result<(), Error> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, first) in found.pairs() {
        *sizes.entry(first).or_insert(1) += 1;
    }
    for (size, clusters) in found.sizes() {
        tally.score_many("cluster_size", size as f64, clusters);
    }
    let mut largest: Vec<(u64, u64)> = sizes.into_iter().map(|(first, size)| (size, first)).collect();
    largest.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    largest.truncate(SHOWN_CLUSTERS);
    let largest: BTreeMap<u64, u64> = largest.into_iter().map(|(size, first)| (first, size)).collect();
    let change = |number: u64, batch: Batch, tally: &mut Tally| {
        let rows = number..number + batch.rows() as u64;
        for (&first, &size) in largest.range(rows) {
            let row = (first - number) as usize;
            tally.cluster(size, batch.id(row), batch.text(row));
        }
        Ok(batch.without(number, dropped, reason, tally))
    };
    job.rewrite(&change, tally)
}

/// Drops paragraphs or documents whose n-grams have mostly occurred before.
pub(super) struct Bloom(BloomOptions);

impl Maker for Bloom {
    type Options = BloomOptions;
    const NAME: &'static str = "paragraphs";
    const ABOUT: &'static str =
        "drops paragraphs and documents most of whose word n-grams came before (Bloom filter)";

    fn make(options: BloomOptions) -> Result<Work, Error> {
        options.check()?;
        Ok(Work::Table(Box::new(Bloom(options))))
    }
}

impl Barrier for Bloom {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let options = self.0.for_text(job.text_bytes());
        let (bytes, ngrams) = (human::bytes(options.bytes()), human::grouped(options.expected_ngrams));
        job.say(&format!("needs {bytes} of memory for a filter of {ngrams} n-grams"));
        let mut filter = ParagraphFilter::new(&options, job.memory_bytes())?;
        let mut parts = job.writer();
        for batch in job.ahead() {
            let (_, batch) = batch?;
            let texts: Vec<&str> = (0..batch.rows()).map(|row| batch.text(row)).collect();
            let left = job.on_threads(|| filter.filter(&texts))??;
            let mut keep = Vec::with_capacity(texts.len());
            let mut new: Vec<Cow<'_, str>> = Vec::with_capacity(texts.len());
            for (text, left) in texts.iter().zip(left) {
                keep.push(left != Paragraphs::Drop);
                match left {
                    Paragraphs::Keep(left) => {
                        tally.score("kept_share", left.len() as f64 / text.len().max(1) as f64);
                        new.push(left);
                    }
                    Paragraphs::Drop => {
                        tally.drop("repeated_paragraphs", text.len() as u64);
                        new.push(Cow::Borrowed(text));
                    }
                }
            }
            let changed = batch.clone().with_texts(&new);
            parts.write(&changed.keep(&keep))?;
        }
        if filter.has_grown() {
            let (bytes, ngrams) = (human::bytes(filter.bytes()), human::grouped(filter.ngrams()));
            job.say(&format!("{ngrams} different n-grams came; the filter has grown to {bytes}"));
        }
        tally.score("false_positive_rate", filter.false_positive_rate());
        parts.finish()
    }
}

/// Cuts repeated byte ranges out of texts.
pub(super) struct Substrings(SubstringOptions);

impl Maker for Substrings {
    type Options = SubstringOptions;
    const NAME: &'static str = "substrings";
    const ABOUT: &'static str = "cuts stretches of text that came before, byte for byte (suffix arrays)";

    fn make(options: SubstringOptions) -> Result<Work, Error> {
        options.check()?;
        Ok(Work::Table(Box::new(Substrings(options))))
    }
}

impl Barrier for Substrings {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let (needs, sorts) = substring_needs(&self.0, job.num_documents(), job.text_bytes());
        say(job, needs);
        job.say(&format!("sorts the suffixes of {} {sorts} times", human::bytes(self.0.chunk_bytes as u64)));
        let work = scratch(job)?;
        let mut parts = job.writer();
        // Texts arrive one by one, their rows batch by batch.
        let mut rows = job.batches();
        let mut open: Option<Batch> = None;
        let mut new: Vec<String> = Vec::new();
        let report = substrings(&self.0, job.documents(), &work, |_, text| {
            new.push(text.to_owned());
            if open.is_none() {
                open = rows.next().transpose()?.map(|(_, batch)| batch);
            }
            if open.as_ref().is_some_and(|batch| batch.rows() == new.len())
                && let Some(batch) = open.take()
            {
                write_cut(&batch, &std::mem::take(&mut new), &mut parts, tally)?;
            }
            Ok(())
        })?;
        tally.score("cut_share", report.cut_bytes as f64 / report.bytes.max(1) as f64);
        std::fs::remove_dir_all(&work).map_err(|e| Error::write("remove", &work, e))?;
        parts.finish()
    }
}

fn write_cut(
    batch: &Batch,
    texts: &[String],
    parts: &mut crate::pipeline::PartsWriter<'_>,
    tally: &mut Tally,
) -> Result<(), Error> {
    let blank: Vec<bool> = texts.iter().map(|text| text.trim().is_empty()).collect();
    for (row, text) in texts.iter().enumerate() {
        let before = batch.text(row).len();
        tally.score("kept_share", text.len() as f64 / before.max(1) as f64);
        if blank[row] {
            tally.drop("repeated_substrings", before as u64);
        }
    }
    let texts: Vec<Cow<'_, str>> = texts.iter().map(|text| Cow::Borrowed(text.as_str())).collect();
    let keep: Vec<bool> = blank.iter().map(|blank| !blank).collect();
    parts.write(&batch.clone().with_texts(&texts).keep(&keep))
}
