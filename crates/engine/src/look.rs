//! Numbers of given texts, in one pass over each: losses, the most likely tokens, logits, hidden states, scores of a
//! head. Several texts run as separate documents of one packed stream, and do not change each other's numbers.

use std::ops::Range;

use fathom_base::{
    Continuation, GenerateRequest, Generation, LanguageModel, LogLikelihood, Numbers, TextIds, likelihoods,
};
use fathom_grad::{Head, Labels, LossTerm, Measures};
use fathom_model::{Sentence, scored_at};
use fathom_tensor::{Category, DType};

use crate::documents::Documents;
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;
use crate::texts::Reads;

/// Rows of logits that are computed at once.
const LOGIT_ROWS: usize = 64;
/// Logits that are read from the machine at once.
const READ_NUMBERS: usize = 1 << 18;

impl LanguageModel for Engine<'_> {
    fn max_tokens(&self) -> usize {
        self.room()
    }

    fn generate_all(&self, requests: Vec<GenerateRequest>) -> fathom_base::Result<Vec<Vec<Generation>>> {
        Ok(Engine::generate_all(self, requests)?)
    }

    fn look(&self, texts: &[Vec<u32>], at: Numbers) -> fathom_base::Result<Vec<Vec<f32>>> {
        let texts: Vec<TextIds> = texts.iter().cloned().map(Into::into).collect();
        Ok(self.all(&texts, at)?)
    }

    fn log_likelihoods(&self, texts: &[Continuation]) -> fathom_base::Result<Vec<LogLikelihood>> {
        let pairs: Vec<TextIds> = texts.iter().map(Continuation::text).collect();
        Ok(likelihoods(texts, self.all(&pairs, Numbers::Logprobs)?))
    }
}

impl Reads for Engine<'_> {
    fn numbers(&self, texts: &[TextIds], at: Numbers) -> Result<Vec<Vec<f32>>, Error> {
        if at == Numbers::Vector {
            let bounds = self.bounds(Capacity::default());
            texts.iter().try_for_each(|text| bounds.text(text, at))?;
            return self.vectors(texts);
        }
        let documents = self.side_by_side(texts, at)?;
        match at {
            Numbers::Logprobs => self.logprobs_of(&documents),
            Numbers::Top { k, temperature } => self.top_of(&documents, k, temperature),
            Numbers::Logits { last } => Ok(self.logits_of(&documents, last)),
            Numbers::Hidden => Ok(self.hidden_of(&documents)),
            _ => self.heads_of(&documents),
        }
    }

    fn chunk_tokens(&self) -> usize {
        self.limits.chunk_tokens
    }
}

impl Engine<'_> {
    /// Negative natural log-probabilities of the tokens of several documents, each given those before it in its
    /// document: one fewer than the document has tokens. The documents run as one batch.
    ///
    /// # Errors
    /// A document that is empty, too long, or has unknown ids; a loss that is not finite.
    pub fn losses_of(&self, documents: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Error> {
        let rows = self.logprobs_of(&self.side_by_side(&texts(documents), Numbers::Logprobs)?)?;
        Ok(rows.into_iter().map(|row| row.iter().step_by(2).map(|logprob| -logprob).collect()).collect())
    }

    /// Log-probabilities and hits ([`Numbers::Logprobs`]) of several documents.
    fn logprobs_of(&self, documents: &Documents) -> Result<Vec<Vec<f32>>, Error> {
        let Documents { batch, rows, .. } = documents;
        let (hidden, scope) = (self.packed_hidden(documents), self.scope(batch));
        let empty = |rows| self.device.zeros(rows, batch.tokens, DType::F32, Category::Data);
        let (losses, hits, sums) = (empty(1), empty(1), self.device.zeros(2, 1, DType::F32, Category::Data));
        let ids = self.device.from_i32(&documents.next(), Category::Data);
        let measures = Some(Measures { sums, of: None, hits: Some(hits.clone()) });
        let labels = Labels { measures, ..Labels::plain(ids) };
        self.model.head(0.0).losses(&scope, &hidden, &labels, &[LossTerm::cross_entropy(&losses)]);
        let [losses, hits] = [losses, hits].map(|row| self.device.to_f32(&row));
        if losses.iter().any(|loss| !loss.is_finite()) {
            return Err(Error::NotFinite { what: "a loss" });
        }
        let of = |doc: Range<usize>| {
            let tokens = losses[doc.start..doc.end - 1].iter().zip(&hits[doc.start..doc.end - 1]);
            tokens.flat_map(|(loss, hit)| [-loss, *hit]).collect()
        };
        Ok(rows.iter().cloned().map(of).collect())
    }

    /// Logits of the last tokens of several documents.
    fn logits_of(&self, documents: &Documents, last: usize) -> Vec<Vec<f32>> {
        let (hidden, scope) = (self.packed_hidden(documents), self.scope(&documents.batch));
        let head = self.model.head(0.0);
        // By tiles that are read in parts, so that a long text takes the memory of its result and little more.
        let one = |doc: Range<usize>| {
            let rows = doc.start.max(doc.end.saturating_sub(last))..doc.end;
            let mut numbers = Vec::new();
            for first in rows.clone().step_by(LOGIT_ROWS) {
                let tile = hidden.view_rows(first..rows.end.min(first + LOGIT_ROWS));
                let logits = head.logits(&scope, &tile);
                let part = (READ_NUMBERS / logits.cols()).clamp(1, LOGIT_ROWS);
                for first in (0..logits.rows()).step_by(part) {
                    let found = logits.view_rows(first..logits.rows().min(first + part));
                    let found = self.device.to_f32(&found);
                    if numbers.is_empty() && !found.is_empty() {
                        numbers.reserve_exact(logits.cols() * rows.len());
                    }
                    numbers.extend(found);
                }
            }
            numbers
        };
        documents.rows.iter().cloned().map(one).collect()
    }

    /// Hidden states of several documents after the final norm.
    fn hidden_of(&self, documents: &Documents) -> Vec<Vec<f32>> {
        let (hidden, size) = (self.device.to_f32(&self.packed_hidden(documents)), self.model.spec.hidden);
        let of = |doc: &Range<usize>| hidden[doc.start * size..doc.end * size].to_vec();
        documents.rows.iter().map(of).collect()
    }

    /// A unit vector for each of several documents, pooled from hidden states as the folder specifies.
    fn vectors(&self, texts: &[TextIds]) -> Result<Vec<Vec<f32>>, Error> {
        // Length-dependent rotary settings see the limit, for every text the same.
        let documents = self.packed(texts, self.room());
        let hidden = self.device.to_f32(&self.packed_hidden(&documents));
        let (size, mean) = (self.model.spec.hidden, Sentence::default());
        let how = self.sentence.as_ref().unwrap_or(&mean);
        let one = |doc: Range<usize>| {
            let tokens = doc.len();
            how.vector(&hidden[doc.start * size..doc.end * size], size).ok_or(Error::NoDirection { tokens })
        };
        documents.rows.iter().cloned().map(one).collect()
    }

    /// The `k` best tokens that the model predicts at each position of several documents, given all tokens before it:
    /// id and natural log-probability alternating, best first, ties by smaller id. The first position has zeros, since
    /// nothing is before it. The documents run as one batch.
    ///
    /// # Errors
    /// Those of [`Engine::losses_of`].
    pub fn best_of(
        &self,
        documents: &[Vec<u32>],
        k: usize,
        temperature: f64,
    ) -> Result<Vec<Vec<f32>>, Error> {
        self.top_of(&self.side_by_side(&texts(documents), Numbers::Top { k, temperature })?, k, temperature)
    }

    fn top_of(&self, documents: &Documents, k: usize, temperature: f64) -> Result<Vec<Vec<f32>>, Error> {
        let Documents { batch, rows: docs, .. } = documents;
        let (hidden, scope) = (self.packed_hidden(documents), self.scope(batch));
        let head = self.model.head(0.0).at(temperature);
        let vocab = self.params.shape(head.weight)[0];
        let tile = Head::tile_rows(self.device.machine.as_ref(), vocab);
        let mut found = Vec::with_capacity(2 * k * batch.tokens);
        for start in (0..batch.tokens).step_by(tile) {
            let rows = hidden.view_rows(start..batch.tokens.min(start + tile));
            let logits = self.device.to_f32(&head.logits(&scope, &rows));
            logits.chunks_exact(vocab).for_each(|row| found.extend(best(row, k)));
        }
        if found.iter().any(|value| !value.is_finite()) {
            return Err(Error::NotFinite { what: "a log-probability" });
        }
        let width = 2 * k;
        let of = |doc: &Range<usize>| {
            let next = &found[doc.start * width..(doc.end - 1) * width];
            std::iter::repeat_n(0.0, width).chain(next.iter().copied()).collect()
        };
        Ok(docs.iter().map(of).collect())
    }

    /// The scores of each document, for a model with a head of scores: those at the last token that is not padding
    /// ([`scored_at`]).
    ///
    /// # Errors
    /// Those of [`Engine::losses_of`].
    ///
    /// # Panics
    /// If the model has no such head.
    #[track_caller]
    pub fn scores_of(&self, documents: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Error> {
        self.heads_of(&self.side_by_side(&texts(documents), Numbers::Scores)?)
    }

    fn heads_of(&self, documents: &Documents) -> Result<Vec<Vec<f32>>, Error> {
        let Documents { ids, rows: docs, batch, .. } = documents;
        let (hidden, scope) = (self.packed_hidden(documents), self.scope(batch));
        let scores = self.device.to_f32(&self.model.scores().values(&scope, &hidden));
        if scores.iter().any(|score| !score.is_finite()) {
            return Err(Error::NotFinite { what: "a score" });
        }
        let width = self.model.spec.scores;
        if scores.is_empty() {
            // A machine without data returns nothing.
            return Ok(vec![Vec::new(); docs.len()]);
        }
        let of = |(doc, document): (&Range<usize>, &Vec<u32>)| {
            let at = doc.start + scored_at(self.model.spec.padding, document.iter().map(|id| i64::from(*id)));
            scores[at * width..][..width].to_vec()
        };
        Ok(docs.iter().zip(ids).map(of).collect())
    }
}

/// Texts without a second part.
fn texts(documents: &[Vec<u32>]) -> Vec<TextIds> {
    documents.iter().cloned().map(Into::into).collect()
}

/// The `k` best of a row of logits: id and log-probability alternating.
fn best(row: &[f32], k: usize) -> Vec<f32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    let order = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    let k = k.min(ids.len());
    if k < ids.len() && k > 0 {
        ids.select_nth_unstable_by(k - 1, order);
    }
    ids.truncate(k);
    ids.sort_unstable_by(order);
    let top = f64::from(ids.first().map_or(0.0, |id| row[*id as usize]));
    let mass = top + row.iter().map(|x| (f64::from(*x) - top).exp()).sum::<f64>().ln();
    // Ids below 2^24 are exact in f32.
    ids.iter().flat_map(|id| [*id as f32, (f64::from(row[*id as usize]) - mass) as f32]).collect()
}
