//! Which weights of a model quantisation-aware training rounds, and to what: the projections that [`crate::save_hf_rounded`] writes in
//! the same format. Embeddings, the head, norms, routers and gates stay as they are.

use fathom_grad::{Params, Rounding};
use fathom_tensor::{DType, Device, FourBits};

use crate::files::{block_tensors, group_of, is_projection};
use crate::model::Model;
use crate::spec::Spec;
use crate::weight::Kind;

/// Formats of projections in four bits that need no text to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTo {
    /// Blocks of 32 under a power of two.
    Mxfp4,
    /// Blocks of 16 under a number of e4m3, and an f32 for all.
    Nvfp4,
    /// Groups of 128, 64 or 32, the first that all projections have.
    Int4,
}

/// Rows that int4's words in files hold together.
const WORD: usize = 8;

impl RoundTo {
    /// The format for a model.
    ///
    /// # Errors
    /// Projections whose columns are not whole blocks.
    pub fn of(self, spec: &Spec) -> Result<FourBits, String> {
        let tensors = block_tensors(spec);
        let format = match self {
            RoundTo::Mxfp4 => FourBits::Mxfp4,
            RoundTo::Nvfp4 => FourBits::Nvfp4,
            RoundTo::Int4 => FourBits::Int4(group_of(&tensors)?),
        };
        let block = format.block();
        let astray = |shape: &[usize]| shape.len() == 2 && !shape[1].is_multiple_of(block);
        match tensors.iter().find(|tensor| astray(&tensor.shape)) {
            None => Ok(format),
            Some(tensor) => Err(format!(
                "{} has {} columns, not whole blocks of {block}; take another format",
                tensor.name, tensor.shape[1]
            )),
        }
    }
}

impl Model {
    /// Has the projections rounded from here on, or none: [`fathom_grad::AdamW::round`] writes them from their masters.
    ///
    /// # Errors
    /// A model that cannot be written in the format, weights that have no masters of their own, or tensor parallel ranks whose parts are
    /// not whole blocks.
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
