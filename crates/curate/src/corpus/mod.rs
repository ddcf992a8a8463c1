//! From text to a token store: gather, curate where a recipe says how, deduplicate, join, train a tokenizer, mix in synthetic recall, encode, write.
//!
//! The folder that [`build`] fills:
//!
//! ```text
//! OUT/tokenizer/tokenizer.json, tokenizer_config.json     Hugging Face's files
//! OUT/store/train.bin, train.idx, train.json, train.docs  the token store
//! OUT/curated/                                            the curation that the text passed, where there is one
//! OUT/corpus.json                                         the manifest: specification and report, written last
//! ```
//!
//! The text is read twice: once to draw the sample that the tokenizer and the filler of recall documents come from,
//! once to encode, so memory holds the sample and a batch, whatever the corpus. The bytes of tokenizer and store are a
//! function of the specification and the texts. Without a manifest that matches, everything is made again; so a build
//! that was killed is finished by the next call, with the same bytes.

#[cfg(feature = "pipeline")]
mod curated;
#[cfg(not(feature = "pipeline"))]
#[path = "uncurated.rs"]
mod curated;
mod manifest;
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

pub use curated::Curation;
#[cfg(feature = "pipeline")]
pub use curated::curation;
pub use report::{CorpusReport, Seconds, SourceTotals, Totals};
pub use spec::{CorpusSpec, Input, TokenizerFrom};

use crate::error::Error;
use sample::Sample;
use stream::Texts;
use synthetic::Synthetic;

/// The special token of a trained tokenizer; it ends every document.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Texts are encoded in batches of about this size: enough for all threads, small compared with the store.
const BATCH_BYTES: usize = 8 << 20;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading everything once and drawing the sample.
    Read,
    /// Training the tokenizer.
    Tokenizer,
    /// Reading again, encoding and writing.
    Encode,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Bytes of text that are done in this phase.
    pub done_bytes: u64,
    /// Bytes of text of this phase; in [`Phase::Read`] an estimate from the sizes of the files.
    pub total_bytes: u64,
}

/// Where the token store of a corpus lies, as [`Store::open`] wants it.
pub fn store_prefix(out: &Path) -> PathBuf {
    out.join("store").join("train")
}

/// Where the tokenizer of a corpus lies, as [`Tokenizer::from_dir`] wants it.
pub fn tokenizer_dir(out: &Path) -> PathBuf {
    out.join("tokenizer")
}

/// The held-out documents of a store that are not synthetic, by number: the text to measure bits per byte on.
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

/// The report of a corpus that is made already.
pub fn built(spec: &CorpusSpec) -> Option<CorpusReport> {
    manifest::finished(spec)
}

/// Whether there is a corpus that was made from other settings, or by another recipe of curation.
pub fn made_otherwise(spec: &CorpusSpec) -> bool {
    manifest::made_otherwise(spec)
}

/// A file of the corpus in a folder whose hash is not that of when it was written.
pub fn altered(out: &Path) -> Option<PathBuf> {
    manifest::altered(out)
}

/// Makes the corpus, or finds it already made: if the manifest in `spec.out` matches the specification and the files
/// it names are whole, nothing is read again and the report of then is returned.
///
/// # Errors
/// A setting is impossible, a named path cannot be read, no text is found, the tokenizer cannot be used, or the
/// folder cannot be written.
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

/// The tokenizer that was given, or one trained on the sample.
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
        TokenizerFrom::Train { vocab, .. } => {
            // Its share of synthetic text belongs to the sample: words that only it has would else be cut to pieces.
            let synthetic = Synthetic::new(spec, &sample.filler).up_to(total_bytes);
            Tokenizer::train_bpe(sample.texts.iter().cloned().chain(synthetic), *vocab, &[END_OF_TEXT])?
        }
    };
    tokenizer.require_eos()?;
    tell(total_bytes);
    Ok(tokenizer)
}

/// Reads everything again, mixes in the synthetic documents, encodes and writes the store.
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
    /// Number of the source, and the text.
    batch: Vec<(u32, String)>,
    batch_bytes: usize,
    report: CorpusReport,
}

impl Encoder<'_> {
    fn push(&mut self, source: &str, text: String) -> Result<(), Error> {
        // Documents of a source follow each other, so the last source is nearly always the one.
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
            let part = Totals { documents: 1, bytes: text.len() as u64, tokens: ids.len() as u64 };
            self.count(meta, part);
        }
        Ok(())
    }

    fn count(&mut self, meta: DocMeta, part: Totals) {
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
