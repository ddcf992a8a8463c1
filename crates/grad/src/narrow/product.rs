//! A product of a linear layer whose operands may be rounded to fewer bits first.

use fathom_tensor::{AmaxHistory, MatMul, NarrowMatMul, NarrowOperand};

use super::{NarrowLinear, Pass};
use crate::op::Exec;

impl Exec<'_> {
    /// One of the products of a linear layer, with its scratch.
    #[track_caller]
    pub(crate) fn product(&self, narrow: Option<&NarrowLinear>, pass: Pass, product: MatMul<'_>) {
        let Some(NarrowLinear { format, seen }) = narrow else { return self.matmul(product) };
        let (roles, hows) = (pass.roles(), format.operands(pass));
        let cells = roles.map(|role| {
            let at = role as usize;
            seen.as_ref().map(|seen| seen.each_ref().map(|x| x.view_cols(at..at + 1)))
        });
        let [a, b] = [0, 1].map(|side| {
            let delayed = cells[side].as_ref().map(|[before, now]| {
                // Evaluation does not affect the history.
                AmaxHistory { before, now: self.trains.then_some(now) }
            });
            NarrowOperand { how: hows[side], delayed }
        });
        let op = NarrowMatMul { product, a, b };
        let ws = self.workspace(self.device.machine.profile().workspace(&op.desc()));
        self.device.machine.narrow_matmul(&op, &ws);
    }
}
