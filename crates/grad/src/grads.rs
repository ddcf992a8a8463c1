//! Main gradients: f32, of the *sum* of the loss over tokens, accumulated in place, and summed over the ranks that have
//! the same weights.
//!
//! A step does not start from zeros: the first product of a weight overwrites its gradient, and later ones add to it.
//! Gradients that no product overwrote in the previous step are cleared at the beginning, which overlaps with transfers
//! of updated weights.
//!
//! Sums over ranks start when a segment's last contribution is complete and end when those of the next start, so they
//! overlap with the backward pass of one segment, and at most one bucket needs memory. With sharded gradients (ZeRO-2),
//! a segment's gradients exist from its backward pass until their sums are computed, micro-batch by micro-batch; only
//! this rank's part is kept.

use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::mesh::PendingSums;
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::param_id::ParamId;
use crate::params::Params;
use crate::shares::{Sharding, Shares};

/// Contents of a gradient's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Contents {
    /// Meaningless: the first contribution overwrites it.
    Stale,
    Zero,
    /// The sum of the contributions so far.
    Sum,
}

/// Contents of a gradient, and how they came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GradState {
    contents: Contents,
    overwritten: bool,
}

/// The gradient of one weight.
struct Main {
    shape: [usize; 2],
    /// All elements; for sharded gradients only while they are computed.
    full: Option<Tensor>,
    /// For sharded gradients, this rank's elements, [1, n].
    own: Option<Tensor>,
    /// Contents of `full`.
    contents: Contents,
    /// True if the last first contribution overwrote.
    overwritten: bool,
}

impl Main {
    /// Clears meaningless contents.
    fn settle(&mut self, device: &Device) {
        if let (Contents::Stale, Some(full)) = (self.contents, &self.full) {
            device.machine.zero(full);
            self.contents = Contents::Zero;
        }
    }
}

/// Sums of one bucket in flight.
struct BucketSum {
    reducing: PendingSums,
    /// The weights, with all elements of their gradients as one row.
    of: Vec<(ParamId, Tensor)>,
}

/// Gradients of all trainable weights.
pub struct Grads {
    list: Vec<Option<Main>>,
    shares: Option<Rc<Shares>>,
    /// Sums of one bucket in flight, by group of ranks.
    flying: Vec<BucketSum>,
    /// By bucket: whether its sums were started.
    started: Vec<bool>,
    /// True during the last micro-batch of the step.
    last: bool,
}

impl Grads {
    /// Zeroed gradients of every trainable weight, for a single rank.
    pub fn zeros(device: &Device, params: &Params) -> Grads {
        Grads::make(device, params, None)
    }

    /// Zeroed gradients, for one of several ranks.
    pub fn shared(device: &Device, params: &Params, shares: Rc<Shares>) -> Grads {
        Grads::make(device, params, Some(shares))
    }

    fn make(device: &Device, params: &Params, shares: Option<Rc<Shares>>) -> Grads {
        device.pool.enter("grads", -1);
        let parted = shares.as_ref().filter(|shares| shares.sharding >= Sharding::OptimGrads);
        let make = |(id, shape): (ParamId, [usize; 2])| {
            let zeros = |rows, cols| Some(device.zeros(rows, cols, DType::F32, Category::Grads));
            let (full, own) = match parted {
                Some(shares) => (None, zeros(1, shares.own(id).len())),
                None => (zeros(shape[0], shape[1]), None),
            };
            Main { shape, full, own, contents: Contents::Zero, overwritten: true }
        };
        let trained = |(id, param): (ParamId, &crate::params::Param)| {
            param.trainable.then(|| make((id, param.value.shape())))
        };
        let list = params.iter().map(trained).collect();
        let started = vec![false; shares.as_ref().map_or(0, |shares| shares.buckets.len())];
        Grads {
            list,
            shares: shares.filter(|shares| !shares.is_alone()),
            flying: Vec::new(),
            started,
            last: false,
        }
    }

    /// Starts the next step: contents are meaningless until a contribution arrives, or [`Grads::settle`].
    pub fn clear(&mut self, device: &Device) {
        self.retire(device);
        for main in self.list.iter_mut().flatten() {
            if let Some(own) = &main.own {
                main.full = None;
                device.machine.zero(own);
            }
            main.contents = Contents::Stale;
            if !main.overwritten {
                main.settle(device);
            }
        }
        self.started.fill(false);
        self.last = false;
    }

    /// Zeroes gradients that this step did not contribute to.
    pub fn settle(&mut self, device: &Device) {
        self.list.iter_mut().flatten().for_each(|main| main.settle(device));
    }

    /// Target of a contribution to a weight's gradient, and whether to add to it. A contribution that `can_overwrite`
    /// does so if there is nothing yet; for others the target is cleared.
    pub(crate) fn receive(
        &mut self,
        device: &Device,
        id: ParamId,
        can_overwrite: bool,
    ) -> Option<(Tensor, bool)> {
        let main = self.list[id.index()].as_mut()?;
        let full = main.full.clone()?;
        if main.contents != Contents::Sum {
            main.overwritten = can_overwrite;
        }
        let overwrites = can_overwrite && main.contents == Contents::Stale;
        if !overwrites {
            main.settle(device);
        }
        main.contents = Contents::Sum;
        Some((full, !overwrites))
    }

    /// The states of some weights' gradients.
    pub(crate) fn states(&self, ids: impl Iterator<Item = ParamId>) -> Vec<Option<GradState>> {
        let state = |main: &Main| GradState { contents: main.contents, overwritten: main.overwritten };
        ids.map(|id| self.list[id.index()].as_ref().map(state)).collect()
    }

    /// Sets the states to what [`Grads::receive`] would have left.
    pub(crate) fn set_states(&mut self, ids: impl Iterator<Item = ParamId>, states: &[Option<GradState>]) {
        for (id, state) in ids.zip(states) {
            if let (Some(main), Some(GradState { contents, overwritten })) =
                (&mut self.list[id.index()], *state)
            {
                (main.contents, main.overwritten) = (contents, overwritten);
            }
        }
    }

    /// The gradient of a weight, if it has one; if sharded, only while its segment is in use.
    pub fn get(&self, id: ParamId) -> Option<&Tensor> {
        self.list[id.index()].as_ref()?.full.as_ref()
    }

    /// All existing gradients, in the order of the weights.
    pub fn iter<'a>(&'a self) -> impl Iterator<Item = (ParamId, &'a Tensor)> {
        let full = |(index, main): (usize, &'a Option<Main>)| {
            Some((ParamId(index as u32), main.as_ref()?.full.as_ref()?))
        };
        self.list.iter().enumerate().filter_map(full)
    }

    /// The trained weights, in order.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> {
        let trained = self.list.iter().enumerate().filter(|(_, main)| main.is_some());
        trained.map(|(index, _)| ParamId(index as u32))
    }

    /// The sums of the elements whose state this rank keeps, [1, n]: after [`Grads::complete`].
    pub fn own(&self, id: ParamId) -> Option<Tensor> {
        let main = self.list[id.index()].as_ref()?;
        if let Some(own) = &main.own {
            return Some(own.clone());
        }
        let full = main.full.as_ref()?;
        let flat = full.reshape(1, full.len());
        Some(match &self.shares {
            Some(shares) => flat.view_cols(shares.own(id)),
            None => flat,
        })
    }

    /// Abandons the transfers of a failed step; gradients are undefined until they are cleared.
    pub fn abandon(&mut self) {
        self.flying.clear();
    }

    /// Sets whether the following backward passes are those of a step's last micro-batch.
    pub fn set_last(&mut self, last: bool) {
        self.last = last;
    }

    /// True if only parts of gradients outlive their segment.
    fn are_parted(&self) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.sharding >= Sharding::OptimGrads)
    }

    /// Before a segment's backward pass: allocates its gradients.
    pub(crate) fn enter(&mut self, device: &Device, ids: &[ParamId]) {
        if !self.are_parted() {
            return;
        }
        device.pool.enter("grads", -1);
        for id in ids {
            if let Some(main) = self.list[id.index()].as_mut().filter(|main| main.full.is_none()) {
                let [rows, cols] = main.shape;
                main.full = Some(device.empty(rows, cols, DType::F32, Category::Grads));
                main.contents = Contents::Stale;
            }
        }
    }

    /// After a segment's backward pass: starts to sum complete gradients.
    pub(crate) fn leave(&mut self, device: &Device, ids: &[ParamId]) {
        let Some(shares) = self.shares.clone() else { return };
        if !self.last && !self.are_parted() {
            return;
        }
        for bucket in shares.buckets_of(ids) {
            if self.are_parted() || !self.started[bucket] {
                self.begin(device, &shares, bucket);
            }
        }
    }

    /// Starts the sums of a bucket, after ending earlier ones.
    fn begin(&mut self, device: &Device, shares: &Rc<Shares>, bucket: usize) {
        self.retire(device);
        self.started[bucket] = true;
        device.pool.enter("reduce gradients", -1);
        for (group, ids) in shares.by_group(&shares.buckets[bucket]) {
            let mut of = Vec::new();
            for id in ids {
                let Some(full) = self.hand_over(device, id) else { continue };
                if shares.params[id.index()].partial {
                    shares.other_parts(id).all_reduce(device, &full);
                }
                of.push((id, full.reshape(1, full.len())));
            }
            let tensors: Vec<Vec<Tensor>> = of.iter().map(|(id, flat)| parts(shares, *id, flat)).collect();
            if !of.is_empty() && (group.size() > 1 || self.are_parted()) {
                self.flying.push(BucketSum { reducing: group.begin_reduce_scatter(device, &tensors), of });
            }
        }
    }

    /// A gradient with all contributions; a sharded one is moved to the sum.
    fn hand_over(&mut self, device: &Device, id: ParamId) -> Option<Tensor> {
        let parted = self.are_parted();
        let main = self.list[id.index()].as_mut()?;
        main.settle(device);
        if parted { main.full.take() } else { main.full.clone() }
    }

    /// Ends the sums in flight.
    fn retire(&mut self, device: &Device) {
        for flying in std::mem::take(&mut self.flying) {
            if let Some(shares) = self.shares.clone() {
                self.end(device, &shares, flying);
            }
        }
    }

    fn end(&self, device: &Device, shares: &Shares, flying: BucketSum) {
        let BucketSum { reducing, of } = flying;
        device.pool.enter("reduce gradients", -1);
        let list = &self.list;
        let range = |which: usize| -> (ParamId, Range<usize>) {
            let (id, flat) = &of[which];
            (*id, shares.summed(*id, flat.len())[shares.group(*id).index()].clone())
        };
        reducing.finish(device, &mut |which, sum| {
            let (id, range) = range(which);
            if let Some(own) = list[id.index()].as_ref().and_then(|main| main.own.as_ref()) {
                return device.machine.add(own, sum, own);
            }
            let mine = of[which].1.view_cols(range);
            if mine.address() != sum.address() {
                device.machine.copy(sum, &mine);
            }
        });
        if shares.whole {
            spread(device, shares, &of);
        }
    }

    /// Completes the gradients of a step's micro-batches over all ranks: ends sums in flight, and sums the remaining
    /// ones.
    pub fn complete(&mut self, device: &Device) {
        self.settle(device);
        let Some(shares) = self.shares.clone() else { return };
        for bucket in (0..shares.buckets.len()).rev() {
            let open = shares.buckets[bucket].iter().any(|id| self.get(*id).is_some());
            if open && (self.are_parted() || !self.started[bucket]) {
                self.begin(device, &shares, bucket);
            }
        }
        self.retire(device);
        device.pool.enter("reduce gradients", -1);
        // In the order of ids, which is the same on all stages.
        for id in self.ids() {
            let copies = shares.params[id.index()].copies;
            if let (Some(copies), Some(grad)) = (copies, self.own(id)) {
                shares.copies[copies].all_reduce(device, &grad);
            }
        }
    }
}

/// The part of a gradient that each member sums.
fn parts(shares: &Shares, id: ParamId, flat: &Tensor) -> Vec<Tensor> {
    shares.summed(id, flat.len()).into_iter().map(|range| flat.view_cols(range)).collect()
}

/// Sends each member's sums to the others.
fn spread(device: &Device, shares: &Shares, of: &[(ParamId, Tensor)]) {
    let Some((first, _)) = of.first() else { return };
    let group = shares.group(*first);
    if group.size() == 1 {
        return;
    }
    let parts: Vec<Vec<Tensor>> = of.iter().map(|(id, flat)| parts(shares, *id, flat)).collect();
    // A copy, since the sent and received parts belong to one tensor.
    let copy = |parts: &Vec<Tensor>| {
        let own = &parts[group.index()];
        let mine = device.empty(1, own.len(), DType::F32, Category::Comm);
        if !mine.is_empty() {
            device.machine.copy(own, &mine);
        }
        mine
    };
    let mine: Vec<Tensor> = parts.iter().map(copy).collect();
    group.begin_gather(device, "all_gather", &mine, &parts).wait();
}
