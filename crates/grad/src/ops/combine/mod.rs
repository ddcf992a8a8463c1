//! The weighted sum of the outputs of a token's experts.

use fathom_tensor::{Combine as Call, CombineBackward, DType, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Combine {
    name: &'static str,
}

impl Ctx<'_> {
    /// `sum over slots of weight x y`: y [t, k x d], weights f32 [t, k], the result [t, d].
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn combine(&mut self, name: &'static str, y: Val, weights: Val) -> Val {
        only(self.apply(Combine { name }, &[y, weights], &[]))
    }
}

impl Op for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let (cols, slots) = (ins[0].cols, ins[1].cols);
        assert!(
            slots > 0 && cols.is_multiple_of(slots) && ins[1].dtype == DType::F32,
            "combine {}: y [t, {cols}], {:?} weights [t, {slots}]",
            self.name,
            ins[1].dtype
        );
        vec![Out::new(self.name, cols / slots, ins[0].dtype)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1], outs: vec![] }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        x.device.machine.combine(&Call { y: &ins[0], weights: Some(&ins[1]), out: &outs[0] });
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dout) = &dy[0] else { return };
        let target = |index: usize| dx[index].as_ref().map(|dx: &Dx| &dx.tensor);
        x.device.machine.combine_backward(&CombineBackward {
            y: saved.input(0),
            weights: saved.input(1),
            dout,
            dy: target(0),
            dweights: target(1),
        });
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
