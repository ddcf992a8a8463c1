//! Activation functions, plain or gated: `act(x)` or `act(gate) up` of a fused `[gate | up]` (Shazeer, 2020).

use fathom_tensor::{Activate as Call, ActivateBackward, Activation, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Flops, Op, Out, Saved, Saves, Want};
use crate::{Batch, Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Activate {
    name: &'static str,
    kind: Activation,
    gated: bool,
}

impl Ctx<'_> {
    /// `act(x)`: x [t, f].
    pub fn activate(&mut self, name: &'static str, kind: Activation, x: Val) -> Val {
        only(self.apply(Activate { name, kind, gated: false }, &[x], &[]))
    }

    /// `act(gate) up`: x [t, 2f] holds gate and up, the result is [t, f].
    ///
    /// # Panics
    /// If x has an odd number of columns.
    #[track_caller]
    pub fn gate(&mut self, name: &'static str, kind: Activation, x: Val) -> Val {
        only(self.apply(Activate { name, kind, gated: true }, &[x], &[]))
    }
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let cols = ins[0].cols;
        assert!(
            !self.gated || cols.is_multiple_of(2),
            "activate {}: x [t, {cols}] has no two halves",
            self.name
        );
        vec![Out::new(self.name, if self.gated { cols / 2 } else { cols }, ins[0].dtype)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0], outs: vec![] }
    }

    fn passes(&self) -> &'static [usize] {
        &[]
    }

    fn accumulates(&self) -> bool {
        false
    }

    fn flops(&self, _: usize, _: &[Desc], _: &[[usize; 2]], _: &Batch) -> Flops {
        Flops::default()
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let (kind, gated) = (self.kind, self.gated);
        x.device.machine.activate(&Call { kind, gated, x: &ins[0], out: &outs[0] });
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &Saved, dy: &[Option<Tensor>], dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            let (kind, gated) = (self.kind, self.gated);
            x.device.machine.activate_backward(&ActivateBackward {
                kind,
                gated,
                x: saved.input(0),
                dy,
                dx: &dx.tensor,
            });
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &Saved, _: &[Option<Tensor>], _: &[Option<Tensor>]) {}
}
