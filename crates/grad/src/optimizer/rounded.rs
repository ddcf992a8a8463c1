//! Rounding of masters to weights, in quantization-aware training.

use fathom_tensor::{Device, RoundWeights};

use super::{AdamW, Item, sweep};
use crate::params::Params;
use crate::shares::Sharding;
use crate::value::Value;

/// A weight that is rounded, or a chunk of one, with its master.
struct RoundedWeight<'a> {
    item: Item<'a>,
    master: &'a Value,
}

impl AdamW {
    /// Sets weights to their rounded masters according to [`Params::rounding`], if it is set: after masters were
    /// loaded. Ranks with the same weights call this together.
    ///
    /// # Panics
    /// If a weight to be rounded has no master.
    pub fn round(&self, device: &Device, params: &Params) {
        if params.rounding().is_none() {
            return;
        }
        params.settle(device);
        self.round_own(device, params);
        if self.hands_out() {
            params.begin_gather(device, &self.shares);
            params.settle(device);
        }
    }

    /// True if updated weights are sent to ranks that have them but not their state.
    pub(super) fn hands_out(&self) -> bool {
        matches!(self.shares.sharding, Sharding::Optim | Sharding::OptimGrads)
    }

    /// Rounds the elements whose state this rank has.
    pub(super) fn round_own(&self, device: &Device, params: &Params) {
        let Some(rounding) = params.rounding() else { return };
        let machine = &device.machine;
        device.pool.enter("round weights", -1);
        let own = self.items(params).into_iter().filter(|item| rounding.has(item.id));
        let own: Vec<RoundedWeight<'_>> = own
            .map(|item| match &item.state.master {
                Some(master) => RoundedWeight { master, item },
                None => panic!("round: {} has no master", item.param.name),
            })
            .collect();
        let master = |at: usize| {
            let RoundedWeight { item, master } = &own[at];
            master.chunk(item.range.clone(), true, false)
        };
        if rounding.begin(device) {
            sweep(params, own.len(), &|at| vec![master(at)], &mut |at, views| {
                if let Some(largest) = rounding.largest(own[at].item.id) {
                    machine.largest(&views[0], &largest);
                }
            });
            rounding.join(device);
        }
        let parts = |at: usize| {
            let Item { param, .. } = own[at].item;
            let weight = param.value.chunk(own[at].item.of_weight(), false, true);
            vec![weight, master(at)]
        };
        sweep(params, own.len(), &parts, &mut |at, views| {
            let largest = rounding.largest(own[at].item.id);
            machine.round_weights(&RoundWeights {
                format: rounding.format(),
                x: &views[1],
                largest: largest.as_ref(),
                out: &views[0],
            });
        });
    }
}
