//! All rows of a weight as a value with as many rows, whatever the tokens.

use fathom_tensor::{Category, Embed as Call, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Table {
    name: &'static str,
    dtype: fathom_tensor::DType,
}

impl Ctx<'_> {
    /// The rows of a weight [n, d], for operations outside rows regions.
    pub fn table(&mut self, name: &'static str, weight: ParamId) -> Val {
        let dtype = self.params.dtype(weight);
        only(self.apply(Table { name, dtype }, &[], &[weight]))
    }
}

impl Op for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn outputs(&self, _: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let [rows, cols] = params[0];
        vec![Out { rows: Some(rows), ..Out::new(self.name, cols, self.dtype) }]
    }

    fn forward(&self, x: &mut Exec<'_>, _: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (ids, table, out) = (&all(x, &params[0]), &params[0], &outs[0]);
        x.device.machine.embed(&Call { ids, table, scale: 1.0, out, accumulate: false, first: None });
    }

    fn backward_input(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: &[Option<Dx>]) {}

    fn backward_weight(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let (Some(dy), Some(dw)) = (&dy[0], &dw[0]) {
            x.device.machine.embed_backward(&all(x, dw), dy, 1.0, dw, None);
        }
    }
}

/// The ids of all rows of a table.
fn all(x: &Exec<'_>, table: &Tensor) -> Tensor {
    x.device.from_i32(&(0..table.rows() as i32).collect::<Vec<_>>(), Category::Workspace)
}
