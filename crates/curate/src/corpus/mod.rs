//! From text to a token store: gather, optionally curate, deduplicate, join, train a tokenizer, mix in synthetic
//! recall, encode, write.
//!
//! Layout of the folder that [`build`] fills:
//!
//! ```text
//! OUT/tokenizer/tokenizer.json, tokenizer_config.json     Hugging Face's files
//! OUT/store/train.bin, train.idx, train.json, train.docs  the token store
//! OUT/curated/                                            the curation that the text passed, where there is one
//! OUT/corpus.json                                         the manifest: specification and report, written last
//! ```
//!
//! The text is read twice: once to draw the sample for tokenizer training and for the filler of recall documents,
//! once to encode. Memory therefore holds the sample and one batch, whatever the size of the corpus. The bytes of
//! tokenizer and store are a function of the specification and the texts. Without a matching manifest everything is
//! rebuilt, so the next call completes a killed build with the same bytes.

#[cfg(feature = "pipeline")]
mod curated;
#[cfg(not(feature = "pipeline"))]
#[path = "uncurated.rs"]
mod curated;
#[cfg(feature = "pipeline")]
mod curation;
#[cfg(not(feature = "pipeline"))]
#[path = "no_curation.rs"]
mod curation;
mod layout;
mod manifest;
mod progress;
mod report;
mod sample;
mod spec;
mod stream;
mod synthetic;

use std::path::{Path, PathBuf};
use std::time::Instant;

use fathom_text::loader::{HeldOut, is_held_out};
use fathom_text::recall::{is_synthetic, real_documents};
use fathom_text::store::{DocMeta, Header, Store, StoreWriter};
use fathom_text::tokenizer::Tokenizer;

#[cfg(feature = "pipeline")]
pub use curated::curation;
pub use curation::Curation;
pub use report::{CorpusReport, CorpusTotals, Seconds, SourceTotals};
pub use spec::{CorpusSpec, Input, TokenizerFrom};

use crate::error::Error;
pub use layout::{store_prefix, tokenizer_dir};
pub use progress::{Phase, Progress};
use sample::Sample;
use stream::Texts;
use synthetic::Synthetic;

/// Special token of a trained tokenizer; terminates every document.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Approximate bytes of text encoded per batch: enough for all threads, small compared with the store.
const BATCH_BYTES: usize = 8 << 20;

/// Numbers of the held-out documents of a store that are not synthetic: the text on which bits per byte are measured.
///
/// # Errors
/// The store cannot be read.
pub fn held_out_documents(store: &Store, which: impl Into<HeldOut>) -> fathom_text::Result<Vec<usize>> {
    let (which, mut held_out) = (which.into(), Vec::new());
    for doc in real_documents(store) {
        if is_held_out(store.doc_hash(doc)?, which) {
            held_out.push(doc);
        }
    }
    Ok(held_out)
}

/// Report of an already finished corpus.
pub fn built(spec: &CorpusSpec) -> Option<CorpusReport> {
    manifest::finished(spec)
}

/// Returns true if a corpus exists that was made from other settings or by another curation recipe.
pub fn made_otherwise(spec: &CorpusSpec) -> bool {
    manifest::made_otherwise(spec)
}

/// Returns a file of the corpus whose hash differs from the one recorded when it was written.
pub fn altered(out: &Path) -> Option<PathBuf> {
    manifest::altered(out)
}

/// Builds the corpus, or reuses it: if the manifest in `spec.out` matches the specification and its files are intact,
/// nothing is read again and the stored report is returned.
///
/// # Errors
/// A setting is invalid, a named path cannot be read, no text is found, the tokenizer cannot be used, or the folder
/// cannot be written.
pub fn build(spec: &CorpusSpec, progress: &mut dyn FnMut(Progress)) -> Result<CorpusReport, Error> {
    spec.check()?;
    if let Some(report) = built(spec) {
        return Ok(report);
    }
    manifest::begin(&spec.out)?;
    let started = Instant::now();
    let sample = Sample::draw(spec, progress)?;
    let read_s = started.elapsed().as_secs_f64();
    let tokenizer = make_tokenizer(spec, &sample, progress)?;
    tokenizer.save_dir(tokenizer_dir(&spec.out))?;
    let tokenizer_s = started.elapsed().as_secs_f64() - read_s;
    let mut report = encode(spec, &sample, &tokenizer, progress)?;
    let total_s = started.elapsed().as_secs_f64();
    report.seconds =
        Seconds { read_s, tokenizer_s, encode_s: total_s - read_s - tokenizer_s, total_s }.to_ms();
    manifest::publish(spec, &report)?;
    Ok(report)
}

/// Loads the given tokenizer, or trains one on the sample.
fn make_tokenizer(
    spec: &CorpusSpec,
    sample: &Sample,
    progress: &mut dyn FnMut(Progress),
) -> Result<Tokenizer, Error> {
    let total_bytes = sample.texts.iter().map(|text| text.len() as u64).sum();
    let mut tell = |done_bytes| progress(Progress { phase: Phase::Tokenizer, done_bytes, total_bytes });
    tell(0);
    let tokenizer = match &spec.tokenizer {
        TokenizerFrom::File(path) if path.is_dir() => Tokenizer::from_dir(path)?,
        TokenizerFrom::File(path) => Tokenizer::from_file(path)?,
        TokenizerFrom::Train { vocab, special, .. } => {
            // The sample includes its share of synthetic text; words that occur only there would otherwise be split
            // into small pieces.
            let synthetic = Synthetic::new(spec, &sample.filler).up_to(total_bytes);
            let special: Vec<&str> = special.iter().map(String::as_str).chain([END_OF_TEXT]).collect();
            Tokenizer::train_bpe(sample.texts.iter().cloned().chain(synthetic), *vocab, &special)?
        }
    };
    tokenizer.require_eos()?;
    tell(total_bytes);
    Ok(tokenizer)
}

/// Second pass: reads the texts again, mixes in synthetic documents, encodes and writes the store.
fn encode(
    spec: &CorpusSpec,
    sample: &Sample,
    tokenizer: &Tokenizer,
    progress: &mut dyn FnMut(Progress),
) -> Result<CorpusReport, Error> {
    let writer = StoreWriter::create(store_prefix(&spec.out), Header::for_tokenizer(tokenizer)?)?;
    let eos = tokenizer.require_eos()?;
    let (batch, report) = (Vec::new(), CorpusReport::default());
    let mut out = Encoder { spec, tokenizer, eos, writer, batch, batch_bytes: 0, report };
    let mut synthetic = Synthetic::new(spec, &sample.filler);
    let mut done_bytes = 0;
    let mut texts = Texts::open(spec)?;
    let mut documents = texts.joined(spec);
    for document in documents.by_ref() {
        let document = document?;
        done_bytes += document.text.len() as u64;
        while let Some((source, text)) = synthetic.due(done_bytes) {
            out.push(source, text)?;
        }
        out.push(&spec.source_of(&document.source), document.text)?;
        progress(Progress { phase: Phase::Encode, done_bytes, total_bytes: sample.bytes.max(done_bytes) });
    }
    out.flush()?;
    let Encoder { writer, mut report, .. } = out;
    report.dropped = documents.into_counters();
    report.vocabulary = tokenizer.vocab_size() as u64;
    writer.finish()?;
    Ok(report)
}

/// Encodes documents in batches and appends them to the store.
struct Encoder<'a> {
    spec: &'a CorpusSpec,
    tokenizer: &'a Tokenizer,
    eos: u32,
    writer: StoreWriter,
    /// Index of the source, and the text.
    batch: Vec<(u32, String)>,
    batch_bytes: usize,
    report: CorpusReport,
}

impl Encoder<'_> {
    fn push(&mut self, source: &str, text: String) -> Result<(), Error> {
        // Documents of a source are contiguous, so the last source nearly always matches.
        let known = self.writer.header().sources.iter().rposition(|name| name == source);
        let source = match known {
            Some(number) => number as u32,
            None => {
                self.report.sources.push(SourceTotals { name: source.to_owned(), ..SourceTotals::default() });
                self.writer.add_source(source)
            }
        };
        self.batch_bytes += text.len();
        self.batch.push((source, text));
        if self.batch_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
        let encoded = self.tokenizer.encode_batch(&texts)?;
        for ((source, text), mut ids) in batch.iter().zip(encoded) {
            ids.push(self.eos);
            let meta = DocMeta::of_text(text, *source);
            self.writer.push_document(&ids, meta)?;
            let part = CorpusTotals { documents: 1, bytes: text.len() as u64, tokens: ids.len() as u64 };
            self.count(meta, part);
        }
        Ok(())
    }

    fn count(&mut self, meta: DocMeta, part: CorpusTotals) {
        let source = &mut self.report.sources[meta.source as usize];
        source.totals.add(part);
        let synthetic = is_synthetic(&source.name);
        if is_held_out(meta.hash, self.spec.held_out) {
            self.report.held_out.add(part);
            if !synthetic {
                self.report.held_out_real.add(part);
            }
        } else {
            self.report.train.add(part);
            if synthetic {
                self.report.synthetic.add(part);
            }
        }
        self.report.longest_tokens = self.report.longest_tokens.max(part.tokens);
    }
}
