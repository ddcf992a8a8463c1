//! Encoders with a classification head, from Hugging Face folders: BERT (Devlin et al., arXiv 1810.04805), RoBERTa and
//! XLM-RoBERTa, DeBERTa v2 and v3 (He et al., arXiv 2006.03654 and 2111.09543). They are models of the same block as all others;
//! what is theirs alone is what comes before the first block, distances in the scores of attention, and the head.
//!
//! A text's result does not depend on what runs with it.

mod names;
mod spec;

pub use names::EncoderNames;
pub use spec::{EncoderParts, EncoderSpec, Relative, Task};

use std::ops::Range;
use std::path::Path;

use fathom_grad::{Batch, Counters, Eval, Params, Scope};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::batch::{Caps, PackedTokens};
use crate::error::Result;
use crate::files::{SafeTensors, Source, load};
use crate::model::Model;

/// An encoder with its weights.
pub struct Encoder {
    /// The architecture, and what its classes are.
    pub spec: EncoderSpec,
    /// The blocks.
    pub model: Model,
    /// Their weights.
    pub params: Params,
    /// Where they are.
    pub device: Device,
}

impl Encoder {
    /// Reads a folder's configuration and weights, which become `dtype`.
    ///
    /// # Errors
    /// A configuration that is not an encoder's or not supported, naming the key; a tensor that is missing, left over or of
    /// another shape, naming it.
    pub fn open(device: &Device, folder: &Path, dtype: DType) -> Result<Encoder> {
        let mut spec = EncoderSpec::open(folder)?;
        let source = SafeTensors::open_folder(folder)?;
        let head = format!("{}.weight", spec.model.family.names.head);
        spec.name_labels(source.shape(&head).and_then(|shape| shape.first().copied()));
        let (model, mut params) = Model::declare(device, &spec.model, dtype);
        load(device, &model, &mut params, &source)?;
        Ok(Encoder { spec, model, params, device: device.clone() })
    }

    /// Texts as documents of one packed stream that do not see each other, with the rows of each.
    ///
    /// # Panics
    /// If a text has no tokens, or more than the encoder has positions for.
    #[track_caller]
    pub fn batch(&self, texts: &[Vec<u32>]) -> (Batch, Vec<Range<usize>>) {
        let mut docs: Vec<Range<usize>> = Vec::with_capacity(texts.len());
        for text in texts {
            let most = self.spec.max_tokens().unwrap_or(usize::MAX);
            assert!((1..=most).contains(&text.len()), "encoder: a text of {} tokens of {most}", text.len());
            let start = docs.last().map_or(0, |doc| doc.end);
            docs.push(start..start + text.len());
        }
        let first = self.spec.first_position() as i32;
        let positions: Vec<i32> = texts.iter().flat_map(|text| first..first + text.len() as i32).collect();
        let ids: Vec<i32> = texts.iter().flatten().map(|id| *id as i32).collect();
        let seq_tokens = docs.iter().map(Range::len).max().unwrap_or(0);
        let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
        (self.model.batch(&self.device, packed, Caps { docs: docs.len(), seq_tokens }), docs)
    }

    /// The logits of each text's labels: the head, on its first token.
    ///
    /// # Panics
    /// As [`Encoder::batch`].
    #[track_caller]
    pub fn logits(&self, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
        let (device, (batch, docs), counters) = (&self.device, self.batch(texts), Counters::default());
        let scope = Scope { device, params: &self.params, batch: (&batch).into(), counters: &counters };
        let x_td = self.model.forward(&mut Eval::new(scope.clone(), None, None));
        let first = device.empty(docs.len(), x_td.cols(), x_td.dtype(), Category::Activations);
        for (row, doc) in docs.iter().enumerate() {
            let own: Tensor = x_td.view_rows(doc.start..doc.start + 1);
            device.machine.copy(&own, &first.view_rows(row..row + 1));
        }
        let logits = device.to_f32(&self.model.head(0.0).logits(&scope, &first));
        logits.chunks_exact(self.spec.labels.len()).map(<[f32]>::to_vec).collect()
    }
}
