//! RMSNorm with a gate: of `y silu(z)`, as in Mamba-2 (Dao and Gu, 2024), or of y, and then times `silu(z)`, as in gated
//! DeltaNet (Yang et al., 2024); or the gate alone.

use fathom_tensor::{Category, DType, GatedNorm as Call, GatedNormBackward, GatedNormOperands, Tensor};

use super::{like, only};
use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Variant of a gated norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNormUse {
    /// Whether y is gated before it is normalised, instead of after.
    pub gate_first: bool,
    /// Columns that are normalised together.
    pub width: usize,
    /// Added to the mean square.
    pub eps: f32,
}

struct GatedNorm {
    name: &'static str,
    how: GatedNormUse,
}

impl Ctx<'_> {
    /// Normalises each `width` columns of y [t, c], gated by z [t, c]. The weight is [1, c], or [1, width] for all
    /// groups; without it y is only gated.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn gated_norm(
        &mut self,
        name: &'static str,
        y: Val,
        z: Val,
        weight: Option<ParamId>,
        how: GatedNormUse,
    ) -> Val {
        let params: Vec<ParamId> = weight.into_iter().collect();
        only(self.apply(GatedNorm { name, how }, &[y, z], &params))
    }
}

impl GatedNorm {
    fn operands<'a>(&self, [y, z]: [&'a Tensor; 2], params: &'a [Tensor]) -> GatedNormOperands<'a> {
        let GatedNormUse { gate_first, width, eps } = self.how;
        GatedNormOperands { y, z, weight: params.first(), width, gate_first, eps }
    }

    /// The gradients that are wanted.
    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &SavedValues,
        (dout, [dy, dz]): (&Tensor, [Option<&Tensor>; 2]),
        dw: OptGrads<'_>,
    ) {
        let of = self.operands([0, 1].map(|index| saved.input(index)), &saved.params);
        let bytes = x.device.machine.profile().workspace(&of.desc());
        let ws = x.device.empty(1, bytes as usize, DType::U8, Category::Workspace);
        let dweight = dw.first().and_then(Option::as_ref);
        x.device.machine.gated_norm_backward(&GatedNormBackward { of, dout, dy, dz, dweight }, &ws);
    }
}

impl Op for GatedNorm {
    fn name(&self) -> &'static str {
        "gated norm"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (name, cols, width) = (self.name, ins[0].cols, self.how.width);
        let whole = width > 0 && cols.is_multiple_of(width) && ins[1] == ins[0];
        let fits = params.iter().all(|weight| *weight == [1, cols] || *weight == [1, width]);
        assert!(
            whole && fits,
            "gated norm {name}: y [t, {cols}], z [t, {}], groups of {width}, weights {params:?}",
            ins[1].cols
        );
        like(name, ins[0])
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0, 1], outs: vec![] }
    }

    fn backward(&self) -> Backward {
        Backward { together: true, ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let of = self.operands([&ins[0], &ins[1]], params);
        x.device.machine.gated_norm(&Call { of, out: &outs[0] });
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let Some(dout) = &dy[0] {
            let dw = std::mem::take(&mut x.dw);
            let dx = [0, 1].map(|index| dx[index].as_ref().map(|dx| &dx.tensor));
            self.backward(x, saved, (dout, dx), &dw);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let Some(dout) = &dy[0] {
            self.backward(x, saved, (dout, [None, None]), dw);
        }
    }
}
