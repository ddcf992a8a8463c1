//! What a corpus holds, where it came from, and how long it took.

use fathom_base::metrics::events::{Data, DataSource, DroppedText};
use serde::{Deserialize, Serialize};

use crate::counters::{Counters, Dropped, Reason};

/// The event names so many sources; the smaller ones are summed up in a last line.
const LISTED_SOURCES: usize = 24;
/// And so many damaged records.
const LISTED_DAMAGE: usize = 16;

/// A number of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Documents, joined ones as one.
    pub documents: u64,
    /// UTF-8 bytes of their text.
    pub bytes: u64,
    /// Tokens, one end-of-text token per document included.
    pub tokens: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: Totals) {
        self.documents += other.documents;
        self.bytes += other.bytes;
        self.tokens += other.tokens;
    }
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTotals {
    /// A crate, a path that the user named, or a synthetic source ([`is_synthetic`](fathom_text::recall::is_synthetic)).
    pub name: String,
    /// What it gave, held-out documents included.
    pub totals: Totals,
}

/// Wall time by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Reading everything once and drawing the sample.
    pub read_s: f64,
    /// Training or loading the tokenizer.
    pub tokenizer_s: f64,
    /// Reading again, encoding, writing.
    pub encode_s: f64,
    /// Everything.
    pub total_s: f64,
}

impl Seconds {
    /// Rounded to milliseconds: more digits say nothing and read badly in the manifest.
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

/// The account of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CorpusReport {
    /// Documents to train on, synthetic ones included.
    pub train: Totals,
    /// The synthetic ones among them.
    pub synthetic: Totals,
    /// Documents held out.
    pub held_out: Totals,
    /// The real ones among the held-out documents.
    pub held_out_real: Totals,
    /// Tokens of the longest document.
    pub longest_tokens: u64,
    /// Size of the tokenizer's vocabulary.
    pub vocabulary: u64,
    /// In the order of their first document.
    pub sources: Vec<SourceTotals>,
    /// Files and records read, and those dropped, by reason.
    pub dropped: Counters,
    /// Wall time by phase.
    pub seconds: Seconds,
}

impl CorpusReport {
    /// Share of the training tokens that are synthetic.
    pub fn synthetic_share(&self) -> f64 {
        self.synthetic.tokens as f64 / self.train.tokens.max(1) as f64
    }

    /// Bytes of text per second of the whole build.
    pub fn bytes_per_s(&self) -> f64 {
        (self.train.bytes + self.held_out.bytes) as f64 / self.seconds.total_s.max(1e-9)
    }

    /// The event of the metrics log; its counts are those of the training documents.
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

    /// What was not read or not kept, the most bytes first.
    fn dropped_texts(&self) -> Vec<DroppedText> {
        let dropped = self.dropped.dropped.iter().filter(|(reason, _)| **reason != Reason::Duplicate);
        let text = |(reason, dropped): (&Reason, &Dropped)| {
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
        let line = |name: String, totals: Totals| DataSource {
            name,
            documents: totals.documents,
            bytes: totals.bytes,
        };
        let mut lines: Vec<_> = sources.into_iter().map(|s| line(s.name.clone(), s.totals)).collect();
        if !rest.is_empty() {
            let mut sum = Totals::default();
            rest.iter().for_each(|source| sum.add(source.totals));
            lines.push(line(format!("{} smaller sources", rest.len()), sum));
        }
        lines
    }
}
