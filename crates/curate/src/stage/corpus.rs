//! Decontamination, blending and splitting of a whole table.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{StringArray, UInt32Array};
use arrow_select::take::take_record_batch;
use fathom_base::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use crate::blend::{
    Blend, BlendOptions, BlendSource, Sizes, Split, SplitOptions, Unit, copy_id, original_id,
};
use crate::counters::DocumentCounts;
use crate::decontaminate::{
    CleaningOutcome, DecontaminateOptions, DecontaminationReport, Decontaminator, Matches,
};
use crate::error::Error;
use crate::pipeline::{Barrier, Batch, Job, Stage, Tally, Work};

/// Removes the texts of evaluation sets.
pub(super) struct Decontaminate(Decontaminator);

impl Maker for Decontaminate {
    type Options = DecontaminateOptions;
    const NAME: &'static str = "decontaminate";
    const ABOUT: &'static str =
        "cuts n-grams of evaluation sets (sets = [\"quiz.jsonl\"]), with some text on both sides";

    fn make(options: DecontaminateOptions) -> Result<Work, Error> {
        Ok(Work::Table(Box::new(Decontaminate(Decontaminator::new(&options)?))))
    }
}

impl Barrier for Decontaminate {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let (matches, report) = self.look(job, tally)?;
        self.tell(job, &report, tally);
        let removable = self.0.removable(&matches);
        let change = |_: u64, batch: Batch, tally: &mut Tally| {
            let mut pieces: Vec<(u32, Cow<'_, str>, Option<String>)> = Vec::with_capacity(batch.rows());
            for row in 0..batch.rows() {
                let text = batch.text(row);
                match self.0.clean(text, &removable) {
                    CleaningOutcome::Whole => pieces.push((row as u32, Cow::Borrowed(text), None)),
                    CleaningOutcome::Dropped(reason) => tally.drop(reason, text.len() as u64),
                    CleaningOutcome::Pieces(parts) => {
                        tally.count("cut", "documents cut", text.len() as u64);
                        let id = batch.id(row);
                        for (n, part) in parts.into_iter().enumerate() {
                            pieces.push((row as u32, Cow::Borrowed(part), Some(format!("{id}/{}", n + 1))));
                        }
                    }
                }
            }
            repeated(&batch, &pieces)
        };
        job.rewrite(&change, tally)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.files().to_vec()
    }
}

impl Decontaminate {
    /// First pass: finds the matches, and counts documents under the sets that they match.
    fn look(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(Matches, DecontaminationReport), Error> {
        let sums = Mutex::new((Matches::default(), Tally::default()));
        job.for_each(&|_, batch| {
            let (mut matches, mut tally) = (Matches::default(), Tally::default());
            for row in 0..batch.rows() {
                let found = self.0.find(batch.text(row));
                matches.add(&found);
                for set in self.0.sets_of(&found) {
                    tally.count("found in documents", set, batch.text(row).len() as u64);
                }
            }
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            sums.0.merge(&matches);
            sums.1.add(&tally);
            Ok(())
        })?;
        let (matches, sum) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        tally.add(&sum);
        let report = self.0.report(&matches, 100);
        let path = job.folder().join("report.json");
        let text = serde_json::to_vec_pretty(&report).map_err(|e| Error::write("write", &path, e.into()))?;
        std::fs::write(&path, text).map_err(|e| Error::write("write", &path, e))?;
        Ok((matches, report))
    }

    /// Reports how much of each set was found, and how many texts were too short to match.
    fn tell(&self, job: &Job<'_>, report: &DecontaminationReport, tally: &mut Tally) {
        for task in &report.tasks {
            // Sets without matches are listed in the report too.
            tally.count_many("found in documents", &task.task, DocumentCounts::default());
            if task.too_short_texts > 0 {
                let documents = DocumentCounts { documents: task.too_short_texts, bytes: 0 };
                tally.count_many("texts of sets too short to look for", &task.task, documents);
            }
            let documents = tally.groups["found in documents"][&task.task].documents;
            let [documents, removed, common, grams, short, texts] = [
                documents,
                task.removed_grams,
                task.common_grams,
                task.grams,
                task.too_short_texts,
                task.texts,
            ]
            .map(human::grouped);
            let mut line = format!(
                "{}: found in {documents} documents; {removed} of {grams} n-grams removed, {common} too common",
                task.task
            );
            if task.too_short_texts > 0 {
                line += &format!("; {short} of {texts} texts too short to be looked for");
            }
            job.say(&line);
        }
    }
}

/// Selects rows of a batch, possibly repeated, with new texts and, if given, new ids.
fn repeated(batch: &Batch, rows: &[(u32, Cow<'_, str>, Option<String>)]) -> Result<Batch, Error> {
    let places = UInt32Array::from_iter_values(rows.iter().map(|(row, ..)| *row));
    let wrong = |detail: String| Error::Table { detail };
    let taken = take_record_batch(batch.table(), &places).map_err(|e| wrong(e.to_string()))?;
    let ids = rows.iter().map(|(row, _, id)| id.as_deref().unwrap_or_else(|| batch.id(*row as usize)));
    let ids = StringArray::from_iter_values(ids);
    let texts = StringArray::from_iter_values(rows.iter().map(|(_, text, _)| text.as_ref()));
    let taken = Batch::new(taken).map_err(wrong)?;
    Ok(taken.with_column("id", Arc::new(ids)).with_column("text", Arc::new(texts)))
}

/// Options of `blend`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BlendStageOptions {
    /// Weight by source, of each source of the table; 0 leaves one out.
    pub weights: BTreeMap<String, f64>,
    /// Unit of the weights and of `target`.
    pub unit: Unit,
    /// Size of the blend in that unit; the document that reaches it is the last. 0 takes each source once; its weights are
    /// then equal or 0.
    pub target: u64,
    /// Takes no document twice: when a source has run out, the others go on by their weights. Otherwise it begins again.
    pub once: bool,
}

/// Draws documents from weighted sources.
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
        let mut open = options.weights.values().filter(|weight| **weight > 0.0);
        let first = open.next();
        if options.target == 0 && open.any(|weight| Some(weight) != first) {
            let advice = "without a size each source is taken once and weights decide nothing: give `target`, or equal weights";
            return refuse("target", "0 with different weights", advice);
        }
        Ok(Work::Table(Box::new(BlendSources(options))))
    }
}

/// Document sizes by source, in table order.
type Sources = BTreeMap<String, Vec<u64>>;

impl Barrier for BlendSources {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let sources = self.sources(job)?;
        let copies = self.copies(job, &sources)?;
        let mut next: BTreeMap<&str, usize> = BTreeMap::new();
        let mut parts = job.writer();
        for batch in job.ahead() {
            let (_, batch) = batch?;
            let mut rows = Vec::with_capacity(batch.rows());
            for row in 0..batch.rows() {
                let (text, Some((source, copies))) =
                    (batch.text(row), copies.get_key_value(batch.source(row)))
                else {
                    continue;
                };
                let place = next.entry(source).or_default();
                let times = copies.get(*place).copied().unwrap_or(0);
                *place += 1;
                if times == 0 {
                    tally.drop("not_drawn", text.len() as u64);
                }
                for copy in 0..times as usize {
                    let id = (copy > 0).then(|| copy_id(batch.id(row), copy + 1));
                    rows.push((row as u32, Cow::Borrowed(text), id));
                    tally.count("source", source, text.len() as u64);
                    if copy > 0 {
                        tally.count("copies", source, text.len() as u64);
                    }
                }
            }
            // Copies can make a batch many times larger; its rows are written a few at a time.
            rows.chunks(Batch::MAX_ROWS).try_for_each(|rows| parts.write(&repeated(&batch, rows)?))?;
        }
        parts.finish()
    }
}

impl BlendSources {
    /// Collects the sources of the table, each of which must have a weight.
    fn sources(&self, job: &Job<'_>) -> Result<Sources, Error> {
        let mut sources = Sources::new();
        for batch in job.batches() {
            let (_, batch) = batch?;
            for row in 0..batch.rows() {
                let size = if self.0.unit == Unit::Bytes { batch.text(row).len() as u64 } else { 1 };
                match sources.get_mut(batch.source(row)) {
                    Some(sizes) => sizes.push(size),
                    None => drop(sources.insert(batch.source(row).to_owned(), vec![size])),
                }
            }
        }
        let refuse = |found: String, advice: String| Err(Error::Setting { key: "weights", found, advice });
        if let Some(name) = self.0.weights.keys().find(|name| !sources.contains_key(*name)) {
            let has = sources.keys().cloned().collect::<Vec<_>>().join(", ");
            return refuse(format!("for `{name}`"), format!("the table has {has}"));
        }
        match sources.keys().find(|name| !self.0.weights.contains_key(*name)) {
            Some(name) => refuse(
                format!("nothing for `{name}`"),
                "every source of the table needs one; 0 leaves it out".to_owned(),
            ),
            None => Ok(sources),
        }
    }

    /// Number of draws of each document, by source.
    fn copies<'s>(&self, job: &Job<'_>, sizes: &'s Sources) -> Result<BTreeMap<&'s str, Vec<u32>>, Error> {
        let sources: Vec<BlendSource<'_>> = sizes
            .iter()
            .map(|(name, sizes)| BlendSource {
                name: name.clone(),
                weight: self.0.weights.get(name).copied().unwrap_or(0.0),
                sizes: Sizes::Each(sizes),
            })
            .collect();
        let (unit, target, repeat) = (self.0.unit, self.0.target, !self.0.once);
        let options = BlendOptions { unit, target, repeat, shuffle: true, seed: job.seed() };
        let copies = Blend::new(options, &sources)?.copies();
        let drawn: u64 = std::iter::zip(&copies, sizes.values())
            .flat_map(|(copies, sizes)| std::iter::zip(copies, sizes))
            .map(|(times, size)| u64::from(*times) * size)
            .sum();
        if drawn < target {
            let [drawn, target] = [drawn, target].map(human::grouped);
            let unit = if unit == Unit::Bytes { "bytes" } else { "documents" };
            job.say(&format!(
                "every source is used up: the blend has {drawn} {unit} of {target}, and not the shares that its weights ask for"
            ));
        }
        Ok(sizes.keys().map(String::as_str).zip(copies).collect())
    }
}

/// Assigns each document to training, validation or test.
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
        // Copies follow their original: a model must not be evaluated on text it has learned.
        let of = |row: usize| self.0.part(original_id(batch.id(row))).name();
        for row in 0..batch.rows() {
            tally.count("split", of(row), batch.text(row).len() as u64);
        }
        let column = StringArray::from_iter_values((0..batch.rows()).map(of));
        Ok(batch.with_column("split", Arc::new(column)))
    }
}
