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

struct Split<const N: usize> {
    names: [&'static str; N],
    widths: [usize; N],
    rope: Option<RopeUse>,
}

impl Ctx<'_> {
    /// Columns of these `widths` to a tensor each, such as `[q | k | v]`; the first two are rotated if `rope` is given.
    ///
    /// # Panics
    /// If the widths do not add up to x's columns.
    #[track_caller]
    pub fn split<const N: usize>(
        &mut self,
        names: [&'static str; N],
        x: Val,
        widths: [usize; N],
        rope: Option<RopeUse>,
    ) -> [Val; N] {
        let outs = self.apply(Split { names, widths, rope }, &[x], &[]);
        std::array::from_fn(|part| outs[part])
    }
}

impl<const N: usize> Split<N> {
    fn columns(&self) -> [Range<usize>; N] {
        let mut end = 0;
        self.widths.map(|width| {
            end += width;
            end - width..end
        })
    }

    fn rope_of(&self, part: usize) -> Option<RopeUse> {
        self.rope.filter(|_| part < 2)
    }
}

impl<const N: usize> Op for Split<N> {
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
        (0..N).map(out).collect()
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
