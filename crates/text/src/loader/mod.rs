//! From stores to training steps: blends, seeded orders, an exactly resumable cursor, and a prefetching thread.
//!
//! The sequence of samples is endless: each source is traversed again and again, every pass (epoch) in a new order.
//! The source of sample n depends on the number of samples drawn from each source before ([`next_source`]), so the
//! whole state is a few counters, [`Cursor`].

mod blend;
mod epoch;

pub use blend::next_source;
pub use epoch::{LengthCounts, choose, is_held_out, samples, shortened};

use crate::error::{Error, Result};
use crate::lessons::Truncation;
use crate::pack::{Boundaries, Doc, Ends, PackedSample, Packing, Sample, materialise_to};
use crate::store::{Column, Store};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Order of documents within an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shuffle {
    /// Shuffles documents, packs them, then shuffles the samples.
    Documents,
    /// Keeps store order throughout.
    None,
}

/// Documents held out from training: those whose hash, as a fraction of 2^64, lies in a range.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Start of the range, from 0 to 1.
    pub from: f64,
    /// End of the range, exclusive.
    pub to: f64,
}

impl std::fmt::Debug for HeldOut {
    /// Prints a plain share as a number, so that fingerprints of earlier runs stay valid.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            0.0 => write!(f, "{:?}", self.to),
            from => write!(f, "{from:?}..{:?}", self.to),
        }
    }
}

impl From<f64> for HeldOut {
    /// Holds out a share of all documents, selected only by their content.
    fn from(share: f64) -> HeldOut {
        HeldOut { from: 0.0, to: share }
    }
}

/// Selection of documents by content hash.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Every document.
    All,
    /// All documents that are not held out.
    Train {
        /// The held-out range.
        held_out: HeldOut,
    },
    /// Only held-out documents.
    HeldOut {
        /// The held-out range.
        held_out: HeldOut,
    },
}

/// Draws documents of at least `min_tokens` `weight` times per epoch; the rule with the largest applicable minimum
/// wins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthWeight {
    /// Minimum document length in tokens.
    pub min_tokens: u64,
    /// Copies per epoch; 2.5 means two, and a third every second time on average.
    pub weight: f64,
}

/// Sampling settings. [`Spec::new`] gives the defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Maximum tokens of a sample.
    pub seq_len: u32,
    /// Packing of documents into samples.
    pub packing: Packing,
    /// Attention across the documents of a sample.
    pub boundaries: Boundaries,
    /// Order of documents and samples.
    pub shuffle: Shuffle,
    /// Seed of every order.
    pub seed: u64,
    /// Selection of documents.
    pub split: Split,
    /// Minimum document length in tokens; shorter ones are left out.
    pub min_doc_tokens: u64,
    /// Upsampling by document length.
    pub length_weights: Vec<LengthWeight>,
    /// Number of samples prepared ahead of the step. Does not affect their contents.
    pub ahead: usize,
    /// Tokens left free before each document of a sample.
    #[serde(default)]
    pub lead: u32,
    /// Part of a too long lesson that is used; none uses all of it, in pieces. Only for stores with weights.
    #[serde(default)]
    pub kept: Option<Truncation>,
}

impl Spec {
    /// Default settings: concatenated, masked, shuffled, every document once per epoch, seed 0, four samples ahead.
    pub fn new(seq_len: u32) -> Self {
        Self {
            seq_len,
            packing: Packing::Concatenate,
            boundaries: Boundaries::Masked,
            shuffle: Shuffle::Documents,
            seed: 0,
            split: Split::All,
            min_doc_tokens: 0,
            length_weights: Vec::new(),
            ahead: 4,
            lead: 0,
            kept: None,
        }
    }

    /// Settings adapted to a store: texts are always used in pieces.
    pub fn of(&self, store: &Store) -> Self {
        let whole = store.has(Column::Weight) && self.packing != Packing::Concatenate;
        Self { kept: self.kept.filter(|_| whole), ..self.clone() }
    }

    /// Maximum tokens of a document in a sample.
    pub fn room(&self) -> usize {
        self.seq_len.saturating_sub(self.lead) as usize
    }
}

/// Documents of a store, selected by their source name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SourceFilter {
    /// All documents.
    #[default]
    Whole,
    /// Documents of this source.
    Only(String),
    /// Documents of all sources but these.
    Without(Vec<String>),
}

/// A store, or a part of one, and its share of the samples. Weights need not sum to 1.
#[derive(Clone, Debug)]
pub struct Source {
    /// The store.
    pub store: Arc<Store>,
    /// Selection of its documents.
    pub part: SourceFilter,
    /// Weight, above zero.
    pub weight: f64,
}

impl Source {
    /// Creates a source from a whole store.
    pub fn whole(store: Arc<Store>, weight: f64) -> Self {
        Self { store, part: SourceFilter::Whole, weight }
    }
}

/// Position in the sequence of samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Number of samples returned so far.
    pub sample: u64,
    /// Identifies the stores and settings that the cursor belongs to.
    pub fingerprint: String,
    /// Positions of the sources, in order.
    pub sources: Vec<SourceCursor>,
    /// Data prepared for later steps, for trainers that create their own samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<serde_json::Value>,
}

/// Upper bound of sample counts: out of reach of any run, and small enough that sums cannot overflow.
const MOST_SAMPLES: u64 = 1 << 53;

impl Cursor {
    /// Rejects a position that no loader can reach.
    fn check(&self) -> Result<()> {
        let drawn = self.sources.iter().try_fold(0u64, |sum, source| sum.checked_add(source.drawn));
        let possible = |at: &SourceCursor| at.index <= at.drawn && at.epoch <= at.drawn;
        if self.sample < MOST_SAMPLES && drawn == Some(self.sample) && self.sources.iter().all(possible) {
            return Ok(());
        }
        let Self { sample, sources, .. } = self;
        Err(Error::Documents(format!(
            "the data cursor is damaged: after {sample} samples it is at {sources:?}"
        )))
    }
}

/// Position within one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceCursor {
    /// Samples drawn from this source, over all epochs.
    pub drawn: u64,
    /// Number of completed epochs.
    pub epoch: u64,
    /// Samples drawn in the current epoch.
    pub index: u64,
}

/// Output of the preparing thread: a sample, and the position after it.
type SampleResult = Result<(PackedSample, Cursor)>;

/// Endless stream of samples, prepared by a separate thread.
#[derive(Debug)]
pub struct Loader {
    incoming: Option<Receiver<SampleResult>>,
    worker: Option<JoinHandle<()>>,
    cursor: Cursor,
    last_wait_s: f64,
    total_wait_s: f64,
}

impl Loader {
    /// Starts at the first sample.
    ///
    /// # Errors
    /// There is no source, a weight is not above zero, or the settings admit no document of a source.
    pub fn new(sources: Vec<Source>, spec: Spec) -> Result<Self> {
        let feed = Feed::new(sources, spec)?;
        Ok(Self::start(feed))
    }

    /// Continues after the sample the cursor was taken at.
    ///
    /// # Errors
    /// Same as [`Loader::new`], or the cursor belongs to other stores or settings, or was not produced by a loader.
    pub fn resume(sources: Vec<Source>, spec: Spec, cursor: &Cursor) -> Result<Self> {
        let mut feed = Feed::new(sources, spec)?;
        if cursor.fingerprint != feed.cursor.fingerprint || cursor.sources.len() != feed.lanes.len() {
            let current = feed.cursor.fingerprint;
            return Err(Error::Cursor { saved: cursor.fingerprint.clone(), current });
        }
        cursor.check()?;
        feed.cursor = cursor.clone();
        Ok(Self::start(feed))
    }

    fn start(mut feed: Feed) -> Self {
        let cursor = feed.cursor.clone();
        let (sender, incoming) = sync_channel(feed.spec.ahead.max(1));
        let worker = std::thread::spawn(move || feed.run(&sender));
        Self { incoming: Some(incoming), worker: Some(worker), cursor, last_wait_s: 0.0, total_wait_s: 0.0 }
    }

    /// Returns the next sample. Panics if the preparing thread did.
    ///
    /// # Errors
    /// A store can no longer be read, for example because it was truncated.
    #[allow(clippy::should_implement_trait)] // The sequence has no end; an Option would only be unwrapped.
    pub fn next(&mut self) -> Result<PackedSample> {
        let began = Instant::now();
        let received = self.incoming.as_ref().and_then(|incoming| incoming.recv().ok());
        self.last_wait_s = began.elapsed().as_secs_f64();
        self.total_wait_s += self.last_wait_s;
        match received {
            Some(given) => {
                let (packed, cursor) = given?;
                self.cursor = cursor;
                Ok(packed)
            }
            None => match self.worker.take().map(JoinHandle::join) {
                Some(Err(cause)) => std::panic::resume_unwind(cause),
                _ => panic!("the data thread ended before the loader"),
            },
        }
    }

    /// Position after the last returned sample; samples that are only prepared do not count.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Seconds that the last [`Loader::next`] waited.
    pub fn data_wait_s(&self) -> f64 {
        self.last_wait_s
    }

    /// Total seconds that all calls of [`Loader::next`] waited.
    pub fn total_wait_s(&self) -> f64 {
        self.total_wait_s
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Closing the channel ends the worker at its next sample.
        self.incoming = None;
        if let Some(worker) = self.worker.take() {
            // A panic of the worker no longer concerns a caller.
            let _ = worker.join();
        }
    }
}

/// The sequence without the thread.
struct Feed {
    lanes: Vec<Lane>,
    weights: Vec<f64>,
    spec: Spec,
    cursor: Cursor,
}

struct Lane {
    store: Arc<Store>,
    spec: Spec,
    docs: Vec<Doc>,
    /// Samples of one epoch, created on demand.
    plan: Option<(u64, Vec<Sample>)>,
}

impl Feed {
    fn new(sources: Vec<Source>, spec: Spec) -> Result<Self> {
        if sources.is_empty() || spec.seq_len == 0 {
            let reason = "a loader needs at least one store and samples of at least one token";
            return Err(Error::Documents(reason.into()));
        }
        let bad = |weight: f64| !(weight.is_finite() && weight >= 0.0);
        if let Some(source) = sources.iter().find(|source| bad(source.weight) || source.weight == 0.0) {
            let (prefix, weight) = (source.store.prefix().display(), source.weight);
            return Err(Error::Documents(format!("{prefix}: weight {weight} is not a number above zero")));
        }
        if let Some(rule) = spec.length_weights.iter().find(|rule| bad(rule.weight)) {
            return Err(Error::Documents(format!(
                "length weight {} is not a number from zero up",
                rule.weight
            )));
        }
        let total: f64 = sources.iter().map(|source| source.weight).sum();
        let weights: Vec<f64> = sources.iter().map(|source| source.weight / total).collect();
        let lanes = sources.iter().map(|source| {
            let docs = choose(&source.store, &source.part, &spec)?;
            Ok(Lane { store: source.store.clone(), spec: spec.of(&source.store), docs, plan: None })
        });
        let lanes: Vec<Lane> = lanes.collect::<Result<_>>()?;
        let fingerprint = fingerprint(&sources, &weights, &spec);
        let sources = vec![SourceCursor::default(); lanes.len()];
        let cursor = Cursor { sample: 0, fingerprint, sources, held: None };
        Ok(Self { lanes, weights, spec, cursor })
    }

    fn run(&mut self, sender: &SyncSender<SampleResult>) {
        loop {
            // After a read error, the same position is tried again at the next call.
            let given = self.next().map(|packed| (packed, self.cursor.clone()));
            if sender.send(given).is_err() {
                return;
            }
        }
    }

    fn next(&mut self) -> Result<PackedSample> {
        let drawn: Vec<u64> = self.cursor.sources.iter().map(|source| source.drawn).collect();
        let number = next_source(&self.weights, &drawn);
        let (lane, at) = (&mut self.lanes[number], &mut self.cursor.sources[number]);
        if lane.plan.as_ref().is_some_and(|(epoch, plan)| *epoch == at.epoch && at.index >= plan.len() as u64)
        {
            at.epoch += 1;
            at.index = 0;
        }
        let planned = lane.plan.take().filter(|(epoch, _)| *epoch == at.epoch);
        let (_, plan) = lane.plan.insert(
            planned.unwrap_or_else(|| (at.epoch, samples(&lane.docs, &lane.spec, number as u64, at.epoch))),
        );
        if at.index >= plan.len() as u64 {
            // The cursor was taken at the very end of an epoch; the plan is known now, so the recursion is one level
            // deep.
            return self.next();
        }
        let ends = if lane.spec.kept.is_some() { Ends::Span } else { Ends::Document };
        let packed = materialise_to(ends, &lane.store, &plan[at.index as usize], lane.spec.boundaries)?;
        at.index += 1;
        at.drawn += 1;
        self.cursor.sample += 1;
        Ok(packed)
    }
}

/// Identifies everything the sequence depends on: the stores' indexes and hashes, their parts, the weights and the
/// settings.
fn fingerprint(sources: &[Source], weights: &[f64], spec: &Spec) -> String {
    let mut hasher = blake3::Hasher::new();
    let cuts = |source: &Source| {
        let room = spec.of(&source.store).kept.map_or(usize::MAX, |_| spec.room());
        (0..source.store.num_documents()).any(|doc| source.store.doc_len(doc) > room)
    };
    let kept = spec.kept.filter(|_| sources.iter().any(cuts));
    let settings = Spec { ahead: 0, kept, ..spec.clone() };
    // Debug output of plain data contains every field, and changes with the type.
    let settings = format!("{settings:?} {weights:?}");
    // Fingerprints of runs without these settings stay unchanged.
    hasher.update(settings.replace(", lead: 0", "").replace(", kept: None", "").as_bytes());
    for source in sources {
        hasher.update(format!("{:?}", source.part).as_bytes());
        hasher.update(&source.store.fingerprint());
        for name in source.store.column_names() {
            hasher.update(name);
        }
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
