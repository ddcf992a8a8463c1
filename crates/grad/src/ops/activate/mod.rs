//! Activation functions, plain or gated: `act(x)` or `act(gate) up` of a fused `[gate | up]` (Shazeer, 2020).

use fathom_tensor::{Activate as Call, ActivateBackward, Activation, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Activate {
    name: &'static str,
    kind: Activation,
    gated: bool,
    /// Parts of a row that are processed separately: the slots of a token.
    slots: usize,
}

impl Ctx<'_> {
    /// `act(x)`: x [t, f].
    pub fn activate(&mut self, name: &'static str, kind: Activation, x: Val) -> Val {
        only(self.apply(Activate { name, kind, gated: false, slots: 1 }, &[x], &[]))
    }

    /// `act(gate) up`: x [t, 2f] holds gate and up, the result is [t, f].
    ///
    /// # Panics
    /// If x has an odd number of columns.
    #[track_caller]
    pub fn gate(&mut self, name: &'static str, kind: Activation, x: Val) -> Val {
        self.gate_each(name, kind, x, 1)
    }

    /// [`Ctx::gate`] for each of a token's slots: x [t, k x 2f] to [t, k x f].
    ///
    /// # Panics
    /// If x does not have k x 2f columns.
    #[track_caller]
    pub fn gate_each(&mut self, name: &'static str, kind: Activation, x: Val, slots: usize) -> Val {
        only(self.apply(Activate { name, kind, gated: true, slots }, &[x], &[]))
    }
}

/// The slots of some tensors: as rows if there are no gaps, else one after the other.
fn by_slot<const N: usize>(tensors: [&Tensor; N], slots: usize) -> Vec<[Tensor; N]> {
    if slots == 1 {
        return vec![tensors.map(Tensor::clone)];
    }
    if tensors.iter().all(|tensor| tensor.is_contiguous()) {
        return vec![tensors.map(|tensor| tensor.reshape(tensor.rows() * slots, tensor.cols() / slots))];
    }
    let slot = |tensor: &Tensor, slot: usize| {
        let cols = tensor.cols() / slots;
        tensor.view_cols(slot * cols..(slot + 1) * cols)
    };
    (0..slots).map(|at| tensors.map(|tensor| slot(tensor, at))).collect()
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let cols = ins[0].cols;
        assert!(
            !self.gated || cols.is_multiple_of(2 * self.slots),
            "activate {}: x [t, {cols}] has no two halves in each of {} slots",
            self.name,
            self.slots
        );
        vec![Out::new(self.name, if self.gated { cols / 2 } else { cols }, ins[0].dtype)]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0], outs: vec![] }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let (kind, gated) = (self.kind, self.gated);
        for [from, out] in by_slot([&ins[0], &outs[0]], self.slots) {
            x.device.machine.activate(&Call { kind, gated, x: &from, out: &out });
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            let (kind, gated) = (self.kind, self.gated);
            for [from, dy, dx] in by_slot([saved.input(0), dy, &dx.tensor], self.slots) {
                x.device.machine.activate_backward(&ActivateBackward {
                    kind,
                    gated,
                    x: &from,
                    dy: &dy,
                    dx: &dx,
                });
            }
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
