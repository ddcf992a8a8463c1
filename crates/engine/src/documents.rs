//! Given texts as documents of one packed stream, or of two: the sources of an encoder-decoder, and their answers.

use std::ops::Range;

use fathom_base::{Numbers, TextIds};
use fathom_grad::{Batch, Eval, Memory, Scope, VIRTUAL};
use fathom_model::{Caps, PackedTokens, TARGET_START};
use fathom_tensor::{SUM_CHUNK, Tensor};

use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;

/// Texts that run together.
pub(crate) struct Documents {
    /// The tokens of each; of an answer with the one that begins it.
    pub ids: Vec<Vec<u32>>,
    /// Their rows of the batch, without virtual tokens.
    pub rows: Vec<Range<usize>>,
    pub batch: Batch,
    /// The batch of their sources, if the model has one.
    source: Option<Batch>,
}

impl Documents {
    /// The label of each token of the batch: the next token of its document, negative for the last.
    pub fn next(&self) -> Vec<i32> {
        let mut labels = vec![-1; self.batch.tokens];
        for (ids, rows) in self.ids.iter().zip(&self.rows) {
            let behind = labels[rows.clone()].iter_mut().zip(&ids[1..]);
            behind.for_each(|(label, id)| *label = *id as i32);
        }
        labels
    }
}

/// Documents side by side.
#[derive(Default)]
struct Stream {
    ids: Vec<i32>,
    positions: Vec<i32>,
    docs: Vec<Range<usize>>,
}

impl Stream {
    fn of<'a>(documents: impl IntoIterator<Item = &'a [u32]>, lead: usize) -> Stream {
        let mut stream = Stream::default();
        for document in documents {
            let from = stream.ids.len();
            stream.ids.extend((VIRTUAL..VIRTUAL + lead).map(|id| id as i32));
            stream.ids.extend(document.iter().map(|id| *id as i32));
            stream.positions.extend(0..(stream.ids.len() - from) as i32);
            stream.docs.push(from..stream.ids.len());
        }
        stream
    }

    fn packed(&self) -> PackedTokens<'_> {
        PackedTokens { ids: &self.ids, positions: &self.positions, docs: &self.docs }
    }
}

impl Engine<'_> {
    /// Packs texts into one batch.
    ///
    /// # Errors
    /// A text that is empty, too long, or has unknown ids; numbers that the model has not.
    pub(crate) fn side_by_side(&self, texts: &[TextIds], at: Numbers) -> Result<Documents, Error> {
        let bounds = self.bounds(Capacity::default());
        texts.iter().try_for_each(|text| bounds.text(text, at))?;
        let seq_tokens = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        if bounds.source { Ok(self.paired(texts)) } else { Ok(self.packed(texts, self.lead() + seq_tokens)) }
    }

    /// Packs texts that were checked, with rotary settings for sequences of `seq_tokens` tokens. Each follows the virtual
    /// tokens.
    pub(crate) fn packed(&self, texts: &[TextIds], seq_tokens: usize) -> Documents {
        let (ids, lead): (Vec<Vec<u32>>, usize) =
            (texts.iter().map(|text| text.ids.clone()).collect(), self.lead());
        let stream = Stream::of(ids.iter().map(Vec::as_slice), lead);
        let caps = Caps { docs: stream.docs.len(), seq_tokens };
        let batch = self.model.batch(self.device, stream.packed(), caps);
        let rows = stream.docs.into_iter().map(|doc| doc.start + lead..doc.end).collect();
        Documents { ids, rows, batch, source: None }
    }

    /// Packs sources and their answers that were checked.
    fn paired(&self, texts: &[TextIds]) -> Documents {
        let ids: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| [&[TARGET_START.cast_unsigned()], &text.ids[text.first..]].concat())
            .collect();
        let source = Stream::of(texts.iter().map(|text| &text.ids[..text.first]), 0);
        let main = Stream::of(ids.iter().map(Vec::as_slice), 0);
        let seq_tokens = source.docs.iter().chain(&main.docs).map(ExactSizeIterator::len).max().unwrap_or(0);
        let caps = Caps { docs: ids.len(), seq_tokens };
        let [source, batch] = self.model.batches(self.device, [source.packed(), main.packed()], caps);
        Documents { ids, rows: main.docs, batch, source: Some(source) }
    }

    /// Hidden states after the final norm, without earlier context: [tokens, hidden]. Token-wise operations run in tiles
    /// of a prompt's chunk.
    pub(crate) fn packed_hidden(&self, documents: &Documents) -> Tensor {
        let tile_rows = self.limits.chunk_tokens.next_multiple_of(SUM_CHUNK);
        let run = |batch| Eval::new(self.scope(batch), Some(tile_rows), None);
        let Some(source) = &documents.source else { return self.model.forward(&mut run(&documents.batch)) };
        let value = self.model.source(&mut run(source));
        self.model.target(&mut run(&documents.batch), Memory { value, gradient: None })
    }

    pub(crate) fn scope<'b>(&'b self, batch: &'b Batch) -> Scope<'b> {
        Scope { device: self.device, params: self.params, batch: batch.into(), counters: &self.counters }
    }
}
