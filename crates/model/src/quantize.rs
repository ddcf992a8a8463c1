//! Selects the weights of a model that are quantized: frozen projections and experts. Embeddings, the head, norms,
//! routers and gates are not, as in QLoRA (Dettmers et al., 2023).

use std::collections::BTreeSet;
use std::sync::Arc;

use fathom_tensor::{BlockFormat, DType, Device, Meta, Profile};

use crate::model::Model;
use crate::portion::{Portion, Shard};
use crate::spec::{Quantization, Spec};
use crate::weight::{Kind, Term};

/// The reason why a rank's part of a weight cannot be packed.
fn misfit(format: BlockFormat, shard: &Shard, name: &str) -> Option<String> {
    let [rows, cols] = shard.local();
    let whole = shard.shape[1];
    let block = format.block(whole);
    if format == BlockFormat::Int8 && cols < whole {
        return Some(format!(
            "int8 has one scale for each row of {name}, and tensor parallel ranks have {cols} of its {whole} columns; use nf4, or \
             tensor parallel of 1"
        ));
    }
    let whole_blocks = cols.is_multiple_of(block) && shard.cols.start.is_multiple_of(block);
    (shard.is_parted() && !whole_blocks).then(|| {
        format!(
            "a rank has [{rows}, {cols}] of {name} [{}, {whole}], which does not consist of whole blocks of {block} elements; use \
             fewer tensor parallel ranks, or model.quantization=\"none\"",
            shard.shape[0]
        )
    })
}

impl Quantization {
    /// Numbers, in the whole model, of the packed weights.
    pub(crate) fn numbers(&self, spec: &Spec) -> BTreeSet<u32> {
        let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
        let (model, _) = Model::declare(&nowhere, spec, DType::F32);
        let pieces = model.pieces();
        let mut numbers = BTreeSet::new();
        model.visit(&mut |id, _, weight| {
            let packs = matches!(weight.kind, Kind::Linear | Kind::Experts(_)) && weight.term == Term::Weight;
            let trained = pieces[id.index()].iter().any(|piece| self.trained.names(&piece.name));
            if packs && !trained && weight.trainable && weight.shape[0] > 1 {
                numbers.insert(model.holdings[id.index()].number);
            }
        });
        numbers
    }

    /// Checks that a rank's weights can be packed.
    ///
    /// # Errors
    /// A weight whose part does not consist of whole blocks.
    pub fn check(&self, spec: &Spec, portion: &Portion) -> Result<(), String> {
        let numbers = self.numbers(spec);
        let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
        let (model, params) = Model::declare_part(&nowhere, spec, DType::F32, None, portion.clone());
        for (held, (_, param)) in model.holdings.iter().zip(params.iter()) {
            if !numbers.contains(&held.number) {
                continue;
            }
            if let Some(misfit) = misfit(self.format, &held.shard, &param.name) {
                return Err(misfit);
            }
        }
        for (pieces, (held, (_, param))) in
            model.pieces().iter().zip(model.holdings.iter().zip(params.iter()))
        {
            let [_, cols] = held.shard.local();
            let block = self.format.block(cols);
            let astray = |row: usize| !(row * cols).is_multiple_of(block);
            if numbers.contains(&held.number)
                && !cols.is_multiple_of(block)
                && pieces.iter().any(|piece| piece.transpose || astray(piece.param_row))
            {
                return Err(format!(
                    "{} is several tensors of {cols} columns, whose blocks of {block} elements do not begin with the tensors; use \
                     int8, or model.quantization=\"none\"",
                    param.name
                ));
            }
        }
        Ok(())
    }
}
