//! A model with one document on a device.

use std::path::Path;

use fathom_grad::{Batch, Counters, Eval, Memory, Scope};
use fathom_model::{Caps, PackedTokens, Spec, open_any_config};
use fathom_tensor::{DType, Device, Tensor};

use crate::error::{Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{load_with, model_folder};
use fathom_model::{EncoderHead, LoadedModel};

/// Ids of one document.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams<'a> {
    /// The document.
    pub ids: &'a [u32],
    /// Those that the decoder of an encoder-decoder reads.
    pub decoder: &'a [u32],
    /// Neighbours of each of the document's chunks, for a decoder that reads them.
    pub neighbours: &'a [Vec<Vec<u32>>],
}

/// A model with one document on a device.
pub struct Subject {
    pub(super) device: Device,
    pub(super) loaded: LoadedModel,
    /// Ids whose logits are computed: the document, or the decoder's of a model with a source.
    pub(super) ids: Vec<u32>,
    batch: Batch,
    /// The source's stream, if the model has one.
    source: Option<Batch>,
    counters: Counters,
}

impl Subject {
    /// Loads a model as `dtype`, and a document.
    ///
    /// # Errors
    /// No model there; ids for a decoder of a model without a source, or none; neighbours for a model that reads none; ids
    /// outside its vocabulary; out of memory.
    pub fn new(
        (model, adapter): (&Path, Option<&Path>),
        Streams { ids, decoder, neighbours }: Streams<'_>,
        dtype: DType,
        machine: &Machine,
        events: &dyn Events,
    ) -> Result<Subject> {
        let folder = model_folder(model)?;
        let spec = open_any_config(&folder)?.0;
        check_ids(&spec, "--ids", ids)?;
        check_ids(&spec, "--decoder-ids", decoder)?;
        check_streams(&spec, decoder)?;
        check_neighbours(&spec, ids, neighbours)?;
        caught(|| {
            let device = machine.open()?;
            let loaded = load_with(&device, &folder, adapter, Some(dtype), events)?;
            check_head(adapter.unwrap_or(&folder), &loaded.model.spec)?;
            if loaded.model.spec.virtual_tokens() > 0 {
                refuse!("virtual tokens of an adapter are not among --ids: look at the model without them");
            }
            let document: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
            let positions: Vec<i32> = (0..ids.len() as i32).collect();
            let whole = 0..ids.len();
            let packed =
                PackedTokens { ids: &document, positions: &positions, docs: std::slice::from_ref(&whole) };
            let caps = Caps { docs: 1, seq_tokens: ids.len().max(decoder.len()) };
            let counters = Counters::default();
            if let Some(sizes) = loaded.model.spec.retrieval {
                let (source, chunks) = stream_of(neighbours, sizes.chunk);
                let streams = [source.packed(), packed];
                let [source, batch] = loaded.model.retrieval_batches(&device, streams, &chunks, caps);
                return Ok(Subject {
                    device,
                    loaded,
                    ids: ids.to_vec(),
                    batch,
                    source: Some(source),
                    counters,
                });
            }
            if loaded.model.spec.source == 0 {
                let batch = loaded.model.batch(&device, packed, caps);
                return Ok(Subject { device, loaded, ids: ids.to_vec(), batch, source: None, counters });
            }
            let document: Vec<i32> = decoder.iter().map(|id| *id as i32).collect();
            let positions: Vec<i32> = (0..decoder.len() as i32).collect();
            let whole = 0..decoder.len();
            let main =
                PackedTokens { ids: &document, positions: &positions, docs: std::slice::from_ref(&whole) };
            let [source, batch] = loaded.model.batches(&device, [packed, main], caps);
            Ok(Subject { device, loaded, ids: decoder.to_vec(), batch, source: Some(source), counters })
        })
    }

    pub(super) fn scope(&self) -> Scope<'_> {
        self.scope_of(&self.batch)
    }

    fn scope_of<'a>(&'a self, batch: &'a Batch) -> Scope<'a> {
        let params = &self.loaded.params;
        Scope { device: &self.device, params, batch: batch.into(), counters: &self.counters }
    }

    /// Hidden states before the head.
    pub(super) fn hidden(&self) -> Tensor {
        let (model, run) = (&self.loaded.model, |batch| Eval::new(self.scope_of(batch), None, None));
        let Some(source) = &self.source else { return model.forward(&mut run(&self.batch)) };
        let remember = |value| Memory { value, gradient: None };
        if model.spec.retrieval.is_some() {
            let main = &self.batch;
            let mut runs = [main, main, source, main].map(run);
            return model.forward_retrieval(runs.each_mut(), &remember).main;
        }
        let runs = [&mut run(source), &mut run(&self.batch)];
        model.forward_streams(runs, 0, None, &remember).main
    }

    /// Refuses a model with a source.
    ///
    /// # Errors
    /// One.
    pub(super) fn one_stream(&self) -> Result<()> {
        if self.source.is_some() {
            refuse!("the model has a source: only its logits can be inspected");
        }
        Ok(())
    }
}

/// Checks that a model has a head: of tokens, labels or scores.
///
/// # Errors
/// An encoder without one.
fn check_head(path: &Path, spec: &Spec) -> Result<()> {
    if spec.encoder.as_ref().is_some_and(|parts| parts.head == EncoderHead::None) {
        refuse!(
            "{} is an encoder without a head, so it has no logits; ask it for vectors (fathom serve)",
            path.display()
        );
    }
    Ok(())
}

/// Checks that ids fit the model.
///
/// # Errors
/// An id outside the vocabulary, or more ids than learned positions.
fn check_ids(spec: &Spec, option: &str, ids: &[u32]) -> Result<()> {
    if let Some(id) = ids.iter().find(|id| **id as usize >= spec.vocab) {
        refuse!("{option}: {id} is outside the vocabulary; this model has the ids 0 to {}", spec.vocab - 1);
    }
    if let Some(rows) = spec.position_room().filter(|rows| *rows < ids.len()) {
        refuse!("{option}: {} ids, but the model has learned positions for {rows}", ids.len());
    }
    Ok(())
}

/// Checks that a decoder's ids are given if, and only if, the model has a source.
///
/// # Errors
/// They are not.
fn check_streams(spec: &Spec, decoder: &[u32]) -> Result<()> {
    match (spec.source > 0 && spec.retrieval.is_none(), decoder.is_empty()) {
        (true, true) => {
            let family = spec.family;
            refuse!(
                "--decoder-ids is missing: {family} is an encoder-decoder; give what its decoder reads, such as 0"
            )
        }
        (false, false) => refuse!("--decoder-ids: {} is no encoder-decoder", spec.family),
        _ => Ok(()),
    }
}

/// Checks that neighbours are of a model that reads them, and of chunks that are there.
///
/// # Errors
/// They are not.
fn check_neighbours(spec: &Spec, ids: &[u32], neighbours: &[Vec<Vec<u32>>]) -> Result<()> {
    let Some(sizes) = spec.retrieval else {
        if !neighbours.is_empty() {
            refuse!("--neighbours: {} reads none", spec.family);
        }
        return Ok(());
    };
    let chunks = sizes.chunks(ids.len());
    if neighbours.len() > chunks {
        refuse!(
            "--neighbours: of {} chunks, and the ids have {chunks} of {} tokens",
            neighbours.len(),
            sizes.chunk
        );
    }
    for neighbour in neighbours.iter().flatten() {
        check_ids(spec, "--neighbours", neighbour)?;
        if neighbour.is_empty() || neighbour.len() > sizes.neighbour() {
            refuse!("--neighbours: one has {} ids; 1 to {} are read", neighbour.len(), sizes.neighbour());
        }
    }
    if let Some(many) = neighbours.iter().find(|of_chunk| of_chunk.len() > sizes.neighbours) {
        refuse!("--neighbours: {} of one chunk; at most {} are read", many.len(), sizes.neighbours);
    }
    Ok(())
}

/// A packed stream.
#[derive(Default)]
struct Stream {
    ids: Vec<i32>,
    positions: Vec<i32>,
    docs: Vec<std::ops::Range<usize>>,
}

impl Stream {
    fn push(&mut self, ids: &[u32]) {
        let start = self.ids.len();
        self.ids.extend(ids.iter().map(|id| id.cast_signed()));
        self.positions.extend(0..ids.len() as i32);
        self.docs.push(start..self.ids.len());
    }

    fn packed(&self) -> PackedTokens<'_> {
        PackedTokens { ids: &self.ids, positions: &self.positions, docs: &self.docs }
    }
}

/// The stream of neighbours, and the token at which the chunk of each begins. A token that nothing reads follows.
fn stream_of(neighbours: &[Vec<Vec<u32>>], chunk: usize) -> (Stream, Vec<usize>) {
    let (mut stream, mut chunks) = (Stream::default(), Vec::new());
    for (index, of_chunk) in neighbours.iter().enumerate() {
        for ids in of_chunk {
            stream.push(ids);
            chunks.push(index * chunk);
        }
    }
    stream.push(&[0]);
    (stream, chunks)
}
