//! Encoders, bare or with a classification head, from Hugging Face folders: BERT (Devlin et al., arXiv 1810.04805),
//! RoBERTa and XLM-RoBERTa, DeBERTa v2 and v3 (He et al., arXiv 2006.03654 and 2111.09543). They use the same block
//! as all other models; specific to them are the input before the first block, relative distances in attention
//! scores, and the head.
//!
//! A text's result does not depend on other texts in the batch.

mod families;
mod modernbert;
mod read;
mod sentence;
mod spec;
mod task;
mod weights;
mod write;

pub(crate) use families::of_norms;
pub use sentence::Sentence;
pub use spec::EncoderSpec;
pub(crate) use spec::whole;
pub use task::{Task, ranks_by_sigmoid, sigmoid};
pub use weights::EncoderInput;
pub(crate) use weights::{means, pool};

use std::ops::Range;
use std::path::Path;

use fathom_base::TextIds;
use fathom_grad::{Batch, Counters, Eval, Scope};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::batch::{Caps, PackedTokens, masks_apart};
use crate::error::Result;
use crate::files::{SafeTensors, Source, load};
use crate::loaded::LoadedModel;
use crate::model::Model;

/// An encoder with its weights.
pub struct Encoder {
    /// The architecture and its labels.
    pub spec: EncoderSpec,
    /// The model with its weights.
    pub loaded: LoadedModel,
}

impl Encoder {
    /// Reads a folder's configuration and weights, converting to `dtype`. On a device without data, only plans them.
    ///
    /// # Errors
    /// A configuration that is not an encoder's or not supported, naming the key; a tensor that is missing, left over or of
    /// another shape, naming it.
    pub fn open(device: &Device, folder: &Path, dtype: DType) -> Result<Encoder> {
        let mut spec = EncoderSpec::open(folder)?;
        let mut source = SafeTensors::open_folder(folder)?;
        source.rename(&|name| Some(families::of_norms(name)))?;
        let head = format!("{}.weight", spec.model.family.names.head);
        spec.name_labels(source.shape(&head).and_then(|shape| shape.first().copied()));
        let (model, mut params) = Model::declare(device, &spec.model, dtype);
        load(device, &model, &mut params, &source)?;
        Ok(Encoder { spec, loaded: LoadedModel { device: device.clone(), model, params } })
    }

    /// Packs texts as separate documents into one stream, and returns the rows of each. The second text of a pair has
    /// the second token type, if the encoder has two.
    ///
    /// # Panics
    /// If a text has no tokens, or more than the encoder has positions for.
    #[track_caller]
    pub fn batch(&self, texts: &[TextIds]) -> (Batch, Vec<Range<usize>>) {
        let mut docs: Vec<Range<usize>> = Vec::with_capacity(texts.len());
        for TextIds { ids, .. } in texts {
            let most = self.spec.max_tokens().unwrap_or(usize::MAX);
            assert!((1..=most).contains(&ids.len()), "encoder: a text of {} tokens of {most}", ids.len());
            let start = docs.last().map_or(0, |doc| doc.end);
            docs.push(start..start + ids.len());
        }
        let positions: Vec<i32> = texts.iter().flat_map(|text| 0..text.ids.len() as i32).collect();
        let ids: Vec<i32> = texts.iter().flat_map(|text| &text.ids).map(|id| *id as i32).collect();
        let seq_tokens = docs.iter().map(Range::len).max().unwrap_or(0);
        let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
        let mut batch =
            self.loaded.model.batch(&self.loaded.device, packed, Caps { docs: docs.len(), seq_tokens });
        // The batch's own positions are rows of a table, which padding does not count in.
        let positions = self.loaded.device.from_i32(&positions, Category::Data);
        batch.masks = masks_apart(&self.loaded.device, &self.loaded.model.spec, &positions, &docs);
        if self.spec.types() > 1 && texts.iter().any(|text| text.first < text.ids.len()) {
            let types = |text: &TextIds| (0..text.ids.len()).map(|at| i32::from(at >= text.first)).collect();
            let types: Vec<i32> = texts.iter().flat_map(|text| -> Vec<i32> { types(text) }).collect();
            batch.types = Some(self.loaded.device.from_i32(&types, Category::Data));
        }
        (batch, docs)
    }

    /// Hidden states [tokens, hidden] after the last block, f32, row-major, per text.
    ///
    /// # Panics
    /// Those of [`Encoder::batch`], and if the encoder has a head, which reads other states. A device without data
    /// returns none.
    #[track_caller]
    pub fn hidden(&self, texts: &[TextIds]) -> Vec<Vec<f32>> {
        assert!(self.spec.labels.is_empty(), "encoder: hidden states of one with a head");
        let (batch, docs) = self.batch(texts);
        let x_td = self.loaded.device.to_f32(&self.forward(&batch));
        let size = self.spec.model.hidden;
        docs.into_iter()
            .filter_map(|doc| Some(x_td.get(doc.start * size..doc.end * size)?.to_vec()))
            .collect()
    }

    /// Logits of each text's labels, from the head on its first token.
    ///
    /// # Panics
    /// Those of [`Encoder::batch`], and if the encoder has no head.
    #[track_caller]
    pub fn logits(&self, texts: &[TextIds]) -> Vec<Vec<f32>> {
        assert!(!self.spec.labels.is_empty(), "encoder: logits without a head of classes");
        let (device, (batch, docs)) = (&self.loaded.device, self.batch(texts));
        let x_td = self.forward(&batch);
        let first = device.empty(docs.len(), x_td.cols(), x_td.dtype(), Category::Activations);
        for (row, doc) in docs.iter().enumerate() {
            let own: Tensor = x_td.view_rows(doc.start..doc.start + 1);
            device.machine.copy(&own, &first.view_rows(row..row + 1));
        }
        let counters = Counters::default();
        let logits =
            device.to_f32(&self.loaded.model.head(0.0).logits(&self.scope(&batch, &counters), &first));
        logits.chunks_exact(self.spec.labels.len()).map(<[f32]>::to_vec).collect()
    }

    fn scope<'a>(&'a self, batch: &'a Batch, counters: &'a Counters) -> Scope<'a> {
        Scope { device: &self.loaded.device, params: &self.loaded.params, batch: batch.into(), counters }
    }

    fn forward(&self, batch: &Batch) -> Tensor {
        let counters = Counters::default();
        self.loaded.model.forward(&mut Eval::new(self.scope(batch, &counters), None, None))
    }
}
