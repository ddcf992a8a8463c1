//! Splits a fused q, k, v projection into three, rotating q and k if a rotation is given.

use std::ops::Range;

use fathom_tensor::Tensor;

use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::ops::rope::RopeUse;
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Split {
    names: [&'static str; 3],
    widths: [usize; 3],
    rope: Option<RopeUse>,
}

impl Ctx<'_> {
    /// `[q | k | v]` of `widths` columns to three tensors; q and k are rotated if `rope` is given.
    ///
    /// # Panics
    /// If the widths do not add up to x's columns.
    #[track_caller]
    pub fn split(
        &mut self,
        names: [&'static str; 3],
        x: Val,
        widths: [usize; 3],
        rope: Option<RopeUse>,
    ) -> [Val; 3] {
        let outs = self.apply(Split { names, widths, rope }, &[x], &[]);
        [outs[0], outs[1], outs[2]]
    }
}

impl Split {
    fn columns(&self) -> [Range<usize>; 3] {
        let [q, k, v] = self.widths;
        [0..q, q..q + k, q + k..q + k + v]
    }

    fn rope_of(&self, part: usize) -> Option<RopeUse> {
        self.rope.filter(|_| part < 2)
    }
}

impl Op for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let total: usize = self.widths.iter().sum();
        assert_eq!(
            ins[0].cols, total,
            "split {:?}: x [t, {}], widths {:?}",
            self.names, ins[0].cols, self.widths
        );
        let out = |part: usize| Out::new(self.names[part], self.widths[part], ins[0].dtype);
        (0..3).map(out).collect()
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        for (part, range) in self.columns().into_iter().enumerate() {
            let from = ins[0].view_cols(range);
            match self.rope_of(part) {
                Some(rope) => rope.run(x, &from, &outs[part], false, false),
                None => x.device.machine.copy(&from, &outs[part]),
            }
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dx) = &dx[0] else { return };
        for (part, range) in self.columns().into_iter().enumerate() {
            let Some(dy) = &dy[part] else { continue };
            let into = dx.tensor.view_cols(range);
            match self.rope_of(part) {
                Some(rope) => rope.run(x, dy, &into, true, false),
                None => x.device.machine.copy(dy, &into),
            }
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
