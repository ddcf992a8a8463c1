//! Bits per byte of held-out text: a measure of loss that does not depend on the vocabulary and that can also be
//! computed for a compressor.
//!
//! bits per byte = sum of losses / (ln 2 x UTF-8 bytes). Every token of a document counts. The first is predicted from
//! the begin-of-text token, or from the end-of-text token, which precedes each document in training. If the tokenizer
//! has neither, the first token costs log2(vocabulary) bits. The end of a document is not counted; gzip does not store
//! it either.

use std::io::Write;

use fathom_base::LanguageModel;
use fathom_base::metrics::events::EvalBits;
use fathom_text::Tokenizer;
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;

use crate::error::{Error, Result, losses};
use crate::limits::Pace;
use crate::{Limits, Moment};

/// A document to measure: a text and its token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOut {
    /// Token ids, without begin- and end-of-text tokens.
    pub ids: Vec<u32>,
    /// The text.
    pub text: String,
}

impl HeldOut {
    /// Builds a document from stored ids, removing an end-of-text token at the end.
    pub fn from_ids(mut ids: Vec<u32>, tokenizer: &Tokenizer) -> HeldOut {
        if ids.last().is_some() && ids.last().copied() == tokenizer.eos() {
            ids.pop();
        }
        HeldOut { text: tokenizer.decode(&ids), ids }
    }

    /// Tokenizes a text.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text.
    pub fn from_text(text: String, tokenizer: &Tokenizer) -> Result<HeldOut> {
        Ok(HeldOut { ids: tokenizer.encode(&text)?, text })
    }
}

/// Bits per byte, with the counts behind them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bits {
    /// Bits per byte of the model.
    pub bits_per_byte: f64,
    /// Bits per byte of `gzip -9` over the concatenated documents.
    pub gzip_bits_per_byte: f64,
    /// UTF-8 bytes.
    pub bytes: u64,
    /// Tokens.
    pub tokens: u64,
    /// Number of documents; the last one may be measured only in part, if the deadline passed.
    pub documents: usize,
    /// Largest number of tokens before a predicted one.
    pub context_tokens: usize,
}

impl Bits {
    /// The event for the metrics log; `name` identifies the text.
    pub fn to_event(&self, name: &str, moment: &Moment) -> EvalBits {
        EvalBits {
            name: name.to_owned(),
            step: moment.step,
            bits_per_byte: self.bits_per_byte,
            gzip_bits_per_byte: self.gzip_bits_per_byte,
            bytes: self.bytes,
            context_tokens: self.context_tokens as u64,
        }
    }
}

/// Measures `documents` in windows of `context` tokens. Consecutive windows share one token, so each token is scored
/// once, with between 1 and `context - 1` tokens before it. The deadline can end the measurement after any window; the
/// part of a document scored by then counts.
///
/// # Errors
/// There is no text, `context` is below 2 or above what the model can score, or the model fails.
pub fn bits_per_byte(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    documents: impl IntoIterator<Item = HeldOut>,
    context: usize,
    limits: &Limits,
) -> Result<Bits> {
    if context < 2 || context > model.max_tokens() {
        return Err(Error::Impossible(format!(
            "bits per byte cannot be measured with a context of {context} tokens: the model scores 2 to {}",
            model.max_tokens()
        )));
    }
    let (mut nats, mut bytes, mut tokens, mut done) = (0.0, 0u64, 0u64, 0);
    let mut gzip = GzEncoder::new(ByteCount(0), Compression::best());
    let mut pace = Pace::new(limits.deadline.as_ref());
    let mut documents = documents.into_iter().take(limits.documents);
    while done == 0 || pace.allows(&[(1, context)], 1.0) {
        let Some(HeldOut { ids, text }) = documents.next() else { break };
        let (sum, scored) = document_nats(model, tokenizer, &ids, context, (&mut pace, done == 0))?;
        let text = if scored == ids.len() { text } else { tokenizer.decode(&ids[..scored]) };
        nats += sum;
        bytes += text.len() as u64;
        tokens += scored as u64;
        done += 1;
        gzip.write_all(text.as_bytes()).map_err(in_memory)?;
    }
    let packed = gzip.finish().map_err(in_memory)?.0;
    if bytes == 0 {
        let advice = "hold out a larger share, or give more text";
        return Err(Error::Impossible(format!(
            "bits per byte need text: {done} documents hold none; {advice}"
        )));
    }
    Ok(Bits {
        bits_per_byte: nats / std::f64::consts::LN_2 / bytes as f64,
        gzip_bits_per_byte: 8.0 * packed as f64 / bytes as f64,
        bytes,
        tokens,
        documents: done,
        context_tokens: context,
    })
}

/// The summed losses in nats of one document's ids, and the number of ids scored: all of them unless the deadline
/// passes. The first window of the first document is always measured.
fn document_nats(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    ids: &[u32],
    context: usize,
    (pace, is_first): (&mut Pace<'_>, bool),
) -> Result<(f64, usize)> {
    let first = tokenizer.bos().or(tokenizer.eos());
    let unpredicted = usize::from(first.is_none()).min(ids.len());
    let mut nats = unpredicted as f64 * (tokenizer.vocab_size() as f64).ln();
    let fed: Vec<u32> = first.into_iter().chain(ids.iter().copied()).collect();
    let (mut start, mut scored) = (0, unpredicted);
    while start + 1 < fed.len() {
        let is_free = is_first && start == 0;
        if !is_free && !pace.allows(&[(1, context)], 1.0) {
            break;
        }
        let end = (start + context).min(fed.len());
        nats += pace.time(end - start, || losses(model, &fed[start..end]))?.iter().sum::<f64>();
        scored += end - 1 - start;
        start = end - 1;
    }
    Ok((nats, scored))
}

/// Counts the bytes written and discards them.
struct ByteCount(u64);

impl Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn in_memory(error: std::io::Error) -> Error {
    Error::Impossible(format!("gzip failed: {error}"))
}
