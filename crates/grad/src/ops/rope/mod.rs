//! Rotary position embedding (Su et al., 2021) of the batch's tables.

use fathom_tensor::{Rope as Call, Tensor};

use super::{like, only};
use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// The rotation of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeUse {
    /// Index of the batch's table.
    pub table: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// True if pairs are adjacent columns instead of halves.
    pub interleaved: bool,
}

impl RopeUse {
    /// Rotates `from` into `out` (adding if `accumulate`), or back if `inverse`.
    pub(super) fn run(self, x: &Exec<'_>, from: &Tensor, out: &Tensor, inverse: bool, accumulate: bool) {
        let table = x.batch.ropes[self.table].rows(x.device, &x.batch.positions, x.rows.clone());
        let (head_dim, interleaved) = (self.head_dim, self.interleaved);
        x.device.machine.rope(&Call {
            x: from,
            out,
            table: &table,
            head_dim,
            interleaved,
            inverse,
            accumulate,
        });
    }
}

struct Rope {
    name: &'static str,
    rope: RopeUse,
}

impl Ctx<'_> {
    /// Rotates each head of x [t, heads x head_dim] by its token's position.
    #[track_caller]
    pub fn rope(&mut self, name: &'static str, x: Val, rope: RopeUse) -> Val {
        only(self.apply(Rope { name, rope }, &[x], &[]))
    }
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let head_dim = self.rope.head_dim;
        assert!(
            ins[0].cols.is_multiple_of(head_dim),
            "rope {}: x [t, {}], heads of {head_dim}",
            self.name,
            ins[0].cols
        );
        like(self.name, ins[0])
    }

    fn backward(&self) -> Backward {
        Backward { accumulates: true, ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        self.rope.run(x, &ins[0], &outs[0], false, false);
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            self.rope.run(x, dy, &dx.tensor, true, dx.accumulate);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
