//! Texts sorted by an encoder with a classification head.

use std::path::Path;

use fathom_base::Classify;
use fathom_model::{Encoder, Task};
use fathom_tensor::{DType, Device};
use fathom_text::tokenizer::Tokenizer;

use crate::error::Error;

/// Of a text, as many bytes are read as this for each token that counts; see `embed.rs`.
const BYTES_PER_TOKEN: usize = 32;

/// A classifier: an encoder, its tokenizer, and how much of a text it reads.
pub struct Classifier {
    encoder: Encoder,
    tokenizer: Tokenizer,
    max_tokens: usize,
    chunk_tokens: usize,
}

impl Classifier {
    /// Opens a Hugging Face folder. Of a text at most `max_tokens` count, those of the tokenizer's frame included; as many texts
    /// run together as `chunk_tokens` hold.
    ///
    /// # Errors
    /// A folder that is not an encoder's with a classification head, or `max_tokens` beyond its positions.
    pub fn open(
        device: &Device,
        folder: &Path,
        dtype: DType,
        max_tokens: usize,
        chunk_tokens: usize,
    ) -> Result<Classifier, Error> {
        let encoder = Encoder::open(device, folder, dtype)?;
        let tokenizer = Tokenizer::from_dir(folder)?;
        let room = encoder.spec.max_tokens().unwrap_or(usize::MAX);
        if max_tokens > room {
            return Err(Error::Positions { max_tokens, room });
        }
        Ok(Classifier { encoder, tokenizer, max_tokens, chunk_tokens })
    }

    /// A text's ids in the tokenizer's frame, as Transformers truncates them: the last stays what ends every text.
    fn ids(&self, text: &str) -> Result<Vec<u32>, Error> {
        let end = text.floor_char_boundary(self.max_tokens.saturating_mul(BYTES_PER_TOKEN));
        let mut ids = self.tokenizer.encode_prompt(&text[..end])?;
        if let Some(last) = ids.last().copied().filter(|_| ids.len() > self.max_tokens) {
            ids.truncate(self.max_tokens - 1);
            ids.push(last);
        }
        let vocab = self.encoder.spec.model.vocab;
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(Error::Vocabulary { id: *id, vocab }),
            None if ids.is_empty() => Err(Error::Empty),
            None => Ok(ids),
        }
    }
}

impl Classify for Classifier {
    fn classify(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let texts = texts.iter().map(|text| self.ids(text)).collect::<Result<Vec<_>, Error>>()?;
        let mut all = Vec::with_capacity(texts.len());
        let mut rest = texts.as_slice();
        while let Some(first) = rest.first() {
            let mut tokens = first.len();
            let more = rest[1..].iter().take_while(|text| {
                tokens += text.len();
                tokens <= self.chunk_tokens
            });
            let (together, left) = rest.split_at(1 + more.count());
            all.extend(
                self.encoder.logits(together).into_iter().map(|row| scores(row, self.encoder.spec.task)),
            );
            rest = left;
        }
        Ok(all)
    }

    fn labels(&self) -> &[String] {
        &self.encoder.spec.labels
    }
}

/// Probabilities of logits, or the numbers themselves.
fn scores(logits: Vec<f32>, task: Task) -> Vec<f32> {
    match task {
        Task::Number => logits,
        Task::EachOf => logits.into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        Task::OneOf => {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f32> = logits.into_iter().map(|logit| (logit - most).exp()).collect();
            let sum: f32 = powers.iter().sum();
            powers.into_iter().map(|power| power / sum).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_what_the_task_says() {
        assert_eq!(scores(vec![2.5], Task::Number), [2.5]);
        assert_eq!(scores(vec![0.0, 0.0], Task::EachOf), [0.5, 0.5]);
        let far = scores(vec![200.0, 200.0, -200.0], Task::OneOf);
        assert_eq!(far, [0.5, 0.5, 0.0]);
    }
}
