//! Token embedding, with learned positions added if a family has them.

use fathom_tensor::{Category, DType, Embed as Call, Tensor};

use super::only;
use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Embed {
    name: &'static str,
    dtype: DType,
    scale: f32,
    /// The id of the table's first row, if it is a part of a larger table.
    first: Option<usize>,
    /// Learned positions are added here; among ranks that share the work, one does this.
    positions: bool,
    /// Rows of a table of token types are added.
    types: bool,
}

impl Ctx<'_> {
    /// `scale x tokens[id] + positions[pos]`: tables [vocab, d] and [max_positions, d], packed or not. If documents are
    /// `led` by virtual tokens, those have no row.
    ///
    /// # Panics
    /// If the tables' widths differ.
    #[track_caller]
    pub fn embed(&mut self, tokens: ParamId, positions: Option<ParamId>, (scale, led): (f32, bool)) -> Val {
        let dtype = self.params.dtype(tokens);
        let params: Vec<ParamId> = [tokens].into_iter().chain(positions).collect();
        let (positions, types) = (positions.is_some(), false);
        let first = led.then_some(0);
        let op = Embed { name: "embed", dtype, scale, first, positions, types };
        let out = only(self.apply(op, &[], &params));
        self.takes_packed();
        out
    }

    /// A value with a table's rows [vocab, c] by token: `scale x table[id]`. Ids that it does not have give zeros.
    #[track_caller]
    pub fn embed_rows(&mut self, name: &'static str, table: ParamId, scale: f32) -> Val {
        let dtype = self.params.dtype(table);
        let op = Embed { name, dtype, scale, first: Some(0), positions: false, types: false };
        only(self.apply(op, &[], &[table]))
    }

    /// [`Ctx::embed`] with the vocabulary distributed over tensor parallel ranks: this one has the rows from `first`
    /// on, and `others_here` tells whether it adds positions and types: rows of a table given by [`Batch::types`], or its
    /// first row.
    ///
    /// # Panics
    /// If the tables' widths differ.
    #[track_caller]
    pub fn embed_parallel(
        &mut self,
        tokens: ParamId,
        [positions, types]: [Option<ParamId>; 2],
        (scale, led): (f32, bool),
        (first, others_here): (usize, bool),
    ) -> Val {
        let dtype = self.params.dtype(tokens);
        let params: Vec<ParamId> = [tokens].into_iter().chain(positions).chain(types).collect();
        let [positions, types] = [positions, types].map(|table| table.is_some() && others_here);
        if self.spread.ranks == 1 {
            let first = led.then_some(0);
            let op = Embed { name: "embed", dtype, scale, first, positions, types };
            let out = only(self.apply(op, &[], &params));
            self.takes_packed();
            return out;
        }
        self.rows(|cx| {
            let (name, first) = ("embed.part", Some(first));
            let op = Embed { name, dtype, scale, first, positions, types };
            let part = only(cx.apply(op, &[], &params));
            cx.takes_packed();
            cx.sum("embed", part)
        })
    }
}

impl Embed {
    /// Ids into each table, the factor, and the first row's id.
    fn tables(&self, x: &Exec<'_>) -> impl Iterator<Item = (Tensor, f32, Option<usize>)> + use<> {
        let rows = x.rows.clone();
        let tokens = (x.batch.ids.view_cols(rows.clone()), self.scale, self.first);
        let positions = self.positions.then(|| (x.batch.positions.view_cols(rows.clone()), 1.0, None));
        let first = || x.device.zeros(1, rows.len(), DType::I32, Category::Workspace);
        let of_batch = || x.batch.types.as_ref().map_or_else(first, |types| types.view_cols(rows.clone()));
        let types = self.types.then(|| (of_batch(), 1.0, None));
        [Some(tokens), positions, types].into_iter().flatten()
    }
}

impl Op for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    #[track_caller]
    fn outputs(&self, _: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        assert!(params.iter().all(|table| table[1] == params[0][1]), "embed: tables {params:?}");
        vec![Out::new(self.name, params[0][1], self.dtype)]
    }

    fn backward(&self) -> Backward {
        Backward { accumulates: true, ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, _: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        for (index, (table, (ids, scale, first))) in params.iter().zip(self.tables(x)).enumerate() {
            let (out, accumulate) = (&outs[0], index > 0);
            x.device.machine.embed(&Call { ids: &ids, table, scale, out, accumulate, first });
        }
    }

    fn backward_input(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: &[Option<Dx>]) {}

    fn backward_weight(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        for (dw, (ids, scale, first)) in dw.iter().zip(self.tables(x)) {
            if let Some(dw) = dw {
                x.device.machine.embed_backward(&ids, dy, scale, dw, first);
            }
        }
    }
}
