//! Decontamination, blending and splitting of a whole table.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{StringArray, UInt32Array};
use arrow::compute::take_record_batch;
use serde::{Deserialize, Serialize};

use super::Maker;
use crate::blend::{Blend, BlendOptions, BlendSource, Sizes, Split, SplitOptions, Unit};
use crate::decontaminate::{Cleaned, DecontaminateOptions, Decontaminator, Matches};
use crate::error::Error;
use crate::pipeline::{Barrier, Batch, Job, Stage, Tally, Work};

/// Removes the texts of evaluation sets.
pub(super) struct Decontaminate(Decontaminator, DecontaminateOptions);

impl Maker for Decontaminate {
    type Options = DecontaminateOptions;
    const NAME: &'static str = "decontaminate";
    const ABOUT: &'static str = "cuts n-grams of evaluation sets, with some text on both sides";

    fn make(options: DecontaminateOptions) -> Result<Work, Error> {
        Ok(Work::Table(Box::new(Decontaminate(Decontaminator::new(&options)?, options))))
    }
}

impl Barrier for Decontaminate {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let matches = Mutex::new(Matches::default());
        job.for_each(&|_, batch| {
            let mut found = Matches::default();
            (0..batch.rows()).for_each(|row| found.add(&self.0.find(batch.text(row))));
            matches.lock().unwrap_or_else(PoisonError::into_inner).merge(&found);
            Ok(())
        })?;
        let matches = matches.into_inner().unwrap_or_else(PoisonError::into_inner);
        let report = self.0.report(&matches, 100);
        let path = job.folder().join("report.json");
        let text = serde_json::to_vec_pretty(&report).map_err(|e| Error::write("write", &path, e.into()))?;
        std::fs::write(&path, text).map_err(|e| Error::write("write", &path, e))?;
        for task in &report.tasks {
            tally.score_many("matches", task.matches as f64, 1);
        }
        let removable = self.0.removable(&matches);
        let change = |_: u64, batch: Batch, tally: &mut Tally| {
            let mut pieces: Vec<(u32, Cow<'_, str>, Option<usize>)> = Vec::with_capacity(batch.rows());
            for row in 0..batch.rows() {
                let text = batch.text(row);
                match self.0.clean(text, &removable) {
                    Cleaned::Whole => pieces.push((row as u32, Cow::Borrowed(text), None)),
                    Cleaned::Dropped(reason) => tally.drop(reason, text.len() as u64),
                    Cleaned::Pieces(parts) => {
                        tally.count("cut", "documents cut", text.len() as u64);
                        let numbered = parts.into_iter().enumerate();
                        pieces
                            .extend(numbered.map(|(n, part)| (row as u32, Cow::Borrowed(part), Some(n + 1))));
                    }
                }
            }
            repeated(&batch, &pieces)
        };
        job.rewrite(&change, tally)
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        self.1.sets.iter().map(|set| set.path.clone()).collect()
    }
}

/// Rows of a batch, some of them several times, with new texts; a number makes the id another one.
fn repeated(batch: &Batch, rows: &[(u32, Cow<'_, str>, Option<usize>)]) -> Result<Batch, Error> {
    let places = UInt32Array::from_iter_values(rows.iter().map(|(row, ..)| *row));
    let wrong = |detail: String| Error::Table { detail };
    let taken = take_record_batch(batch.table(), &places).map_err(|e| wrong(e.to_string()))?;
    let id = |(row, _, number): &(u32, Cow<'_, str>, Option<usize>)| {
        let id = batch.id(*row as usize);
        number.map_or_else(|| id.to_owned(), |number| format!("{id}/{number}"))
    };
    let ids = StringArray::from_iter_values(rows.iter().map(id));
    let texts = StringArray::from_iter_values(rows.iter().map(|(_, text, _)| text.as_ref()));
    let taken = Batch::new(taken).map_err(wrong)?;
    Ok(taken.with_column("id", Arc::new(ids)).with_column("text", Arc::new(texts)))
}

/// Options of `blend`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlendStageOptions {
    /// Weight by source; a source that is not named has none.
    pub weights: BTreeMap<String, f64>,
    /// What weights and target count: `documents` or `bytes`.
    pub unit: Unit,
    /// Size of the blend in that unit; 0 takes each source once.
    pub target: u64,
    /// A source that has run out begins again; without it the others go on.
    pub once: bool,
}

/// Draws documents of weighted sources.
pub(super) struct BlendSources(BlendStageOptions);

impl Maker for BlendSources {
    type Options = BlendStageOptions;
    const NAME: &'static str = "blend";
    const ABOUT: &'static str =
        "draws documents of weighted sources up to a target size; a shuffle should follow";

    fn make(options: BlendStageOptions) -> Result<Work, Error> {
        let refuse = |key, found: &str, advice: &str| {
            Err(Error::Setting { key, found: found.to_owned(), advice: advice.to_owned() })
        };
        if options.unit == Unit::Tokens {
            return refuse(
                "unit",
                "tokens",
                "tokens are not known before `tokenize`; use bytes or documents",
            );
        }
        if options.weights.is_empty() {
            return refuse("weights", "empty", "give weights by source: weights = { wiki = 2, web = 1 }");
        }
        Ok(Work::Table(Box::new(BlendSources(options))))
    }
}

impl Barrier for BlendSources {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        // Sizes of the documents of each source, in the order of the table.
        let mut sizes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for batch in job.batches() {
            let (_, batch) = batch?;
            for row in 0..batch.rows() {
                let size = if self.0.unit == Unit::Bytes { batch.text(row).len() as u64 } else { 1 };
                match sizes.get_mut(batch.source(row)) {
                    Some(sizes) => sizes.push(size),
                    None => drop(sizes.insert(batch.source(row).to_owned(), vec![size])),
                }
            }
        }
        let unknown = self.0.weights.keys().find(|name| !sizes.contains_key(*name));
        if let Some(name) = unknown {
            let has = sizes.keys().cloned().collect::<Vec<_>>().join(", ");
            let found = format!("for `{name}`");
            return Err(Error::Setting { key: "weights", found, advice: format!("the table has {has}") });
        }
        let sources: Vec<BlendSource<'_>> = sizes
            .iter()
            .map(|(name, sizes)| BlendSource {
                name: name.clone(),
                weight: self.0.weights.get(name).copied().unwrap_or(0.0),
                sizes: Sizes::Each(sizes),
            })
            .collect();
        let options = BlendOptions {
            unit: self.0.unit,
            target: self.0.target,
            repeat: !self.0.once,
            shuffle: true,
            seed: job.seed(),
        };
        let copies = Blend::new(options, &sources)?.copies();
        let copies: BTreeMap<&str, Vec<u32>> = sizes.keys().map(String::as_str).zip(copies).collect();
        let mut next: BTreeMap<String, usize> = BTreeMap::new();
        let mut parts = job.writer();
        for batch in job.ahead() {
            let (_, batch) = batch?;
            let mut rows = Vec::with_capacity(batch.rows());
            for row in 0..batch.rows() {
                let (source, text) = (batch.source(row), batch.text(row));
                if !next.contains_key(source) {
                    next.insert(source.to_owned(), 0);
                }
                let place = next.get_mut(source).map_or(0, |place| std::mem::replace(place, *place + 1));
                let times = copies.get(source).and_then(|copies| copies.get(place)).copied().unwrap_or(0);
                if times == 0 {
                    tally.drop("not_drawn", text.len() as u64);
                }
                for copy in 0..times as usize {
                    let number = (copy > 0).then_some(copy + 1);
                    rows.push((row as u32, Cow::Borrowed(text), number));
                    tally.count("source", source, text.len() as u64);
                }
            }
            // Copies can make a batch many times as large; its rows are written a few at a time.
            rows.chunks(Batch::MAX_ROWS).try_for_each(|rows| parts.write(&repeated(&batch, rows)?))?;
        }
        parts.finish()
    }
}

/// Says of each document whether it is for training, validation or test.
pub(super) struct SplitRows(Split);

impl Maker for SplitRows {
    type Options = SplitOptions;
    const NAME: &'static str = "split";
    const ABOUT: &'static str = "adds the column split: train, validation or test, by the hash of the id";

    fn make(options: SplitOptions) -> Result<Work, Error> {
        Ok(Work::Rows(Box::new(SplitRows(Split::new(&options)?))))
    }
}

impl Stage for SplitRows {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let of = |row: usize| self.0.part(batch.id(row)).name();
        for row in 0..batch.rows() {
            tally.count("split", of(row), batch.text(row).len() as u64);
        }
        let column = StringArray::from_iter_values((0..batch.rows()).map(of));
        Ok(batch.with_column("split", Arc::new(column)))
    }
}
