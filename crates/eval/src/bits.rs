//! Bits per byte of text the model has not seen: the only figure of loss that does not depend on the vocabulary,
//! and one that a compressor has too.
//!
//! bits per byte = sum of losses / (ln 2 x UTF-8 bytes). Every token of a document counts: the first one is predicted
//! from the begin-of-text token, or from the end-of-text token, which in training stands before each document. With a
//! tokenizer that has neither, the first token is charged log2(vocabulary) bits. The end of a document is not
//! charged; gzip does not store it either.

use std::io::Write;
use std::time::Instant;

use fathom_base::Score;
use fathom_base::metrics::events::EvalBits;
use fathom_text::Tokenizer;
use flate2::{Compression, write::GzEncoder};

use crate::error::{Error, Result, losses};
use crate::{Limits, Moment};

/// How a document that is longer than the context is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Windows share one token, the last of the one being the first of the next, so each token is scored once, with
    /// between 1 and `context - 1` tokens before it.
    Apart,
    /// Windows advance by half a context and score only what is new: from the second window on, a token has at least
    /// `context / 2` tokens before it. Twice the work.
    HalfOverlap,
}

/// A document to measure: its text and the ids of exactly this text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOut {
    /// Token ids, without begin- and end-of-text.
    pub ids: Vec<u32>,
    /// The text.
    pub text: String,
}

impl HeldOut {
    /// From ids as a store holds them: an end-of-text token at the end is taken off.
    pub fn from_ids(mut ids: Vec<u32>, tokenizer: &Tokenizer) -> HeldOut {
        if ids.last().is_some() && ids.last().copied() == tokenizer.eos() {
            ids.pop();
        }
        HeldOut { text: tokenizer.decode(&ids), ids }
    }

    /// From text.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text.
    pub fn from_text(text: String, tokenizer: &Tokenizer) -> Result<HeldOut> {
        Ok(HeldOut { ids: tokenizer.encode(&text)?, text })
    }
}

/// Bits per byte, with the counts behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct Bits {
    /// The model's.
    pub bits_per_byte: f64,
    /// Those of `gzip -9` over the same documents, one after another without anything between.
    pub gzip_bits_per_byte: f64,
    /// UTF-8 bytes.
    pub bytes: u64,
    /// Tokens.
    pub tokens: u64,
    /// Documents.
    pub documents: usize,
}

impl Bits {
    /// The event of the metrics log; `name` says which text.
    pub fn to_event(&self, name: &str, moment: &Moment) -> EvalBits {
        EvalBits {
            name: name.to_owned(),
            step: moment.step,
            bits_per_byte: self.bits_per_byte,
            gzip_bits_per_byte: self.gzip_bits_per_byte,
            bytes: self.bytes,
        }
    }
}

/// Measures `documents` in windows of `context` tokens.
///
/// # Errors
/// There is no text, `context` is below 2 or above what the model can score, or the model fails.
pub fn bits_per_byte(
    model: &mut dyn Score,
    tokenizer: &Tokenizer,
    documents: impl IntoIterator<Item = HeldOut>,
    (context, windows): (usize, Windows),
    limits: &Limits,
) -> Result<Bits> {
    if context < 2 || context > model.max_tokens() {
        return Err(Error::Impossible(format!(
            "bits per byte cannot be measured with a context of {context} tokens: the model scores 2 to {}",
            model.max_tokens()
        )));
    }
    let stride = if windows == Windows::Apart { context - 1 } else { (context / 2).max(1) };
    let (mut nats, mut bytes, mut tokens, mut done) = (0.0, 0u64, 0u64, 0);
    let mut gzip = gzip_encoder(Counted(0));
    let since = Instant::now();
    let mut documents = documents.into_iter();
    while limits.allow(done, since) {
        let Some(document) = documents.next() else { break };
        nats += document_nats(model, tokenizer, &document.ids, (context, stride))?;
        bytes += document.text.len() as u64;
        tokens += document.ids.len() as u64;
        done += 1;
        gzip.write_all(document.text.as_bytes()).map_err(in_memory)?;
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
    })
}

/// The summed losses of all ids of one document, in nats.
fn document_nats(
    model: &mut dyn Score,
    tokenizer: &Tokenizer,
    ids: &[u32],
    (context, stride): (usize, usize),
) -> Result<f64> {
    if ids.is_empty() {
        return Ok(0.0);
    }
    let first = tokenizer.bos().or(tokenizer.eos());
    let mut nats = if first.is_some() { 0.0 } else { (tokenizer.vocab_size() as f64).ln() };
    let fed: Vec<u32> = first.into_iter().chain(ids.iter().copied()).collect();
    // `fed[..scored]` has been scored; the first id never is.
    let (mut start, mut scored) = (0, 1);
    while scored < fed.len() {
        let end = (start + context).min(fed.len());
        let losses = losses(model, &fed[start..end])?;
        nats += losses[scored - start - 1..].iter().sum::<f64>();
        (start, scored) = (start + stride, end);
    }
    Ok(nats)
}

/// The size of `gzip -9` over these bytes, header and checksum included.
///
/// # Errors
/// None in practice; the compressor writes to memory.
pub fn gzip_bytes(text: &[u8]) -> Result<u64> {
    let mut gzip = gzip_encoder(Counted(0));
    gzip.write_all(text).map_err(in_memory)?;
    Ok(gzip.finish().map_err(in_memory)?.0)
}

fn gzip_encoder(out: Counted) -> GzEncoder<Counted> {
    GzEncoder::new(out, Compression::best())
}

/// Counts the bytes and drops them.
struct Counted(u64);

impl Write for Counted {
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
