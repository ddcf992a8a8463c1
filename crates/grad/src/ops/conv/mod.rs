//! Causal depthwise convolution over the rows of each document, as before a state-space layer's scan (Gu and Dao,
//! "Mamba", 2023), with or without a SiLU.

use fathom_tensor::{Conv as Call, ConvBackward, ConvOperands, DocumentRuns, Tensor};

use super::{documents, like, only};
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Variant of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvUse {
    /// Whether the result is `x sigmoid(x)` of the sum.
    pub silu: bool,
    /// Name of its state in generation, [taps - 1, c]: the last rows of the input.
    pub state: &'static str,
}

struct Conv {
    name: &'static str,
    how: ConvUse,
}

impl Ctx<'_> {
    /// `act(bias + sum over k of weight[c, k] u[t - taps + 1 + k, c])` for u [t, c], weight [c, taps] and bias [1, c];
    /// rows before a document are zero. Rows are read in order, so this must be outside rows regions.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn conv(
        &mut self,
        name: &'static str,
        u: Val,
        weight: ParamId,
        bias: Option<ParamId>,
        how: ConvUse,
    ) -> Val {
        let params: Vec<ParamId> = [weight].into_iter().chain(bias).collect();
        only(self.apply(Conv { name, how }, &[u], &params))
    }
}

impl Conv {
    fn operands<'a>(
        &self,
        u: &'a Tensor,
        params: &'a [Tensor],
        documents: &'a DocumentRuns,
    ) -> ConvOperands<'a> {
        ConvOperands { u, weight: &params[0], bias: params.get(1), silu: self.how.silu, documents }
    }

    /// The gradients that are wanted.
    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &SavedValues,
        (dy, du): (&Tensor, Option<&Tensor>),
        dw: OptGrads<'_>,
    ) {
        let of = self.operands(saved.input(0), &saved.params, documents(x, "conv"));
        let [dweight, dbias] = [0, 1].map(|index| dw.get(index).and_then(Option::as_ref));
        x.device.machine.conv_backward(&ConvBackward { of, dy, du, dweight, dbias });
    }
}

impl Op for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([cols, taps], name) = (params[0], self.name);
        let fits = ins[0].cols == cols && params[1..].iter().all(|bias| *bias == [1, cols]);
        assert!(fits, "conv {name}: u [t, {}], weights {params:?}", ins[0].cols);
        assert!((2..=8).contains(&taps), "conv {name}: {taps} taps; there can be 2 to 8");
        like(name, ins[0])
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0], outs: vec![] }
    }

    fn backward(&self) -> Backward {
        Backward { together: true, ..Backward::PLAIN }
    }

    fn flops(&self, rows: usize, _: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let product = 2 * (rows * params[0][0] * params[0][1]) as u64;
        Flops { forward: product, input: product, weight: product, extra: product }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let states = super::states(x, "conv", self.how.state);
        let of = self.operands(&ins[0], params, documents(x, "conv"));
        x.device.machine.conv(&Call { of, states: &states, out: &outs[0] });
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let Some(dy) = &dy[0] {
            let dw = std::mem::take(&mut x.dw);
            self.backward(x, saved, (dy, dx[0].as_ref().map(|dx| &dx.tensor)), &dw);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let Some(dy) = &dy[0] {
            self.backward(x, saved, (dy, None), dw);
        }
    }
}
