//! Projections of hidden states to another width, which are trained by distillation: each `y = x W^T`, stacked in one
//! weight. Every rank has all of it.

use fathom_tensor::{Category, DType, Device, MatMul, Tensor};

use crate::grads::Grads;
use crate::param_id::ParamId;
use crate::scope::Scope;

/// The weight of all projections.
#[derive(Clone, Copy, Debug)]
pub struct Projections {
    /// [projections x k, d].
    pub weight: ParamId,
    /// Columns of each projection, k.
    pub columns: usize,
}

/// The projections with their weight in memory, for places where weights cannot be fetched.
#[derive(Clone, Debug)]
pub struct ResidentProjections {
    weight: Tensor,
    columns: usize,
}

/// Input of a projection and the gradient of its output, for the gradient of its weight.
#[derive(Debug)]
pub struct ProjectedState {
    /// Index of the projection.
    pub index: usize,
    /// [r, d].
    pub x: Tensor,
    /// [r, k].
    pub dy: Tensor,
}

impl Projections {
    /// Fetches the weight into memory, for as long as the result lives.
    pub fn fetch(&self, scope: &Scope<'_>) -> ResidentProjections {
        let weights = scope.params.fetch(scope.device, [self.weight]);
        weights.wait();
        ResidentProjections { weight: scope.params.tensor(self.weight), columns: self.columns }
    }

    /// Adds the gradients of the weight.
    pub fn learn(&self, scope: &Scope<'_>, all: &[ProjectedState], grads: &mut Grads) {
        let device = scope.device;
        grads.enter(device, &[self.weight]);
        let Some((c, accumulate)) = grads.receive(device, self.weight, true) else { return };
        for ProjectedState { index, x, dy } in all {
            device.pool.enter("distill", -1);
            let c = &c.view_rows(index * self.columns..(index + 1) * self.columns);
            matmul(device, MatMul { a: dy, a_trans: true, b: x, b_trans: false, c, accumulate });
            // The products of both directions and of the weight.
            let flops = 2 * (x.len() * self.columns) as u64;
            scope.counters.add(3 * flops, 3 * flops);
        }
    }
}

impl ResidentProjections {
    fn of(&self, index: usize) -> Tensor {
        self.weight.view_rows(index * self.columns..(index + 1) * self.columns)
    }

    /// [r, k] of x [r, d], in its type.
    pub fn forward(&self, device: &Device, index: usize, x: &Tensor) -> Tensor {
        let y = device.empty(x.rows(), self.columns, x.dtype(), Category::Activations);
        let b = &self.of(index);
        matmul(device, MatMul { a: x, a_trans: false, b, b_trans: true, c: &y, accumulate: false });
        y
    }

    /// The gradient with respect to x [r, d], given the gradient `dy` [r, k] of y.
    pub fn backward(&self, device: &Device, index: usize, dy: &Tensor) -> Tensor {
        let dx = device.empty(dy.rows(), self.weight.cols(), dy.dtype(), Category::Activations);
        let b = &self.of(index);
        matmul(device, MatMul { a: dy, a_trans: false, b, b_trans: false, c: &dx, accumulate: false });
        dx
    }
}

fn matmul(device: &Device, op: MatMul<'_>) {
    let bytes = device.machine.profile().workspace(&op.desc());
    let ws = device.empty(1, bytes as usize, DType::U8, Category::Workspace);
    device.machine.matmul(&op, &ws);
}
