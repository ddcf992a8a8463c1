//! Numbers of given texts, in one pass over each: losses, the most likely tokens, logits, hidden states, scores of a
//! head. Several texts run as separate documents of one packed stream, and do not change each other's numbers.

use std::ops::Range;

use fathom_base::{GenerateRequest, Generation, LanguageModel, Numbers, TextIds};
use fathom_grad::{Batch, Eval, Head, Labels, LossTerm, Measures, Scope, VIRTUAL};
use fathom_model::{Caps, PackedTokens, Sentence, scored_at};
use fathom_tensor::{Category, DType, SUM_CHUNK, Tensor};

use crate::engine::Engine;
use crate::error::Error;
use crate::texts::Reads;

/// Rows of logits that are computed at once.
const LOGIT_ROWS: usize = 64;

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
}

impl Reads for Engine<'_> {
    fn numbers(&self, texts: &[TextIds], at: Numbers) -> Result<Vec<Vec<f32>>, Error> {
        let documents: Vec<Vec<u32>> = texts.iter().map(|text| text.ids.clone()).collect();
        match at {
            Numbers::Vector => self.vectors(&documents),
            Numbers::Classes | Numbers::Relevance | Numbers::Scores => self.scores_of(&documents),
            Numbers::Logprobs => self.logprobs_of(&documents),
            Numbers::Top { k, temperature } => self.best_of(&documents, k, temperature),
            Numbers::Logits { last } => self.logits_of(&documents, last),
            Numbers::Hidden => self.hidden_of(&documents),
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
        let rows = self.logprobs_of(documents)?;
        Ok(rows.into_iter().map(|row| row.iter().step_by(2).map(|logprob| -logprob).collect()).collect())
    }

    /// Log-probabilities and hits ([`Numbers::Logprobs`]) of several documents.
    fn logprobs_of(&self, documents: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Error> {
        let (batch, docs) = self.side_by_side(documents)?;
        let hidden = self.packed_hidden(&batch);
        let scope = self.scope(&batch);
        let empty = |rows| self.device.zeros(rows, batch.tokens, DType::F32, Category::Data);
        let (losses, hits, sums) = (empty(1), empty(1), self.device.zeros(2, 1, DType::F32, Category::Data));
        let ids = self.device.from_i32(&next(&batch, documents, &docs), Category::Data);
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
        Ok(docs.into_iter().map(of).collect())
    }

    /// Logits of the last tokens of several documents.
    fn logits_of(&self, documents: &[Vec<u32>], last: usize) -> Result<Vec<Vec<f32>>, Error> {
        let (batch, docs) = self.side_by_side(documents)?;
        let (hidden, scope) = (self.packed_hidden(&batch), self.scope(&batch));
        let head = self.model.head(0.0);
        // By tiles, so that a long text takes the memory of its result and little more.
        let one = |doc: Range<usize>| {
            let rows = doc.start.max(doc.end.saturating_sub(last))..doc.end;
            let mut numbers = Vec::new();
            for first in rows.clone().step_by(LOGIT_ROWS) {
                let tile = hidden.view_rows(first..rows.end.min(first + LOGIT_ROWS));
                let found = self.device.to_f32(&head.logits(&scope, &tile));
                if numbers.is_empty() {
                    numbers.reserve_exact(found.len() / tile.rows() * rows.len());
                }
                numbers.extend(found);
            }
            numbers
        };
        Ok(docs.into_iter().map(one).collect())
    }

    /// Hidden states of several documents after the final norm.
    fn hidden_of(&self, documents: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Error> {
        let (batch, docs) = self.side_by_side(documents)?;
        let (hidden, size) = (self.device.to_f32(&self.packed_hidden(&batch)), self.model.spec.hidden);
        Ok(docs.into_iter().map(|doc| hidden[doc.start * size..doc.end * size].to_vec()).collect())
    }

    /// A unit vector for each of several documents, pooled from hidden states as the folder specifies.
    fn vectors(&self, documents: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Error> {
        // Length-dependent rotary settings see the limit, for every text the same.
        let (batch, docs) = self.packed(documents, self.room());
        let hidden = self.device.to_f32(&self.packed_hidden(&batch));
        let (size, mean) = (self.model.spec.hidden, Sentence::default());
        let how = self.sentence.as_ref().unwrap_or(&mean);
        let one = |doc: Range<usize>| {
            let tokens = doc.len();
            how.vector(&hidden[doc.start * size..doc.end * size], size).ok_or(Error::NoDirection { tokens })
        };
        docs.into_iter().map(one).collect()
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
        let (batch, docs) = self.side_by_side(documents)?;
        let hidden = self.packed_hidden(&batch);
        let scope = self.scope(&batch);
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
        let of = |doc: Range<usize>| {
            let next = &found[doc.start * width..(doc.end - 1) * width];
            std::iter::repeat_n(0.0, width).chain(next.iter().copied()).collect()
        };
        Ok(docs.into_iter().map(of).collect())
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
        let (batch, docs) = self.side_by_side(documents)?;
        let hidden = self.packed_hidden(&batch);
        let scope = self.scope(&batch);
        let scores = self.device.to_f32(&self.model.scores().values(&scope, &hidden));
        if scores.iter().any(|score| !score.is_finite()) {
            return Err(Error::NotFinite { what: "a score" });
        }
        let width = self.model.spec.scores;
        if scores.is_empty() {
            // A machine without data returns nothing.
            return Ok(vec![Vec::new(); docs.len()]);
        }
        let of = |(doc, document): (Range<usize>, &Vec<u32>)| {
            let at = doc.start + scored_at(self.model.spec.padding, document.iter().map(|id| i64::from(*id)));
            scores[at * width..][..width].to_vec()
        };
        Ok(docs.into_iter().zip(documents).map(of).collect())
    }

    /// Packs documents into one batch; returns the range of each.
    fn side_by_side(&self, documents: &[Vec<u32>]) -> Result<(Batch, Vec<Range<usize>>), Error> {
        documents.iter().try_for_each(|document| self.check(document, 0))?;
        let seq_tokens = documents.iter().map(Vec::len).max().unwrap_or(0);
        Ok(self.packed(documents, self.lead() + seq_tokens))
    }

    /// Packs documents that were checked, with rotary settings for sequences of `seq_tokens` tokens. Each follows the
    /// virtual tokens, which the returned ranges exclude.
    pub(crate) fn packed(&self, documents: &[Vec<u32>], seq_tokens: usize) -> (Batch, Vec<Range<usize>>) {
        let (mut ids, mut positions) = (Vec::new(), Vec::new());
        let (mut docs, mut texts, lead) = (Vec::new(), Vec::new(), self.lead());
        for document in documents {
            let from = ids.len();
            ids.extend((VIRTUAL..VIRTUAL + lead).map(|id| id as i32));
            ids.extend(document.iter().map(|id| *id as i32));
            positions.extend(0..(ids.len() - from) as i32);
            docs.push(from..ids.len());
            texts.push(from + lead..ids.len());
        }
        let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
        (self.model.batch(self.device, packed, Caps { docs: docs.len(), seq_tokens }), texts)
    }

    /// Hidden states of a packed batch after the final norm, without earlier context: [tokens, hidden]. Token-wise
    /// operations run in tiles of a prompt's chunk.
    pub(crate) fn packed_hidden(&self, batch: &Batch) -> Tensor {
        let scope = self.scope(batch);
        let tile_rows = self.limits.chunk_tokens.next_multiple_of(SUM_CHUNK);
        self.model.forward(&mut Eval::new(scope, Some(tile_rows), None))
    }

    fn scope<'b>(&'b self, batch: &'b Batch) -> Scope<'b> {
        Scope { device: self.device, params: self.params, batch: batch.into(), counters: &self.counters }
    }
}

/// The label of each token of a batch: the next token of its document, negative for the last.
fn next(batch: &Batch, documents: &[Vec<u32>], texts: &[Range<usize>]) -> Vec<i32> {
    let mut labels = vec![-1; batch.tokens];
    for (document, text) in documents.iter().zip(texts) {
        let behind = labels[text.clone()].iter_mut().zip(&document[1..]);
        behind.for_each(|(label, id)| *label = *id as i32);
    }
    labels
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
