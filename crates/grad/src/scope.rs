//! The inputs of a forward pass, and the context of a segment that runs over them.

use fathom_tensor::Device;

use crate::batch::Tables;
use crate::context::Context;
use crate::counters::Counters;
use crate::graph::Spread;
use crate::memo::PlacedSegment;
use crate::op::Exec;
use crate::params::Params;

/// The inputs of a forward pass; cheap to clone. It borrows the weights, so they cannot change while a tape lives.
#[derive(Clone)]
pub struct Scope<'a> {
    /// Compute and memory.
    pub device: &'a Device,
    /// Weights.
    pub params: &'a Params,
    /// The micro-batch.
    pub batch: Tables<'a>,
    /// FLOPs and times.
    pub counters: &'a Counters,
}

impl Scope<'_> {
    /// Distribution of the work over ranks.
    pub fn spread(&self) -> Spread {
        let context = self.batch.context.as_ref();
        let (cp, states) =
            (context.map_or(1, Context::dealt), context.is_some_and(|of| of.pieces().is_some()));
        Spread { cp, states, ..Spread::of(&self.device.mesh) }
    }
}

/// The context of a segment's operations, over all rows of the batch.
pub(crate) fn exec<'a>(scope: &'a Scope<'_>, at: &PlacedSegment, head_groups: usize) -> Exec<'a> {
    let (device, params, batch) = (scope.device, scope.params, &*scope.batch);
    let (layer, layers_on) = (at.layer, at.layers_on());
    let (rows, kv, adds, carry, loads, trains) = (0..batch.tokens, None, true, None, None, true);
    Exec {
        device,
        params,
        batch,
        kv,
        rows,
        weight: None,
        layer,
        layers_on,
        head_groups,
        adds,
        carry,
        loads,
        dw: Vec::new(),
        trains,
    }
}
