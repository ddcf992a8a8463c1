//! Token embedding, with learned positions added where a family has them.

use fathom_tensor::{Embed as Call, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Flops, Op, Out, Saved, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Embed {
    dtype: fathom_tensor::DType,
    scale: f32,
}

impl Ctx<'_> {
    /// `scale x tokens[id] + positions[pos]`: tables [vocab, d] and [max_positions, d].
    ///
    /// # Panics
    /// If the tables' widths differ.
    #[track_caller]
    pub fn embed(&mut self, tokens: ParamId, positions: Option<ParamId>, scale: f32) -> Val {
        let dtype = self.params.dtype(tokens);
        let params: Vec<ParamId> = [tokens].into_iter().chain(positions).collect();
        only(self.apply(Embed { dtype, scale }, &[], &params))
    }
}

impl Embed {
    /// Ids into each table, and the factor.
    fn tables(&self, x: &Exec<'_>) -> [(Tensor, f32); 2] {
        let rows = x.rows.clone();
        [(x.batch.ids.view_cols(rows.clone()), self.scale), (x.batch.positions.view_cols(rows), 1.0)]
    }
}

impl Op for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    #[track_caller]
    fn outputs(&self, _: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        assert!(params.iter().all(|table| table[1] == params[0][1]), "embed: tables {params:?}");
        vec![Out::new("embed", params[0][1], self.dtype)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves::default()
    }

    fn passes(&self) -> &'static [usize] {
        &[]
    }

    fn accumulates(&self) -> bool {
        true
    }

    fn flops(&self, _: usize, _: &[Desc], _: &[[usize; 2]], _: &Batch) -> Flops {
        Flops::default()
    }

    fn forward(&self, x: &mut Exec<'_>, _: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        for (index, (table, (ids, scale))) in params.iter().zip(self.tables(x)).enumerate() {
            x.device.machine.embed(&Call { ids: &ids, table, scale, out: &outs[0], accumulate: index > 0 });
        }
    }

    fn backward_input(&self, _: &mut Exec<'_>, _: &Saved, _: &[Option<Tensor>], _: &[Option<Dx>]) {}

    fn backward_weight(&self, x: &mut Exec<'_>, _: &Saved, dy: &[Option<Tensor>], dw: &[Option<Tensor>]) {
        let Some(dy) = &dy[0] else { return };
        for (dw, (ids, scale)) in dw.iter().zip(self.tables(x)) {
            if let Some(dw) = dw {
                x.device.machine.embed_backward(&ids, dy, scale, dw);
            }
        }
    }
}
