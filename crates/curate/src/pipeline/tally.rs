//! Tally of a stage: documents and bytes in, out and dropped by reason; damage with its place; distributions, and
//! samples on both sides of a threshold.
//!
//! Tallies of batches and files are added in file order, so that the sum does not depend on thread timing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use crate::counters::{Counters, Damage, DocumentCounts, Reason};

/// Maximum number of clusters listed.
const CLUSTERS: usize = 16;
/// Samples kept on each side of a threshold.
const SAMPLES: usize = 4;
/// Maximum characters of a sample's text.
const SAMPLE_CHARS: usize = 240;

/// Tally of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Input documents.
    pub documents_in: u64,
    /// Bytes of input text.
    pub bytes_in: u64,
    /// Output documents.
    pub documents_out: u64,
    /// Bytes of output text.
    pub bytes_out: u64,
    /// Dropped documents by reason.
    pub dropped: BTreeMap<String, DocumentCounts>,
    /// The first [`Counters::LISTED`] damaged records; `dropped` counts all of them.
    pub damage: Vec<Damage>,
    /// Counts by group and name, such as documents by language.
    pub groups: BTreeMap<String, BTreeMap<String, DocumentCounts>>,
    /// Distributions of values by name, such as a filter's scores.
    pub scores: BTreeMap<String, Score>,
    /// Distribution of output document lengths, in bytes.
    pub lengths: Histogram,
    /// The largest clusters of duplicates.
    pub clusters: Vec<Cluster>,
}

/// A group of identical or nearly identical documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Number of documents, including the kept one.
    pub documents: u64,
    /// Id of the kept document.
    pub first: String,
    /// Beginning of its text.
    pub text: String,
}

/// Distribution of one score, with samples close to its threshold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Histogram of the values.
    pub histogram: Histogram,
    /// Thresholds applied; empty if the value decides nothing.
    pub limits: Vec<f64>,
    /// Documents barely kept, nearest to the threshold first.
    pub kept: Vec<Sample>,
    /// Documents barely dropped, nearest to the threshold first.
    pub dropped: Vec<Sample>,
}

/// A document near a threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Id of the document.
    pub id: String,
    /// Value of the score.
    pub value: f64,
    /// Distance to the nearest threshold.
    pub distance: f64,
    /// Beginning of its text.
    pub text: String,
}

impl Tally {
    /// Counts a dropped document under a reason in snake_case.
    pub fn drop(&mut self, reason: &str, text_bytes: u64) {
        self.drop_many(reason, DocumentCounts { documents: 1, bytes: text_bytes });
    }

    /// Counts several dropped documents.
    pub fn drop_many(&mut self, reason: &str, more: DocumentCounts) {
        add(named(&mut self.dropped, reason), more);
    }

    /// Counts and lists a damaged record under its reason.
    pub fn damaged(&mut self, damage: Damage, more: DocumentCounts) {
        self.drop_many(&reason_name(damage.reason), more);
        self.note(damage);
    }

    /// Lists a damaged record that is counted elsewhere.
    pub fn note(&mut self, damage: Damage) {
        if self.damage.len() < Counters::LISTED {
            self.damage.push(damage);
        }
    }

    /// Counts a document under a name of a group: `count("language", "en", bytes)`.
    pub fn count(&mut self, group: &str, name: &str, text_bytes: u64) {
        self.count_many(group, name, DocumentCounts { documents: 1, bytes: text_bytes });
    }

    /// Counts several documents, possibly none, under a name of a group.
    pub fn count_many(&mut self, group: &str, name: &str, more: DocumentCounts) {
        add(named(named(&mut self.groups, group), name), more);
    }

    /// Adds a value to the distribution `name`.
    pub fn score(&mut self, name: &str, value: f64) {
        named(&mut self.scores, name).histogram.add(value);
    }

    /// Adds a value to the distribution `name`, `times` times.
    pub fn score_many(&mut self, name: &str, value: f64, times: u64) {
        named(&mut self.scores, name).histogram.add_many(value, times);
    }

    /// Adds a value that decided whether `document` (id, text) was kept, sampled by its distance to the nearest of
    /// `limits`.
    pub fn decided(&mut self, name: &str, value: f64, limits: &[f64], kept: bool, document: (&str, &str)) {
        let score = named(&mut self.scores, name);
        score.histogram.add(value);
        if score.limits.is_empty() {
            score.limits = limits.to_vec();
        }
        let distance = limits.iter().map(|limit| (value - limit).abs()).fold(f64::INFINITY, f64::min);
        if !distance.is_finite() {
            return;
        }
        let side = if kept { &mut score.kept } else { &mut score.dropped };
        let (id, text) = document;
        let before = |s: &Sample| (s.distance, s.id.as_str()) < (distance, id);
        if side.len() == SAMPLES && side.last().is_some_and(before) {
            return;
        }
        let place = side.partition_point(before);
        let text = text.chars().take(SAMPLE_CHARS).collect();
        side.insert(place, Sample { id: id.to_owned(), value, distance, text });
        side.truncate(SAMPLES);
    }

    /// Records a cluster of duplicates; only the largest are listed.
    pub fn cluster(&mut self, documents: u64, first: &str, text: &str) {
        let text = text.chars().take(SAMPLE_CHARS).collect();
        self.clusters.push(Cluster { documents, first: first.to_owned(), text });
        if self.clusters.len() > 4 * CLUSTERS {
            self.sort_clusters();
        }
    }

    pub(crate) fn sort_clusters(&mut self) {
        self.clusters.sort_by(|a, b| b.documents.cmp(&a.documents).then_with(|| a.first.cmp(&b.first)));
        self.clusters.truncate(CLUSTERS);
    }

    /// Adds the tally of a later batch or file of the same stage.
    pub fn add(&mut self, later: &Tally) {
        self.documents_in += later.documents_in;
        self.bytes_in += later.bytes_in;
        self.documents_out += later.documents_out;
        self.bytes_out += later.bytes_out;
        later.dropped.iter().for_each(|(reason, more)| self.drop_many(reason, *more));
        let room = Counters::LISTED.saturating_sub(self.damage.len());
        self.damage.extend(later.damage.iter().take(room).cloned());
        for (group, names) in &later.groups {
            let group = named(&mut self.groups, group);
            names.iter().for_each(|(name, more)| add(named(group, name), *more));
        }
        for (name, score) in &later.scores {
            named(&mut self.scores, name).merge(score);
        }
        self.lengths.merge(&later.lengths);
        if !later.clusters.is_empty() {
            self.clusters.extend(later.clusters.iter().cloned());
            self.sort_clusters();
        }
    }

    /// Adds the counters of a reader.
    pub fn add_reader(&mut self, counters: &Counters) {
        self.documents_out += counters.read_documents;
        self.bytes_out += counters.read_bytes;
        for (reason, more) in &counters.dropped {
            self.drop_many(&reason_name(*reason), *more);
        }
        for (extension, files) in &counters.unread {
            add(named(named(&mut self.groups, "no_reader"), extension), *files);
        }
        let room = Counters::LISTED.saturating_sub(self.damage.len());
        self.damage.extend(counters.damage.iter().take(room).cloned());
        let lost: (u64, u64) =
            counters.dropped.values().fold((0, 0), |sum, d| (sum.0 + d.documents, sum.1 + d.bytes));
        self.documents_in += counters.read_documents + lost.0;
        self.bytes_in += counters.read_bytes + lost.1;
    }

    /// Documents dropped for any reason.
    pub fn dropped_documents(&self) -> u64 {
        self.dropped.values().map(|dropped| dropped.documents).sum()
    }
}

impl Score {
    fn merge(&mut self, later: &Score) {
        self.histogram.merge(&later.histogram);
        if self.limits.is_empty() {
            self.limits.clone_from(&later.limits);
        }
        for (mine, theirs) in [(&mut self.kept, &later.kept), (&mut self.dropped, &later.dropped)] {
            mine.extend(theirs.iter().cloned());
            mine.sort_by(|a, b| a.distance.total_cmp(&b.distance).then_with(|| a.id.cmp(&b.id)));
            mine.truncate(SAMPLES);
        }
    }
}

fn add(sum: &mut DocumentCounts, more: DocumentCounts) {
    sum.documents += more.documents;
    sum.bytes += more.bytes;
}

/// Entry of a name. Allocates the key only if it is missing, since most calls find it.
fn named<'m, T: Default>(map: &'m mut BTreeMap<String, T>, name: &str) -> &'m mut T {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    match map.get_mut(name) {
        Some(value) => value,
        None => unreachable!("it was just inserted"),
    }
}

/// Name of a reader's reason in snake_case, as in its JSON.
pub(crate) fn reason_name(reason: Reason) -> String {
    match serde_json::to_value(reason) {
        Ok(serde_json::Value::String(name)) => name,
        _ => reason.words().replace(' ', "_"),
    }
}
