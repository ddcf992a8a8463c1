//! RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016), with the weight forms of the families.
//!
//! If the weight is narrower than x, each group of its width is normalised separately (per-head q and k norms).

use fathom_tensor::{Category, DType, Norm as Call, NormBackward, NormKind, Tensor};

use crate::op::{Backward, Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Norm {
    /// Names of the output and of its statistics.
    names: [&'static str; 2],
    kind: NormKind,
}

impl Ctx<'_> {
    /// Normalises each group of `weight` columns of x [t, groups x width]; weight and bias [1, width]. `names` are
    /// those of the output and of its statistics.
    ///
    /// # Panics
    /// If the width does not divide x's columns.
    #[track_caller]
    pub fn norm(
        &mut self,
        names: [&'static str; 2],
        x: Val,
        kind: NormKind,
        weight: ParamId,
        bias: Option<ParamId>,
    ) -> Val {
        let params: Vec<ParamId> = [weight].into_iter().chain(bias).collect();
        self.apply(Norm { names, kind }, &[x], &params)[0]
    }
}

impl Norm {
    fn backward<'a>(&self, saved: &'a SavedValues, dy: &'a Tensor) -> NormBackward<'a> {
        NormBackward {
            kind: self.kind,
            x: saved.input(0),
            weight: &saved.params[0],
            stats: saved.output(1),
            dy,
        }
    }
}

impl Op for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let width = params[0][1];
        let fits = params.iter().all(|shape| *shape == [1, width]) && ins[0].cols.is_multiple_of(width);
        assert!(fits, "norm {}: x [t, {}], weights {params:?}", self.names[0], ins[0].cols);
        let per_group = if self.kind.centred { 2 } else { 1 };
        let stats = Out::statistic(self.names[1], ins[0].cols / width * per_group);
        vec![Out::new(self.names[0], ins[0].cols, ins[0].dtype), stats]
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0], outs: vec![1] }
    }

    fn backward(&self) -> Backward {
        Backward { accumulates: true, ..Backward::PLAIN }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (kind, weight, bias) = (self.kind, &params[0], params.get(1));
        x.device.machine.norm(&Call { kind, x: &ins[0], weight, bias, out: &outs[0], stats: &outs[1] });
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            x.device.machine.norm_backward_input(&self.backward(saved, dy), &dx.tensor, dx.accumulate);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        let dbias = dw.get(1).and_then(Option::as_ref);
        // Both are computed together; if only the bias is trained, the weight's gradient goes to scratch.
        let scratch = || {
            let width = saved.params[0].cols();
            x.device.zeros(1, width, DType::F32, Category::Workspace)
        };
        let dweight = dw[0].clone().unwrap_or_else(scratch);
        x.device.machine.norm_backward_weight(&self.backward(saved, dy), &dweight, dbias);
    }
}
