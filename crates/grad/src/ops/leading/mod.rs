//! Rows of a value [n, c] at virtual tokens, which precede a document and have ids from [`VIRTUAL`] on: they are added,
//! like the embeddings of prompt tuning (Lester et al., 2021), or replace the existing rows, like the keys and values
//! of prefix tuning (Li and Liang, 2021).

use fathom_tensor::{Category, DType, Embed as Call, Tensor};

use super::{like, only};
use crate::batch::VIRTUAL;
use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, Val};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

struct LeadingOp {
    name: &'static str,
    replaces: bool,
}

impl Ctx<'_> {
    /// `x` [t, c] with row `id - VIRTUAL` of `rows` [n, c] added at virtual tokens, where `x` has no embedding.
    #[track_caller]
    pub fn add_leading(&mut self, name: &'static str, x: Val, rows: Val) -> Val {
        only(self.apply(LeadingOp { name, replaces: false }, &[x, rows], &[]))
    }

    /// `x` [t, c] with its rows at virtual tokens replaced by row `id - VIRTUAL` of `rows` [n, c].
    #[track_caller]
    pub fn put_leading(&mut self, name: &'static str, x: Val, rows: Val) -> Val {
        only(self.apply(LeadingOp { name, replaces: true }, &[x, rows], &[]))
    }
}

impl Op for LeadingOp {
    fn name(&self) -> &'static str {
        "leading"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        assert!(ins[0].cols == ins[1].cols, "leading {}: {ins:?}", self.name);
        like(self.name, ins[0])
    }

    fn backward(&self) -> Backward {
        Backward { passes: if self.replaces { &[] } else { &[0] }, ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let out = &outs[0];
        if self.replaces {
            text(x, &ins[0], out);
        } else {
            x.device.machine.copy(&ins[0], out);
        }
        let (ids, table) = (&x.batch.ids.view_cols(x.rows.clone()), &ins[1]);
        let first = Some(VIRTUAL);
        x.device.machine.embed(&Call { ids, table, scale: 1.0, out, accumulate: true, first });
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dy) = &dy[0] else { return };
        if let (Some(dx), true) = (&dx[0], self.replaces) {
            text(x, dy, &dx.tensor);
        }
        if let Some(Dx { tensor, .. }) = &dx[1] {
            let sums = x.device.zeros(tensor.rows(), tensor.cols(), DType::F32, Category::Workspace);
            let ids = x.batch.ids.view_cols(x.rows.clone());
            x.device.machine.embed_backward(&ids, dy, 1.0, &sums, Some(VIRTUAL));
            x.device.machine.copy(&sums, tensor);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

/// `out` = the rows of `from` at text tokens, and zeros at virtual tokens.
#[track_caller]
fn text(x: &Exec<'_>, from: &Tensor, out: &Tensor) {
    let Some(text) = &x.batch.text else { panic!("leading: the batch does not say which tokens are text") };
    let (ids, first) = (&text.view_cols(x.rows.clone()), Some(x.rows.start));
    x.device.machine.embed(&Call { ids, table: from, scale: 1.0, out, accumulate: false, first });
}
