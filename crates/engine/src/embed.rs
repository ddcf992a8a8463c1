//! Texts as vectors: the mean of the hidden states behind the last norm over a text's tokens, brought to length 1.
//!
//! This is mean pooling as in Sentence-BERT (Reimers and Gurevych 2019), of a decoder: a token has seen what stands before
//! it only. Several texts run as documents of one packed stream that do not see each other.

use fathom_base::{Embed, TextPair};

use crate::engine::Engine;
use crate::error::Error;

/// Of a text, as many bytes are read as this for each token that counts: words of natural text and code have far fewer, and
/// a file of gigabytes is not tokenised for the sake of its first lines.
const BYTES_PER_TOKEN: usize = 32;

/// Computes something of texts that run together.
type Together<'a> = dyn FnMut(&[Vec<u32>]) -> Result<(), Error> + 'a;

impl Embed for Engine<'_> {
    /// The first [`crate::Limits::context_tokens`] tokens of a text count (fewer where positions are learned); spellings
    /// of special tokens are ordinary text, and a begin-of-text token stands first where the tokenizer has it so. As many
    /// texts run together as [`crate::Limits::chunk_tokens`] hold, so memory is that of one chunk or one text. Rotary
    /// settings that look at the length see the limit, for every text the same.
    fn embed(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        Ok(self.embed_all(texts)?)
    }

    fn size(&self) -> usize {
        self.model.spec.hidden
    }
}

impl Engine<'_> {
    /// As [`Embed::embed`].
    pub(crate) fn embed_all(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
        let texts = texts.iter().map(|text| self.beginning(text)).collect::<Result<Vec<_>, Error>>()?;
        let mut vectors = Vec::with_capacity(texts.len());
        self.in_chunks(&texts, &mut |together| self.directions(together, &mut vectors))?;
        Ok(vectors)
    }

    /// The scores of texts and of pairs of them, by the head of scores: each is tokenised as Transformers does it (spellings of special
    /// tokens are those tokens, the tokenizer's template is applied), the second of a pair behind the first.
    ///
    /// # Errors
    /// As [`Engine::scores_of`], and the tokenizer's.
    ///
    /// # Panics
    /// If the model has no such head.
    pub(crate) fn scores_of_texts(&self, texts: &[TextPair]) -> Result<Vec<Vec<f32>>, Error> {
        let ids = |(first, second): &TextPair| -> Result<Vec<u32>, Error> {
            let mut ids = self.tokenizer.encode_prompt(first)?;
            if let Some(second) = second {
                ids.extend(self.tokenizer.encode_prompt(second)?);
            }
            Ok(ids)
        };
        let texts = texts.iter().map(ids).collect::<Result<Vec<_>, Error>>()?;
        let mut scores = Vec::with_capacity(texts.len());
        self.in_chunks(&texts, &mut |together| {
            scores.extend(self.scores_of(together)?);
            Ok(())
        })?;
        Ok(scores)
    }

    /// Calls `work` with as many texts at once as a chunk holds, one at least.
    fn in_chunks(&self, mut texts: &[Vec<u32>], work: &mut Together<'_>) -> Result<(), Error> {
        while let Some(first) = texts.first() {
            let mut tokens = first.len();
            let more = texts[1..].iter().take_while(|text| {
                tokens += text.len();
                tokens <= self.limits.chunk_tokens
            });
            let (together, left) = texts.split_at(1 + more.count());
            work(together)?;
            texts = left;
        }
        Ok(())
    }

    /// The ids of a text that count: at least one.
    fn beginning(&self, text: &str) -> Result<Vec<u32>, Error> {
        let room = self.room();
        let end = text.floor_char_boundary(room.saturating_mul(BYTES_PER_TOKEN));
        let mut ids: Vec<u32> = self.tokenizer.prompt_bos().into_iter().collect();
        ids.extend(self.tokenizer.encode(&text[..end])?);
        if ids.is_empty() {
            ids.extend(self.tokenizer.bos().or(self.tokenizer.eos()));
        }
        ids.truncate(room);
        self.check(&ids, 0)?;
        Ok(ids)
    }

    /// One forward pass over texts next to each other.
    fn directions(&self, texts: &[Vec<u32>], out: &mut Vec<Vec<f32>>) -> Result<(), Error> {
        let (batch, docs) = self.packed(texts, self.room());
        let hidden = self.device.to_f32(&self.packed_hidden(&batch));
        let size = self.model.spec.hidden;
        for doc in docs {
            let tokens = doc.len();
            let vector = direction(&hidden[doc.start * size..doc.end * size], size);
            out.push(vector.ok_or(Error::NoDirection { tokens })?);
        }
        Ok(())
    }
}

/// The sum of rows, token after token in f64, at length 1; `None` where it has no direction.
fn direction(rows: &[f32], size: usize) -> Option<Vec<f32>> {
    let mut sum = vec![0f64; size];
    for row in rows.chunks_exact(size) {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
    (length.is_finite() && length > 0.0).then(|| sum.iter().map(|value| (value / length) as f32).collect())
}
