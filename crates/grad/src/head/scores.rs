//! A second head: a few numbers per token (a value, a reward, a class) by a projection of the hidden states.

use fathom_tensor::{Category, DType, MatMul, Tensor};

use crate::grads::Grads;
use crate::param_id::ParamId;
use crate::params::Weights;
use crate::scope::Scope;

/// The projection to a few numbers per token. Every rank has all of it.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// [k, d].
    pub weight: ParamId,
    /// [1, k].
    pub bias: Option<ParamId>,
}

impl Scores {
    fn weights<'a>(&self, scope: &Scope<'a>) -> Weights<'a> {
        let weights = scope.params.fetch(scope.device, [self.weight].into_iter().chain(self.bias));
        weights.wait();
        weights
    }

    /// f32 [r, k] for the rows x [r, d].
    pub fn values(&self, scope: &Scope<'_>, x: &Tensor) -> Tensor {
        let device = scope.device;
        let _weights = self.weights(scope);
        device.pool.enter("scores", -1);
        let weight = &scope.params.tensor(self.weight);
        let values = device.empty(x.rows(), weight.rows(), DType::F32, Category::Activations);
        let op = MatMul { a: x, a_trans: false, b: weight, b_trans: true, c: &values, accumulate: false };
        matmul(scope, op);
        if let Some(bias) = self.bias {
            device.machine.add_bias(&values, &scope.params.tensor(bias));
        }
        values
    }

    /// Adds the gradients of a loss whose derivative by the values is `dvalues`, f32 [r, k]: to `dx` [r, d] and to
    /// those of the projection. For products, `dvalues` is converted to the type of x.
    pub fn backward(&self, scope: &Scope<'_>, x: &Tensor, dvalues: &Tensor, dx: &Tensor, grads: &mut Grads) {
        let device = scope.device;
        let _weights = self.weights(scope);
        grads.enter(device, &[self.weight].into_iter().chain(self.bias).collect::<Vec<_>>());
        device.pool.enter("scores", -1);
        let narrow = device.empty(dvalues.rows(), dvalues.cols(), x.dtype(), Category::Activations);
        device.machine.copy(dvalues, &narrow);
        let weight = &scope.params.tensor(self.weight);
        let more = device.empty(x.rows(), x.cols(), x.dtype(), Category::Activations);
        let op =
            MatMul { a: &narrow, a_trans: false, b: weight, b_trans: false, c: &more, accumulate: false };
        matmul(scope, op);
        device.machine.add(dx, &more, dx);
        if let Some((c, accumulate)) = &grads.receive(device, self.weight, true) {
            let accumulate = *accumulate;
            matmul(scope, MatMul { a: &narrow, a_trans: true, b: x, b_trans: false, c, accumulate });
        }
        if let Some((dbias, _)) = self.bias.and_then(|bias| grads.receive(device, bias, false)) {
            device.machine.bias_backward(&narrow, &dbias);
        }
    }
}

fn matmul(scope: &Scope<'_>, op: MatMul<'_>) {
    let bytes = scope.device.machine.profile().workspace(&op.desc());
    let ws = scope.device.empty(1, bytes as usize, DType::U8, Category::Workspace);
    let flops = 2 * (op.a.len() * op.c.len() / op.c.rows().min(op.a.rows()).max(1)) as u64;
    scope.counters.add(flops, flops);
    scope.counters.span("scores", " matmul", -1, || scope.device.machine.matmul(&op, &ws));
}
