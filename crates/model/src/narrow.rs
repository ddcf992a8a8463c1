//! Selects the linear layers with low-precision products.
//!
//! The embedding, the head, the routers and attention itself never are, as is usual (DeepSeek-V3, 2024, section
//! 3.3.1; Transformer Engine's layers).

use std::ops::Range;

use fathom_grad::{GemmFormat, NarrowWeights, ParamId, Params};
use fathom_tensor::Device;

use crate::model::Model;
use crate::weight::{Kind, Module};

/// A selection of a block's linear layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linears {
    /// All of them.
    #[default]
    All,
    /// Attention's projections.
    Attention,
    /// The MLP's projections.
    Mlp,
}

/// Low-precision products, and their layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowLayers {
    /// Format of the operands.
    pub format: GemmFormat,
    /// Selected linear layers.
    pub linears: Linears,
    /// Leading blocks that keep full precision (Megatron's `num_layers_at_start_in_bf16`).
    pub at_start: usize,
    /// Trailing blocks that do (Megatron's `num_layers_at_end_in_bf16`).
    pub at_end: usize,
    /// Number of past steps for delayed scaling.
    pub history: usize,
}

impl Model {
    /// Sets the format of these layers' products from here on; `None` restores full precision everywhere.
    ///
    /// # Errors
    /// If the selection includes experts, or blocks would straddle the parts of tensor-parallel ranks.
    pub fn narrow(
        &self,
        device: &Device,
        params: &mut Params,
        how: Option<&NarrowLayers>,
    ) -> Result<(), String> {
        let Some(how) = how else {
            params.set_narrowing(None);
            return Ok(());
        };
        let layers = self.spec.layers.len();
        let narrow = how.at_start..layers.saturating_sub(how.at_end);
        let (mut ids, mut experts) = (Vec::new(), None);
        self.visit(&mut |id, layer, weight| {
            let Some(layer) = layer.filter(|layer| narrow.contains(layer)) else { return };
            let wanted = match how.linears {
                Linears::All => true,
                Linears::Attention => weight.module == Module::Attention,
                Linears::Mlp => weight.module == Module::Mlp,
            };
            match weight.kind {
                Kind::Linear if wanted => ids.push(id),
                Kind::Experts(_) if wanted => experts = experts.or(Some(layer)),
                _ => {}
            }
        });
        if let Some(layer) = experts {
            return Err(format!(
                "layer {layer} has experts, whose products are made of their operands as they are; take \
                 precision.linears = \"attention\""
            ));
        }
        for id in &ids {
            self.check_blocks(params, *id, how.format)?;
        }
        let narrowing = NarrowWeights::new(device, how.format, &ids, params.len(), how.history);
        params.set_narrowing(Some(narrowing));
        Ok(())
    }

    /// Checks that a rank's part of a weight's rows consists of whole blocks of columns.
    ///
    /// # Errors
    /// The weight that does not fit.
    pub(crate) fn check_lines(&self, params: &Params, id: ParamId, block: usize) -> Result<(), String> {
        let cols = &self.holdings[id.index()].shard.cols;
        if cols.start.is_multiple_of(block) && cols.len().is_multiple_of(block) {
            return Ok(());
        }
        let (name, tp) = (&params.get(id).name, self.portion.tp);
        Err(format!(
            "blocks of {block} would lie across the parts that mesh.tp={tp} makes of {name}; take a smaller tp, or a format with \
             smaller blocks"
        ))
    }

    /// Checks that a rank's part of a weight consists of whole blocks.
    fn check_blocks(&self, params: &Params, id: ParamId, format: GemmFormat) -> Result<(), String> {
        let Some(block) = format.block() else { return Ok(()) };
        let shard = &self.holdings[id.index()].shard;
        let whole =
            |part: &Range<usize>| part.start.is_multiple_of(block) && part.len().is_multiple_of(block);
        let [rows, cols] = shard.shape;
        let all_rows = shard.rows.iter().map(Range::len).sum::<usize>() == rows;
        let rows_fit = all_rows || shard.rows.iter().all(whole);
        if !(rows_fit && (shard.cols == (0..cols) || whole(&shard.cols))) {
            let (name, tp) = (&params.get(id).name, self.portion.tp);
            return Err(format!(
                "blocks of {block} would lie across the parts that mesh.tp={tp} makes of {name}; take a smaller tp, or a \
                 precision.gemm with smaller blocks or with scales of whole tensors"
            ));
        }
        Ok(())
    }
}
