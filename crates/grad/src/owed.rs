//! Weight gradients that are computed after the backward pass of their segments.

use crate::grads::Grads;
use crate::memo::PlacedSegment;
use crate::param_id::ParamId;
use crate::run::{Due, Runner, Store};
use crate::scope::{Scope, exec};

/// Deferred weight gradients ([`Tape::backward_input`]), for zero-bubble schedules.
#[must_use = "weight gradients are made where they are added"]
pub struct DeferredGrads<'a> {
    pub(crate) scope: Scope<'a>,
    pub(crate) head_groups: usize,
    /// In the order of the backward pass.
    pub(crate) segments: Vec<Debt>,
}

/// The deferred weight gradients of one segment.
pub(crate) struct Debt {
    pub at: PlacedSegment,
    pub due: Vec<Due>,
}

impl DeferredGrads<'_> {
    /// Adds them to the main gradients.
    pub fn add(self, grads: &mut Grads) {
        let DeferredGrads { scope, head_groups, segments } = self;
        for Debt { at, due } in segments {
            let named: Vec<ParamId> = at.weights().collect();
            let read = at.graph().nodes.iter().filter(|node| node.rereads_weights());
            let read = read.flat_map(|node| node.params.iter().map(|id| at.id(*id)));
            let weights = scope.params.fetch(scope.device, read);
            weights.wait();
            grads.enter(scope.device, &named);
            let mut exec = exec(&scope, &at, head_groups);
            let mut runner = Runner::new(&at, &mut exec, scope.counters, None, Store::new(0, 0));
            runner.grads = Some(&mut *grads);
            runner.make_due(due);
            drop(runner);
            grads.leave(scope.device, &named);
        }
    }
}
