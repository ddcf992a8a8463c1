//! `y = x W^T + b`, with W stored [out, in] as in checkpoints.

use fathom_tensor::{Category, DType, MatMul, Tensor};

use super::only;
use crate::narrow::{NarrowLinear, Pass};
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Linear {
    name: &'static str,
    /// True if the result is f32 whatever x is.
    wide: bool,
    /// Format of the products' operands, if they are quantized.
    narrow: Option<NarrowLinear>,
}

impl Ctx<'_> {
    /// `y = x W^T + b`: x [t, in], W [out, in], packed or not, b [1, out].
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn linear(&mut self, name: &'static str, x: Val, weight: ParamId, bias: Option<ParamId>) -> Val {
        let params: Vec<ParamId> = [weight].into_iter().chain(bias).collect();
        let narrow = self.params.narrow(weight);
        let y = only(self.apply(Linear { name, wide: false, narrow }, &[x], &params));
        self.takes_packed();
        y
    }

    /// [`Ctx::linear`] with an f32 result, for values that must not be rounded, such as a router's logits. Its gradient
    /// is rounded to the type of x for the products with the weight and x.
    #[track_caller]
    pub fn linear_wide(&mut self, name: &'static str, x: Val, weight: ParamId, bias: Option<ParamId>) -> Val {
        let params: Vec<ParamId> = [weight].into_iter().chain(bias).collect();
        let y = only(self.apply(Linear { name, wide: true, narrow: None }, &[x], &params));
        self.takes_packed();
        y
    }
}

/// A gradient in the type of the tensor that it is multiplied with.
fn like(x: &Exec<'_>, dy: &Tensor, other: &Tensor) -> Tensor {
    if dy.dtype() == other.dtype() {
        return dy.clone();
    }
    let narrow = x.device.empty(dy.rows(), dy.cols(), other.dtype(), Category::Workspace);
    x.device.machine.copy(dy, &narrow);
    narrow
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let [out, inner] = params[0];
        assert_eq!(
            ins[0].cols, inner,
            "linear {}: x [t, {}], weight [{out}, {inner}]",
            self.name, ins[0].cols
        );
        if let Some(bias) = params.get(1) {
            assert_eq!(*bias, [1, out], "linear {}: bias of weight [{out}, {inner}]", self.name);
        }
        vec![Out::new(self.name, out, if self.wide { DType::F32 } else { ins[0].dtype })]
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.weights { vec![0] } else { vec![] }, outs: vec![] }
    }

    fn backward(&self) -> Backward {
        Backward { writes_weight: true, ..Backward::PLAIN }
    }

    fn flops(&self, rows: usize, _: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let product = 2 * rows as u64 * params[0][0] as u64 * params[0][1] as u64;
        Flops { forward: product, input: product, weight: product, extra: 0 }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (a, b, c) = (&x.begin_rows(&ins[0]), &params[0], &outs[0]);
        let op = MatMul { a, a_trans: false, b, b_trans: true, c, accumulate: false };
        x.product(self.narrow.as_ref(), Pass::Forward, op);
        x.add_row_terms(a, c);
        x.rescale_rows(c);
        if let Some(bias) = params.get(1) {
            x.add_biases(c, bias);
        }
        x.finish_rows(c);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            let b = &saved.params[0];
            let dy = &like(x, dy, b);
            let op = MatMul { a: dy, a_trans: false, b, b_trans: false, c: &dx.tensor, accumulate: false };
            x.product(self.narrow.as_ref(), Pass::Input, op);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        if let Some(dw) = &dw[0] {
            let b = saved.input(0);
            let dy = &like(x, dy, b);
            let op = MatMul { a: dy, a_trans: true, b, b_trans: false, c: dw, accumulate: x.adds };
            x.product(self.narrow.as_ref(), Pass::Weight, op);
        }
        if let Some(Some(dbias)) = dw.get(1) {
            x.device.machine.bias_backward(dy, dbias);
        }
    }
}
