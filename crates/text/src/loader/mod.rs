//! From stores to steps: blends, seeded orders, a cursor that resumes exactly, and a thread that stays ahead.
//!
//! The sequence of samples is endless: each source is passed over again and again, every pass (epoch) in a new order.
//! Which source gives sample n depends on how many samples each has given before ([`next_source`]), so the whole
//! state is a few counters, [`Cursor`].

mod blend;
mod epoch;

pub use blend::next_source;
pub use epoch::{Shortened, choose, is_held_out, samples, shortened};

use crate::error::{Error, Result};
use crate::lessons::Truncation;
use crate::pack::{Boundaries, Doc, Ends, PackedSample, Packing, Sample, materialise_to};
use crate::store::{Column, Store};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// The order of documents within an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shuffle {
    /// Documents are shuffled, then packed, then the samples are shuffled.
    Documents,
    /// Store order throughout.
    None,
}

/// Which documents are kept out of training: those whose hash, read as a fraction of 2^64, lies in a range.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Where the range begins, from 0 to 1.
    pub from: f64,
    /// Where it ends; no document is in a range that ends where it begins.
    pub to: f64,
}

impl std::fmt::Debug for HeldOut {
    /// A share as its number, so that positions of runs that hold one out stay what they are.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            0.0 => write!(f, "{:?}", self.to),
            from => write!(f, "{from:?}..{:?}", self.to),
        }
    }
}

impl From<f64> for HeldOut {
    /// A share of all documents, chosen by nothing but their content.
    fn from(share: f64) -> HeldOut {
        HeldOut { from: 0.0, to: share }
    }
}

/// Which documents take part, by content hash.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Every document.
    All,
    /// All that are not held out.
    Train {
        /// Those that are.
        held_out: HeldOut,
    },
    /// Those that are held out.
    HeldOut {
        /// Which they are.
        held_out: HeldOut,
    },
}

/// Documents of at least `min_tokens` are drawn `weight` times per epoch; the rule with the largest minimum counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthWeight {
    /// Shortest document the rule applies to, in tokens.
    pub min_tokens: u64,
    /// Copies per epoch; 2.5 means two, and a third every second time.
    pub weight: f64,
}

/// How samples are made. [`Spec::new`] gives the defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Tokens of a sample at most.
    pub seq_len: u32,
    /// How documents are laid into samples.
    pub packing: Packing,
    /// Whether documents of a sample see each other.
    pub boundaries: Boundaries,
    /// The order of documents and samples.
    pub shuffle: Shuffle,
    /// Key of every order.
    pub seed: u64,
    /// Which share of the documents.
    pub split: Split,
    /// Shorter documents are left out.
    pub min_doc_tokens: u64,
    /// Upsampling by document length.
    pub length_weights: Vec<LengthWeight>,
    /// Samples prepared ahead of the step. Does not change what is given.
    pub ahead: usize,
    /// Tokens of a sample that are left free before each of its documents.
    #[serde(default)]
    pub lead: u32,
    /// What a sample has of a lesson that is longer; none: all of it, in pieces. Of stores with weights alone.
    #[serde(default)]
    pub kept: Option<Truncation>,
}

impl Spec {
    /// Concatenated, masked, shuffled, every document once per epoch, seed 0, four samples ahead.
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

    /// The same for a store: texts are taken in pieces.
    pub fn of(&self, store: &Store) -> Self {
        let whole = store.has(Column::Weight) && self.packing != Packing::Concatenate;
        Self { kept: self.kept.filter(|_| whole), ..self.clone() }
    }

    /// Tokens of a document in a sample, at most.
    pub fn room(&self) -> usize {
        self.seq_len.saturating_sub(self.lead) as usize
    }
}

/// Documents of a store, by the name of the source that they carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SourceFilter {
    /// All.
    #[default]
    Whole,
    /// Those of this source.
    Only(String),
    /// All but those of these sources.
    Without(Vec<String>),
}

/// A store, or a part of one, and its share of the samples. Weights need not add up to 1.
#[derive(Clone, Debug)]
pub struct Source {
    /// The store.
    pub store: Arc<Store>,
    /// Which of its documents.
    pub part: SourceFilter,
    /// Its weight, above zero.
    pub weight: f64,
}

impl Source {
    /// A whole store.
    pub fn whole(store: Arc<Store>, weight: f64) -> Self {
        Self { store, part: SourceFilter::Whole, weight }
    }
}

/// A position in the sequence of samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Samples given so far.
    pub sample: u64,
    /// Names the stores and settings it belongs to.
    pub fingerprint: String,
    /// One per source, in order.
    pub sources: Vec<SourceCursor>,
    /// What has been made for later steps, of whoever makes its samples itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<serde_json::Value>,
}

/// No run gives as many samples, and no sum of such numbers overflows.
const MOST_SAMPLES: u64 = 1 << 53;

impl Cursor {
    /// Refuses a position that no loader comes to.
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

/// A position within one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceCursor {
    /// Samples given by this source, over all epochs.
    pub drawn: u64,
    /// Passes completed.
    pub epoch: u64,
    /// Samples given in the current pass.
    pub index: u64,
}

/// What the thread that prepares samples gives: one, and the position after it.
type Given = Result<(PackedSample, Cursor)>;

/// Gives samples without end, prepared by a thread of its own.
#[derive(Debug)]
pub struct Loader {
    incoming: Option<Receiver<Given>>,
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
    /// As [`Loader::new`], or the cursor belongs to other stores or settings, or is none that a loader gave.
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

    /// The next sample. Panics if the preparing thread did.
    ///
    /// # Errors
    /// A store that cannot be read any more, such as one that was truncated.
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

    /// The position after the last sample given; samples only prepared do not count.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Seconds the last [`Loader::next`] waited.
    pub fn data_wait_s(&self) -> f64 {
        self.last_wait_s
    }

    /// Seconds all calls of [`Loader::next`] waited.
    pub fn total_wait_s(&self) -> f64 {
        self.total_wait_s
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Closing the channel ends the worker at its next sample.
        self.incoming = None;
        if let Some(worker) = self.worker.take() {
            // A panic of the worker concerns no caller any more.
            let _ = worker.join();
        }
    }
}

/// The sequence itself, without the thread.
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
    /// The samples of one epoch, made when first needed.
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

    fn run(&mut self, sender: &SyncSender<Given>) {
        loop {
            // What cannot be read is tried again for who asks again.
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
            // A cursor taken at the very end of an epoch; the plan is now known, so this goes one level deep.
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

/// Names everything the sequence depends on: the stores' indexes and hashes, their parts, the weights and the settings.
fn fingerprint(sources: &[Source], weights: &[f64], spec: &Spec) -> String {
    let mut hasher = blake3::Hasher::new();
    let cuts = |source: &Source| {
        let room = spec.of(&source.store).kept.map_or(usize::MAX, |_| spec.room());
        (0..source.store.num_documents()).any(|doc| source.store.doc_len(doc) > room)
    };
    let kept = spec.kept.filter(|_| sources.iter().any(cuts));
    let settings = Spec { ahead: 0, kept, ..spec.clone() };
    // Debug text of plain data: every field is in it, and a change of the type changes it.
    let settings = format!("{settings:?} {weights:?}");
    // Positions of runs without it stay what they are.
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
