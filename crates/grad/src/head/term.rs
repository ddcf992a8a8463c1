//! The low-rank term of a head. `x A^T` is recomputed for the gradients.

use fathom_tensor::{Category, MatMul, Tensor};

use super::{Head, HeadTerm};
use crate::grads::Grads;
use crate::scope::Scope;

/// Targets of the gradients of a term's weights, and whether they are added to.
pub(super) struct OfTerm {
    term: HeadTerm,
    a: Option<(Tensor, bool)>,
    b: Option<(Tensor, bool)>,
}

impl Head {
    /// `scale x A^T`.
    fn low(&self, scope: &Scope<'_>, term: &HeadTerm, x: &Tensor) -> Tensor {
        let a = &scope.params.tensor(term.a);
        let u = scope.device.empty(x.rows(), a.rows(), x.dtype(), Category::Workspace);
        self.matmul(scope, MatMul { a: x, a_trans: false, b: a, b_trans: true, c: &u, accumulate: false });
        scope.device.machine.scale(&u, term.scale, &u);
        u
    }

    /// `scale dlogits B`.
    fn low_gradient(&self, scope: &Scope<'_>, term: &HeadTerm, dlogits: &Tensor) -> Tensor {
        let b = &scope.params.tensor(term.b);
        let du = scope.device.empty(dlogits.rows(), b.cols(), dlogits.dtype(), Category::Workspace);
        let op = MatMul { a: dlogits, a_trans: false, b, b_trans: false, c: &du, accumulate: false };
        self.matmul(scope, op);
        scope.device.machine.scale(&du, term.scale, &du);
        du
    }

    fn count(&self, scope: &Scope<'_>, term: &HeadTerm, rows: usize) {
        let of = |id| scope.params.shape(id).iter().product::<usize>();
        let flops = 2 * (rows * (of(term.a) + of(term.b))) as u64;
        scope.counters.add(flops, flops);
    }

    pub(super) fn add_term(&self, scope: &Scope<'_>, term: &HeadTerm, x: &Tensor, logits: &Tensor) {
        let (u, b) = (&self.low(scope, term, x), &scope.params.tensor(term.b));
        self.matmul(scope, MatMul { a: u, a_trans: false, b, b_trans: true, c: logits, accumulate: true });
        self.count(scope, term, x.rows());
    }

    /// Adds the term's part of `dx`.
    pub(super) fn add_term_input(&self, scope: &Scope<'_>, term: &HeadTerm, dlogits: &Tensor, dx: &Tensor) {
        let (du, b) = (&self.low_gradient(scope, term, dlogits), &scope.params.tensor(term.a));
        self.matmul(scope, MatMul { a: du, a_trans: false, b, b_trans: false, c: dx, accumulate: true });
        self.count(scope, term, dx.rows());
    }

    /// Targets of the term's gradients, if it has any.
    pub(super) fn receive_term(&self, scope: &Scope<'_>, grads: &mut Grads) -> Option<OfTerm> {
        let term = self.term?;
        let [a, b] = [term.a, term.b].map(|id| grads.receive(scope.device, id, true));
        Some(OfTerm { term, a, b })
    }
}

impl OfTerm {
    /// Adds the gradients of a tile.
    pub(super) fn add(&mut self, head: &Head, scope: &Scope<'_>, dlogits: &Tensor, x: &Tensor) {
        let product = |a: &Tensor, b: &Tensor, (c, adds): &mut (Tensor, bool)| {
            let accumulate = std::mem::replace(adds, true);
            head.matmul(scope, MatMul { a, a_trans: true, b, b_trans: false, c, accumulate });
        };
        if let Some(da) = &mut self.a {
            product(&head.low_gradient(scope, &self.term, dlogits), x, da);
        }
        if let Some(db) = &mut self.b {
            product(dlogits, &head.low(scope, &self.term, x), db);
        }
        if self.a.is_some() || self.b.is_some() {
            head.count(scope, &self.term, x.rows());
        }
    }
}
