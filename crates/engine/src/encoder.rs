//! Encoders of texts: labels, vectors, and scores of pairs.

use std::path::Path;
use std::sync::Arc;

use fathom_base::{Classify, Embed, Numbers, TextIds, TextPair};
use fathom_model::{Encoder, Sentence};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

use crate::error::Error;
use crate::texts::{BYTES_PER_TOKEN, Reads, TextReading};

/// Maximum input of encoders without learned positions, as a multiple of their original length. A larger limit in a
/// tokenizer means that there is none.
const REACH: usize = 16;

/// An encoder with its tokenizer and input limits.
pub struct TextEncoder {
    encoder: Encoder,
    tokenizer: Arc<Tokenizer>,
    reading: TextReading,
    max_tokens: usize,
    chunk_tokens: usize,
}

impl TextEncoder {
    /// Opens a Hugging Face folder. At most `max_tokens` tokens of a text are used, including those of the tokenizer's
    /// template. `None` means the number of the encoder's positions or, if smaller, the limit in its authors' code.
    /// Texts run together as long as they fit into `chunk_tokens`.
    ///
    /// # Errors
    /// A folder without an encoder, or `max_tokens` beyond its positions.
    pub fn open(
        device: &Device,
        folder: &Path,
        (dtype, tokenizer): (DType, Arc<Tokenizer>),
        max_tokens: Option<usize>,
        chunk_tokens: usize,
    ) -> Result<TextEncoder, Error> {
        let encoder = Encoder::open(device, folder, dtype)?;
        let sentence = Sentence::open(folder, encoder.spec.model.hidden)?;
        let (room, made_for) = (encoder.spec.max_tokens(), encoder.spec.model.max_positions);
        let reach = made_for.saturating_mul(REACH);
        if let Some(max_tokens) = max_tokens.filter(|asked| *asked > room.unwrap_or(reach)) {
            return Err(Error::Positions { max_tokens, room: room.unwrap_or(reach) });
        }
        let own =
            sentence.as_ref().map_or_else(|| Sentence::tokenizer_limit(folder), |how| Ok(how.max_tokens));
        let own = own?.filter(|own| *own <= reach);
        let most = own.into_iter().chain(room).min().unwrap_or(made_for);
        let reading = TextReading {
            sentence,
            framed: true,
            task: encoder.spec.task,
            sigmoid: encoder.spec.ranks_by_sigmoid(),
        };
        Ok(TextEncoder { encoder, tokenizer, reading, max_tokens: max_tokens.unwrap_or(most), chunk_tokens })
    }

    /// Requires that the encoder returns vectors.
    ///
    /// # Errors
    /// An encoder with a classification head.
    pub fn embedding(self) -> Result<TextEncoder, Error> {
        match self.encoder.spec.task {
            None => Ok(self),
            Some(_) => Err(Error::Unsupported(
                "the encoder has a classification head, and gives labels and no vectors".into(),
            )),
        }
    }

    /// Requires a classification head.
    ///
    /// # Errors
    /// An encoder without one.
    pub fn classifying(self) -> Result<TextEncoder, Error> {
        match self.encoder.spec.task {
            Some(_) => Ok(self),
            None => Err(Error::Unsupported(
                "the encoder has no classification head, so it gives vectors and no labels".into(),
            )),
        }
    }

    /// The encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Settings for reading texts.
    pub fn reading(&self) -> &TextReading {
        &self.reading
    }

    /// Maximum tokens of a text that are used.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Dimension of a vector; 0 for an encoder with a head, which returns none.
    pub fn vector_size(&self) -> usize {
        let hidden = if self.encoder.spec.task.is_some() { return 0 } else { self.encoder.spec.model.hidden };
        self.reading.sentence.as_ref().map_or(hidden, |how| how.size(hidden))
    }

    /// Plans full steps, with the longest texts and with the shortest, on a machine without data.
    pub fn plan(&self) {
        let (most, chunk) = (self.max_tokens.max(1), self.chunk_tokens.max(1));
        let left = Some(chunk % most).filter(|left| *left > 0 && chunk > most);
        let longest = std::iter::repeat_n(most, (chunk / most).max(1)).chain(left).collect();
        for lengths in [longest, vec![1; chunk]] {
            // Token types are charged if a batch has pairs.
            let text = |tokens: usize| TextIds { ids: vec![0; tokens], first: 0 };
            let texts: Vec<TextIds> = lengths.into_iter().map(text).collect();
            match self.encoder.spec.task {
                Some(_) => drop(self.encoder.logits(&texts)),
                None => drop(self.encoder.hidden(&texts)),
            }
        }
    }

    /// The ids of truncated texts, as in Transformers.
    fn read(&self, texts: &[&str], asked: Numbers) -> Result<Vec<TextIds>, Error> {
        let vocab = self.encoder.spec.model.vocab;
        let one = |text: &&str| {
            let end = text.floor_char_boundary(self.max_tokens.saturating_mul(BYTES_PER_TOKEN));
            let pair: TextPair = (text[..end].to_string(), None);
            let text = self.reading.ids(&self.tokenizer, &pair, asked, Some(self.max_tokens))?;
            match text.ids.iter().find(|id| **id as usize >= vocab) {
                Some(id) => Err(Error::Vocabulary { id: *id, vocab }),
                None if text.ids.is_empty() => Err(Error::Empty),
                None => Ok(text),
            }
        };
        texts.iter().map(one).collect()
    }
}

impl Reads for TextEncoder {
    fn numbers(&self, texts: &[TextIds], at: Numbers) -> Result<Vec<Vec<f32>>, Error> {
        match at {
            Numbers::Vector => self.vectors(texts),
            Numbers::Classes | Numbers::Relevance | Numbers::Scores => self.logits(texts),
            Numbers::Hidden => Ok(self.encoder.hidden(texts)),
            Numbers::Logprobs | Numbers::Top { .. } | Numbers::Logits { .. } => Err(Error::Unsupported(
                "an encoder has no head for the next token: ask it for vectors, classes or hidden states"
                    .into(),
            )),
        }
    }

    fn chunk_tokens(&self) -> usize {
        self.chunk_tokens
    }
}

impl TextEncoder {
    /// A vector of length 1 for each text.
    fn vectors(&self, texts: &[TextIds]) -> Result<Vec<Vec<f32>>, Error> {
        let (size, mean) = (self.encoder.spec.model.hidden, Sentence::default());
        let how = self.reading.sentence.as_ref().unwrap_or(&mean);
        let hidden = self.encoder.hidden(texts);
        let one =
            |rows: &Vec<f32>| how.vector(rows, size).ok_or(Error::NoDirection { tokens: rows.len() / size });
        hidden.iter().map(one).collect()
    }

    /// The head's logits for each text.
    fn logits(&self, texts: &[TextIds]) -> Result<Vec<Vec<f32>>, Error> {
        let logits = self.encoder.logits(texts);
        if logits.iter().flatten().any(|logit| !logit.is_finite()) {
            return Err(Error::NotFinite { what: "a logit" });
        }
        Ok(logits)
    }
}

impl Classify for TextEncoder {
    fn classify(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let texts = self.read(texts, Numbers::Classes)?;
        let rows = self.all(&texts, Numbers::Classes)?;
        Ok(rows.into_iter().map(|row| self.reading.said(Numbers::Classes, row)).collect())
    }

    fn labels(&self) -> &[String] {
        &self.encoder.spec.labels
    }
}

impl Embed for TextEncoder {
    fn embed(&mut self, texts: &[&str]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let texts = self.read(texts, Numbers::Vector)?;
        Ok(self.all(&texts, Numbers::Vector)?)
    }

    fn size(&self) -> usize {
        self.vector_size()
    }
}
