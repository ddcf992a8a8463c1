//! The residual addition. Its gradient is the output's for both inputs, so nothing is computed backward.

use fathom_tensor::Tensor;

use super::{like, only};
use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Add {
    name: &'static str,
}

impl Ctx<'_> {
    /// `a + b`, both [t, d].
    ///
    /// # Panics
    /// If the shapes differ.
    #[track_caller]
    pub fn add(&mut self, name: &'static str, a: Val, b: Val) -> Val {
        only(self.apply(Add { name }, &[a, b], &[]))
    }
}

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        assert_eq!(ins[0], ins[1], "add {}: unequal inputs", self.name);
        like(self.name, ins[0])
    }

    fn backward(&self) -> Backward {
        Backward { passes: &[0, 1], accumulates: true, ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        x.device.machine.add(&ins[0], &ins[1], &outs[0]);
    }

    fn backward_input(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: &[Option<Dx>]) {}

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
