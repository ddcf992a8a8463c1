//! Encoders with a classification head, from Hugging Face folders: BERT (Devlin et al., arXiv 1810.04805), RoBERTa and
//! XLM-RoBERTa, DeBERTa v2 and v3 (He et al., arXiv 2006.03654 and 2111.09543). They sort texts and are not trained here:
//! weights are f32, there is no backward pass, and a text's result does not depend on what runs beside it.
//!
//! Legend of shapes: t tokens of all texts, d hidden, n tokens of one text.

mod disentangled;
mod forward;
mod spec;
mod weights;

pub use spec::{EncoderSpec, Pool, Positions, Relative, Task};

use std::path::Path;

use fathom_tensor::Device;

use crate::error::Result;
use crate::files::SafeTensors;
use weights::Weights;

/// An encoder with its weights.
pub struct Encoder {
    /// The architecture.
    pub spec: EncoderSpec,
    device: Device,
    weights: Weights,
}

impl Encoder {
    /// Reads a folder's configuration and weights.
    ///
    /// # Errors
    /// A configuration that is not an encoder's or not supported, naming the key; a tensor that is missing, left over or of
    /// another shape, naming it.
    pub fn open(device: &Device, folder: &Path) -> Result<Encoder> {
        let mut spec = EncoderSpec::open(folder)?;
        device.pool.enter("weights", -1);
        let weights = Weights::load(device, &mut spec, &SafeTensors::open_folder(folder)?)?;
        Ok(Encoder { spec, device: device.clone(), weights })
    }
}
