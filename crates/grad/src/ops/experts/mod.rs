//! A linear layer of many experts: each of a token's k slots is multiplied with the weight of its expert. Rows are not
//! permuted: the results of a token's slots are adjacent, [t, k x out], and kernels gather the rows of an expert.

use fathom_tensor::{Category, Combine, DType, Embed, GroupedMatMul, GroupedWeight, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

mod low;
#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

pub(crate) use low::Terms;
pub use low::{ExpertTerm, ExpertWeights};

/// Weights of a linear layer of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsUse {
    /// Number of experts.
    pub experts: usize,
    /// True if each weight is stored [out, in], as in a linear layer; else [in, out], as in gpt-oss.
    pub trans: bool,
}

struct Experts {
    name: &'static str,
    how: ExpertsUse,
    bias: bool,
    terms: Terms,
}

impl Ctx<'_> {
    /// `y = x W_e^T + b_e` for each slot: x [t, in], which a token's slots share, or [t, k x in]; index i32 [t, k]; W
    /// [experts x out, in], packed or not; b [experts, out]; y [t, k x out]. An empty slot gives zeros.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn experts(
        &mut self,
        name: &'static str,
        [x, index]: [Val; 2],
        how: ExpertsUse,
        weight: ParamId,
        bias: Option<ParamId>,
    ) -> Val {
        self.adapted_experts(name, [x, index], how, (weight, bias).into())
    }

    /// [`Ctx::experts`] with the low-rank terms of the weights' adapter.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn adapted_experts(
        &mut self,
        name: &'static str,
        [x, index]: [Val; 2],
        how: ExpertsUse,
        weights: ExpertWeights,
    ) -> Val {
        let ExpertWeights { weight, bias, .. } = weights;
        let terms = Terms::new(&weights, 1 + usize::from(bias.is_some()), (how.experts, 1));
        let params: Vec<ParamId> = [weight].into_iter().chain(bias).chain(weights.low()).collect();
        let y = only(self.apply(Experts { name, how, bias: bias.is_some(), terms }, &[x, index], &params));
        self.takes_packed();
        y
    }
}

impl Experts {
    /// Columns of a slot: of x and of the result.
    fn widths(&self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        let own = rows / self.how.experts.max(1);
        if self.how.trans { [cols, own] } else { [own, cols] }
    }

    fn multiply(&self, x: &Exec<'_>, op: &GroupedMatMul<'_>) {
        let ws = x.workspace(x.device.machine.profile().workspace(&op.desc()));
        x.device.machine.grouped_matmul(op, &ws);
    }
}

/// A token's slots as rows; a tensor with gaps is copied.
pub(super) fn by_slot(x: &Exec<'_>, tensor: &Tensor, slots: usize) -> Tensor {
    let mut plain = tensor.clone();
    if !tensor.is_contiguous() {
        plain = x.device.empty(tensor.rows(), tensor.cols(), tensor.dtype(), Category::Workspace);
        x.device.machine.copy(tensor, &plain);
    }
    plain.reshape(tensor.rows() * slots, tensor.cols() / slots)
}

impl Op for Experts {
    fn name(&self) -> &'static str {
        "experts"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([inner, out], slots, experts) = (self.widths(params[0]), ins[1].cols, self.how.experts);
        let fits = experts > 0
            && params[0][0].is_multiple_of(experts)
            && (ins[0].cols == inner || ins[0].cols == slots * inner)
            && ins[1].dtype == DType::I32
            && (!self.bias || params[1] == [experts, out])
            && self.terms.fit(params, [inner, out]);
        assert!(
            fits,
            "experts {}: x [t, {}], index [t, {slots}], {experts} of weights and biases {params:?}",
            self.name, ins[0].cols
        );
        vec![Out::new(self.name, slots * out, ins[0].dtype)]
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.weights { vec![0, 1] } else { vec![1] }, outs: vec![] }
    }

    fn flops(&self, rows: usize, ins: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let [inner, out] = self.widths(params[0]);
        let slots = (rows * ins[1].cols) as u64;
        let product = 2 * slots * inner as u64 * out as u64;
        let flops = Flops { forward: product, input: product, weight: product, extra: 0 };
        self.terms.flops(slots, params, flops)
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let ExpertsUse { experts, trans } = self.how;
        let (index, c) = (&ins[1], &outs[0]);
        self.multiply(x, &GroupedMatMul { a: &ins[0], weights: &params[0], experts, trans, index, c });
        self.terms.add(x, params, [&ins[0], index, c]);
        if let Some(table) = params.get(1).filter(|_| self.bias) {
            let (ids, out) = (index.reshape(1, index.len()), by_slot(x, c, index.cols()));
            x.device.machine.embed(&Embed {
                ids: &ids,
                table,
                scale: 1.0,
                out: &out,
                accumulate: true,
                first: Some(0),
            });
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        let ExpertsUse { experts, trans } = self.how;
        let (index, weights) = (saved.input(1), &saved.params[0]);
        let [inner, _] = self.widths(weights.shape());
        let slots = index.cols();
        let call = |c| GroupedMatMul { a: dy, weights, experts, trans: !trans, index, c };
        let own = dx.tensor.cols() == slots * inner;
        if own && (self.terms.is_empty() || dx.tensor.is_contiguous()) {
            self.multiply(x, &call(&dx.tensor));
            return self.terms.input(x, &saved.params, [dy, index, &dx.tensor]);
        }
        let each = x.device.empty(dy.rows(), slots * inner, dx.tensor.dtype(), Category::Workspace);
        self.multiply(x, &call(&each));
        self.terms.input(x, &saved.params, [dy, index, &each]);
        if own {
            return x.device.machine.copy(&each, &dx.tensor);
        }
        x.device.machine.combine(&Combine { y: &each, weights: None, out: &dx.tensor });
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let Some(dy) = &dy[0] else { return };
        let index = saved.input(1);
        if let Some(c) = &dw[0] {
            let from = saved.input(0);
            let [a, b] = if self.how.trans { [dy, from] } else { [from, dy] };
            let op = GroupedWeight { a, b, index, experts: self.how.experts, c };
            let ws = x.workspace(x.device.machine.profile().workspace(&op.desc()));
            x.device.machine.grouped_weight(&op, &ws);
        }
        self.terms.gradients(x, &saved.params, [saved.input(0), index, dy], dw);
        if let Some(Some(dbias)) = dw.get(1).filter(|_| self.bias) {
            let (ids, dy) = (index.reshape(1, index.len()), by_slot(x, dy, index.cols()));
            x.device.machine.embed_backward(&ids, &dy, 1.0, dbias, Some(0));
        }
    }
}
