//! Multiplication by a constant (Granite's residual multiplier).

use fathom_tensor::Tensor;

use super::{like, only};
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Scale {
    name: &'static str,
    factor: f32,
}

impl Ctx<'_> {
    /// `factor x`; x itself if the factor is one.
    pub fn scale(&mut self, name: &'static str, x: Val, factor: f32) -> Val {
        if factor == 1.0 { x } else { only(self.apply(Scale { name, factor }, &[x], &[])) }
    }
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        like(self.name, ins[0])
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        x.device.machine.scale(&ins[0], self.factor, &outs[0]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            x.device.machine.scale(dy, self.factor, &dx.tensor);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
