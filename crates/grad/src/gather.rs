//! Transfer of updated weights to the ranks that do not keep their state.
//!
//! After an update the transfers of the first buckets start; a segment that fetches its weights waits for its bucket
//! and starts the next. Transfers thus overlap with the forward pass, and at most [`AHEAD`] buckets need memory.

use std::collections::VecDeque;
use std::rc::Rc;

use fathom_tensor::mesh::Transfers;
use fathom_tensor::{Category, Device, Tensor};

use crate::param_id::ParamId;
use crate::params::Params;
use crate::shares::Shares;

/// Number of buckets in flight.
const AHEAD: usize = 2;

/// Buckets in flight, and those after them.
pub(crate) struct BucketQueue {
    shares: Rc<Shares>,
    /// The first bucket that has not arrived.
    first: usize,
    /// Buckets in flight, with the sent copies.
    flying: VecDeque<Vec<(Transfers, Vec<Tensor>)>>,
}

impl BucketQueue {
    pub fn begin(device: &Device, params: &Params, shares: &Rc<Shares>) -> BucketQueue {
        let mut gathering = BucketQueue { shares: shares.clone(), first: 0, flying: VecDeque::new() };
        gathering.advance(device, params);
        gathering
    }

    /// Starts transfers up to the limit.
    fn advance(&mut self, device: &Device, params: &Params) {
        while self.flying.len() < AHEAD && self.first + self.flying.len() < self.shares.buckets.len() {
            let bucket = self.first + self.flying.len();
            self.flying.push_back(self.send(device, params, bucket));
        }
    }

    /// A copy is sent, since a weight is written while its own part is read.
    fn send(&self, device: &Device, params: &Params, bucket: usize) -> Vec<(Transfers, Vec<Tensor>)> {
        device.pool.enter("gather parameters", -1);
        let groups = self.shares.by_group(&self.shares.buckets[bucket]).into_iter();
        let some = groups.filter(|(group, ids)| group.size() > 1 && !ids.is_empty());
        some.map(|(group, ids)| {
            let (mut mine, mut parts) = (Vec::new(), Vec::new());
            for id in ids.into_iter().filter(|id| params.get(*id).trainable) {
                let value = &params.get(id).value;
                let (weight, own) = (value.flat(0..value.len()), self.shares.own(id));
                let copy = device.empty(1, own.len(), value.dtype(), Category::Comm);
                if !own.is_empty() {
                    device.machine.copy(&weight.view_cols(own), &copy);
                }
                mine.push(copy);
                let ranges = self.shares.params[id.index()].ranges.iter();
                parts.push(ranges.map(|range| weight.view_cols(range.clone())).collect::<Vec<Tensor>>());
            }
            (group.begin_gather(device, "gather parameters", &mine, &parts), mine)
        })
        .collect()
    }

    /// Waits for the first bucket in flight.
    fn next(&mut self, device: &Device, params: &Params) {
        if let Some(bucket) = self.flying.pop_front() {
            bucket.into_iter().for_each(|(flying, _)| flying.wait());
            self.first += 1;
            self.advance(device, params);
        }
    }

    /// Waits for some weights, and earlier ones.
    pub fn arrive(&mut self, device: &Device, params: &Params, ids: &[ParamId]) {
        let holds = |bucket: &Vec<ParamId>| bucket.iter().any(|id| ids.contains(id));
        while self.shares.buckets.get(self.first..).is_some_and(|coming| coming.iter().any(holds)) {
            self.next(device, params);
        }
    }

    /// Waits for all.
    pub fn settle(&mut self, device: &Device, params: &Params) {
        while !self.flying.is_empty() {
            self.next(device, params);
        }
    }
}
