//! Selects the weights that quantization-aware training rounds: the projections that [`crate::save_hf_rounded`]
//! writes in the same format. Embeddings, the head, norms, routers and gates are not rounded.

use fathom_grad::{Params, Rounding};
use fathom_tensor::{DType, Device};

use crate::files::is_projection;
use crate::model::Model;
use crate::spec::RoundTo;
use crate::weight::Kind;

/// Rows that share a word of int4 in files.
const WORD: usize = 8;

impl Model {
    /// Sets rounding of the projections from here on, or none: [`fathom_grad::AdamW::round`] writes them from their
    /// masters.
    ///
    /// # Errors
    /// A model that cannot be written in the format, weights without separate masters, or tensor-parallel parts that
    /// are not whole blocks.
    pub fn round(&self, device: &Device, params: &mut Params, how: Option<RoundTo>) -> Result<(), String> {
        let Some(how) = how else {
            params.set_rounding(None);
            return Ok(());
        };
        let family = self.spec.family;
        if family.names.transposed {
            return Err(format!("{family} stores projections as [in, out], which no such format does"));
        }
        if self.spec.adapter.is_some() {
            return Err("trains the weights of a model, and an adapter leaves them as they are; leave out adapter.method, and \
                        quantise the merged model"
                .into());
        }
        let (format, pieces) = (how.of(&self.spec)?, self.pieces());
        let (mut ids, mut refused) = (Vec::new(), None);
        self.visit(&mut |id, layer, weight| {
            if let Kind::Experts(_) = weight.kind {
                refused = Some("rounds projections of dense models, and this one has experts".to_string());
                return;
            }
            let piece = pieces[id.index()].iter().find(|piece| is_projection(layer, weight, &piece.shape));
            let Some(piece) = piece else { return };
            let param = params.get(id);
            if let Err(message) = self.check_lines(params, id, format.block()) {
                refused = Some(message);
            }
            if how == RoundTo::Int4 && !piece.shape[0].is_multiple_of(WORD) {
                let rows = piece.shape[0];
                refused =
                    Some(format!("{} has {rows} rows, not whole words of {WORD}; take mxfp4", piece.name));
            }
            if !param.trainable || param.value.dtype() != DType::Bf16 {
                refused = Some(format!("rounds masters in f32, and {} is none or is frozen", param.name));
            }
            ids.push(id);
        });
        if let Some(refused) = refused {
            return Err(refused);
        }
        params.set_rounding(Some(Rounding::new(device, format, &ids, params.len())));
        Ok(())
    }
}
