//! Report of a corpus build: contents, sources and timing.

use fathom_base::metrics::events::{Data, DataSource, DroppedText};
use serde::{Deserialize, Serialize};

use crate::counters::{Counters, DocumentCounts, Reason};

/// Number of sources listed in the event; smaller ones are summed up in a last line.
const LISTED_SOURCES: usize = 24;
/// Number of damaged records listed in the event.
const LISTED_DAMAGE: usize = 16;

/// Documents with their bytes and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorpusTotals {
    /// Number of documents; joined documents count once.
    pub documents: u64,
    /// UTF-8 bytes of their text.
    pub bytes: u64,
    /// Tokens, including one end-of-text token per document.
    pub tokens: u64,
}

impl CorpusTotals {
    pub(super) fn add(&mut self, other: CorpusTotals) {
        self.documents += other.documents;
        self.bytes += other.bytes;
        self.tokens += other.tokens;
    }
}

/// Totals of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTotals {
    /// A crate, a user-supplied path, or a synthetic source ([`is_synthetic`](fathom_text::recall::is_synthetic)).
    pub name: String,
    /// Its contribution, including held-out documents.
    pub totals: CorpusTotals,
}

/// Wall time by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// First pass and drawing the sample.
    pub read_s: f64,
    /// Training or loading the tokenizer.
    pub tokenizer_s: f64,
    /// Second pass: encoding and writing.
    pub encode_s: f64,
    /// Total.
    pub total_s: f64,
}

impl Seconds {
    /// Rounds to milliseconds; more digits are noise in the manifest.
    pub(super) fn to_ms(self) -> Seconds {
        let round = |seconds: f64| (seconds * 1e3).round() / 1e3;
        Seconds {
            read_s: round(self.read_s),
            tokenizer_s: round(self.tokenizer_s),
            encode_s: round(self.encode_s),
            total_s: round(self.total_s),
        }
    }
}

/// Summary of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CorpusReport {
    /// Training documents, including synthetic ones.
    pub train: CorpusTotals,
    /// Synthetic documents among the training documents.
    pub synthetic: CorpusTotals,
    /// Held-out documents.
    pub held_out: CorpusTotals,
    /// Held-out documents that are not synthetic.
    pub held_out_real: CorpusTotals,
    /// Length of the longest document, in tokens.
    pub longest_tokens: u64,
    /// Size of the tokenizer's vocabulary.
    pub vocabulary: u64,
    /// Sources in the order of their first document.
    pub sources: Vec<SourceTotals>,
    /// Files and records read, and dropped ones by reason.
    pub dropped: Counters,
    /// Wall time by phase.
    pub seconds: Seconds,
}

impl CorpusReport {
    /// Fraction of the training tokens that are synthetic.
    pub fn synthetic_share(&self) -> f64 {
        self.synthetic.tokens as f64 / self.train.tokens.max(1) as f64
    }

    /// Bytes of text per second over the whole build.
    pub fn bytes_per_s(&self) -> f64 {
        (self.train.bytes + self.held_out.bytes) as f64 / self.seconds.total_s.max(1e-9)
    }

    /// Converts to the metrics log's event; its counts cover the training documents.
    pub fn to_event(&self) -> Data {
        let duplicates = self.dropped.dropped.get(&Reason::Duplicate).copied().unwrap_or_default();
        Data {
            documents: self.train.documents,
            tokens: self.train.tokens,
            bytes: self.train.bytes,
            duplicate_documents: duplicates.documents,
            synthetic_share: self.synthetic_share(),
            held_out_documents: self.held_out_real.documents,
            sources: self.largest_sources(),
            vocabulary: self.vocabulary,
            seconds: self.seconds.total_s,
            dropped: self.dropped_texts(),
            supervised_tokens: 0,
            damage: self.dropped.damage.iter().take(LISTED_DAMAGE).map(ToString::to_string).collect(),
        }
    }

    /// Files and texts not read or not kept, in descending order of bytes.
    fn dropped_texts(&self) -> Vec<DroppedText> {
        let dropped = self.dropped.dropped.iter().filter(|(reason, _)| **reason != Reason::Duplicate);
        let text = |(reason, dropped): (&Reason, &DocumentCounts)| {
            let extensions = self.dropped.extensions();
            let reason = match reason {
                Reason::NoReader if !extensions.is_empty() => format!("{reason} ({extensions})"),
                reason => reason.to_string(),
            };
            DroppedText { reason, documents: dropped.documents, bytes: dropped.bytes }
        };
        let mut texts: Vec<DroppedText> = dropped.map(text).collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.bytes));
        texts
    }

    fn largest_sources(&self) -> Vec<DataSource> {
        let mut sources: Vec<&SourceTotals> = self.sources.iter().collect();
        sources.sort_by_key(|source| std::cmp::Reverse(source.totals.bytes));
        let rest = sources.split_off(sources.len().min(LISTED_SOURCES));
        let line = |name: String, totals: CorpusTotals| DataSource {
            name,
            documents: totals.documents,
            bytes: totals.bytes,
        };
        let mut lines: Vec<_> = sources.into_iter().map(|s| line(s.name.clone(), s.totals)).collect();
        if !rest.is_empty() {
            let mut sum = CorpusTotals::default();
            rest.iter().for_each(|source| sum.add(source.totals));
            lines.push(line(format!("{} smaller sources", rest.len()), sum));
        }
        lines
    }
}
