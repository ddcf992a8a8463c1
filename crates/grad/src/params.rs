//! Weights.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::mesh::Group;
use fathom_tensor::{BlockFormat, Category, DType, Device, Packing, Tensor};

use crate::cache::Cache;
use crate::disk::{Role, StateDisk};
use crate::gather::BucketQueue;
use crate::narrow::{NarrowLinear, NarrowWeights};
use crate::param_id::ParamId;
use crate::rounding::Rounding;
use crate::shares::{Shares, deal};
use crate::value::Value;

/// One weight.
pub struct Param {
    /// Name inside the model, e.g. `blocks.3.mlp.down`.
    pub name: String,
    /// In memory or on disk; vectors are [1, n].
    pub value: Value,
    /// Decoupled weight decay applies (matrices; not norms and biases).
    pub decays: bool,
    /// Receives a gradient.
    pub trainable: bool,
}

/// All weights of a model, in a fixed order.
#[derive(Default)]
pub struct Params {
    list: Vec<Param>,
    disk: Option<Rc<StateDisk>>,
    /// True if weights are sharded over the ranks that would otherwise replicate them.
    parted: bool,
    /// Weights added to a base, which is distributed over ranks as without them.
    added: BTreeSet<ParamId>,
    /// Weights that several layers read, of which stages of a pipeline may have copies.
    shared: BTreeSet<ParamId>,
    /// Each run of layers' segments, with the weights that they need, in the order of a forward pass.
    walk: Walk,
    /// The embedding to which the head is tied.
    tied: Option<ParamId>,
    /// Updated weights that other ranks have yet to send.
    gathering: RefCell<Option<BucketQueue>>,
    /// Weights with low-precision GEMMs.
    narrowing: Option<NarrowWeights>,
    /// Weights that are their rounded masters.
    rounding: Option<Rounding>,
    /// The segments recorded over them.
    segments: Cache,
    /// Factors of the learning rates of some weights.
    rates: BTreeMap<ParamId, f32>,
}

/// By run of layers and segment; the head is the last segment.
type Walk = Vec<Vec<Vec<ParamId>>>;

/// Weights of a segment, kept in memory until this is dropped.
#[must_use = "weights that are elsewhere are in memory as long as this lives"]
pub struct Weights<'a> {
    params: &'a Params,
    ids: Vec<ParamId>,
}

impl Weights<'_> {
    /// True if all of them are always in memory.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Waits until they are fetched: before their first use.
    pub fn wait(&self) {
        self.ids.iter().for_each(|id| self.params.get(*id).value.wait());
    }
}

impl Drop for Weights<'_> {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.params.get(*id).value.release());
    }
}

impl Params {
    /// An empty list; weights added to it, and their optimizer state, can be offloaded.
    pub fn with_disk(disk: Option<Rc<StateDisk>>) -> Params {
        Params { disk, ..Params::default() }
    }

    /// Sets whether ranks with the same weights keep a part of each ([`Params::part`]).
    pub fn parted(mut self, parted: bool) -> Params {
        self.parted = parted;
        self
    }

    /// Allocates a weight of `layer` (-1 outside the blocks): on disk if weights are there and it is a matrix, else in
    /// memory. It is undefined until filled.
    pub fn room(&self, device: &Device, [rows, cols]: [usize; 2], dtype: DType, layer: i32) -> Value {
        match &self.disk {
            _ if self.parted => Value::parted(device, [rows, cols], dtype),
            Some(disk) if disk.what().weights && Value::moves([rows, cols]) => {
                Value::on_disk(disk, [rows, cols], dtype, Role::Weight, layer)
            }
            _ => device.empty(rows, cols, dtype, Category::Params).into(),
        }
    }

    /// [`Params::room`] for a frozen matrix that is packed; the rules for the location apply to its bytes.
    pub fn packed_room(
        &self,
        device: &Device,
        format: BlockFormat,
        shape: [usize; 2],
        dtype: DType,
        layer: i32,
    ) -> Value {
        let bytes = format.packed_shape(shape);
        let bytes = match &self.disk {
            Some(disk) if disk.what().weights && !self.parted => {
                Value::on_disk(disk, bytes, DType::U8, Role::Weight, layer)
            }
            _ => self.room(device, bytes, DType::U8, layer),
        };
        Value::packed(device, format, shape, dtype, bytes)
    }

    /// [`Params::room`] for a frozen matrix that is held, and multiplied with, as blocks. Those of experts may be
    /// transposed ([`Packing::turned`]).
    pub fn blocked_room(&self, device: &Device, packing: Packing, shape: [usize; 2], dtype: DType) -> Value {
        Value::blocked(device, packing, shape, dtype)
    }

    /// The disk of weights and state.
    pub fn disk(&self) -> Option<&Rc<StateDisk>> {
        self.disk.as_ref()
    }

    /// Sets the order in which a forward pass needs the weights: the segments of each run of layers, the head last.
    /// Offloaded weights are fetched ahead in this order. `tied` is an embedding that is the head too.
    pub fn set_walk(&mut self, runs: Vec<Vec<Vec<ParamId>>>, tied: Option<ParamId>) {
        (self.walk, self.tied) = (runs, tied);
    }

    /// Marks a weight as added to a base, such as an adapter's: ranks distribute the base as without it.
    pub fn set_added(&mut self, id: ParamId) {
        self.added.insert(id);
    }

    /// Marks a weight as one that several layers read: ranks distribute it by itself, since stages of a pipeline have
    /// copies of it among other weights.
    pub fn set_shared(&mut self, id: ParamId) {
        self.shared.insert(id);
    }

    /// True if a weight is added to a base.
    pub(crate) fn is_added(&self, id: ParamId) -> bool {
        self.added.contains(&id)
    }

    /// The embedding to which the head is tied.
    pub fn tied(&self) -> Option<ParamId> {
        self.tied
    }

    /// All weights by the segment that needs them first, in the order of a forward pass; unused ones with the last.
    pub fn buckets(&self) -> Vec<Vec<ParamId>> {
        let mut seen = vec![false; self.list.len()];
        let mut fresh = |ids: &[ParamId]| -> Vec<ParamId> {
            ids.iter().copied().filter(|id| !std::mem::replace(&mut seen[id.index()], true)).collect()
        };
        let mut buckets: Vec<Vec<ParamId>> = self.walk.iter().flatten().map(|ids| fresh(ids)).collect();
        let all: Vec<ParamId> = self.iter().map(|(id, _)| id).collect();
        let rest = fresh(&all);
        match buckets.last_mut() {
            Some(last) => last.extend(rest),
            None => buckets.push(rest),
        }
        buckets.retain(|bucket| !bucket.is_empty());
        buckets
    }

    /// Assigns each of the ranks with the same weights its part, if they keep parts: called after the last weight.
    /// `replicas` returns the ranks with a given weight.
    pub fn part<'g>(&self, device: &Device, replicas: &dyn Fn(ParamId) -> &'g Group) {
        if !self.parted {
            return;
        }
        device.pool.enter("weights", -1);
        let all = deal_buckets(self, &|id| replicas(id).size());
        for ((id, param), ranges) in self.iter().zip(all) {
            param.value.part(device, replicas(id), ranges);
        }
    }

    /// Starts to fetch the offloaded weights of the segment after the one with these weights. The head counts as a
    /// segment if it `follows`.
    pub fn fetch_after(&self, device: &Device, ids: &[ParamId], follows: bool) -> Option<Weights<'_>> {
        let holds = |segment: &Vec<ParamId>| segment.iter().any(|id| ids.contains(id));
        let run = self.walk.iter().position(|run| run.iter().any(holds))?;
        let last_run = run + 1 == self.walk.len();
        let segments = &self.walk[run][..self.walk[run].len() - usize::from(last_run && !follows)];
        let mut at = segments.iter().position(holds)?;
        // A segment may cover several of the walk's.
        while segments.get(at + 1).is_some_and(|next| next.iter().all(|id| ids.contains(id))) {
            at += 1;
        }
        Some(self.fetch(device, segments.get(at + 1)?.iter().copied()))
    }

    /// Starts to fetch the weights that are not in memory; they stay in memory as long as the result lives. Waits for
    /// updates of the others from other ranks.
    pub fn fetch(&self, device: &Device, ids: impl IntoIterator<Item = ParamId>) -> Weights<'_> {
        let all: Vec<ParamId> = ids.into_iter().collect();
        if let Some(gathering) = self.gathering.borrow_mut().as_mut() {
            gathering.arrive(device, &|id| self.updated(id), &all);
        }
        let ids: Vec<ParamId> = all.into_iter().filter(|id| self.get(*id).value.comes()).collect();
        ids.iter().for_each(|id| self.get(*id).value.fetch(device));
        Weights { params: self, ids }
    }

    /// Starts to send updated elements to the ranks with the same weights but without their state; they arrive when a
    /// segment fetches its weights.
    pub(crate) fn begin_gather(&self, device: &Device, shares: &Rc<Shares>) {
        *self.gathering.borrow_mut() = Some(BucketQueue::begin(device, &|id| self.updated(id), shares));
    }

    /// Cancels the transfers of a failed update; the weights are undefined until they are loaded.
    pub fn abandon(&mut self) {
        self.gathering.take();
    }

    /// Waits for all updated weights of other ranks, before anything other than a segment reads weights. Collective.
    pub fn settle(&self, device: &Device) {
        if let Some(mut gathering) = self.gathering.borrow_mut().take() {
            gathering.settle(device, &|id| self.updated(id));
        }
    }

    /// Sets the weights with low-precision GEMMs.
    pub fn set_narrowing(&mut self, narrowing: Option<NarrowWeights>) {
        self.segments.clear();
        self.narrowing = narrowing;
    }

    /// The weights with low-precision GEMMs.
    pub fn narrowing(&self) -> Option<&NarrowWeights> {
        self.narrowing.as_ref()
    }

    /// The number format of a weight's GEMM operands; `None` if they are not quantized.
    pub(crate) fn narrow(&self, id: ParamId) -> Option<NarrowLinear> {
        self.narrowing.as_ref()?.of(id)
    }

    /// Sets the weights that are their rounded masters, which [`crate::AdamW::round`] writes.
    pub fn set_rounding(&mut self, rounding: Option<Rounding>) {
        self.rounding = rounding;
    }

    /// The weights that are their rounded masters.
    pub fn rounding(&self) -> Option<&Rounding> {
        self.rounding.as_ref()
    }

    /// Excludes a weight from training, before gradients and optimizer state are allocated.
    pub fn freeze(&mut self, id: ParamId) {
        self.segments.clear();
        self.list[id.index()].trainable = false;
    }

    /// Multiplies the learning rate of a weight.
    pub fn scale_rate(&mut self, id: ParamId, factor: f32) {
        self.rates.insert(id, factor);
    }

    /// Factor of a weight's learning rate.
    pub fn rate(&self, id: ParamId) -> f32 {
        self.rates.get(&id).copied().unwrap_or(1.0)
    }

    /// Adds a weight.
    pub fn push(&mut self, param: Param) -> ParamId {
        self.segments.clear();
        self.list.push(param);
        ParamId(self.list.len() as u32 - 1)
    }

    /// Drops the segments recorded over them, for a model that now names other operations.
    pub fn forget_segments(&mut self) {
        self.segments.clear();
    }

    /// Disables the cache: every segment is recorded and scheduled each time it runs, and all of its steps run. For
    /// tests to compare with.
    pub fn remember_nothing(&mut self) {
        self.segments.end();
    }

    /// The segments recorded over them.
    pub(crate) fn segments(&self) -> &Cache {
        &self.segments
    }

    /// A weight, if it is trained: updates of no others are sent.
    fn updated(&self, id: ParamId) -> Option<&Value> {
        let param = self.get(id);
        param.trainable.then_some(&param.value)
    }

    /// All weights with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, &Param)> {
        self.list.iter().enumerate().map(|(index, param)| (ParamId(index as u32), param))
    }

    /// A weight's values.
    ///
    /// # Panics
    /// If they are offloaded and were not fetched.
    #[track_caller]
    pub fn tensor(&self, id: ParamId) -> Tensor {
        self.list[id.index()].value.tensor()
    }

    /// A weight's values, or its blocks if it is stored as blocks.
    ///
    /// # Panics
    /// Those of [`Params::tensor`].
    #[track_caller]
    pub fn operand(&self, id: ParamId) -> Tensor {
        self.list[id.index()].value.operand()
    }

    /// Packing of those of the given weights that are stored as blocks.
    pub(crate) fn packings(&self, ids: impl Iterator<Item = ParamId>) -> Vec<Packing> {
        ids.filter_map(|id| self.get(id).value.as_blocked()?.packing().cloned()).collect()
    }

    /// A weight.
    pub fn get(&self, id: ParamId) -> &Param {
        &self.list[id.index()]
    }

    /// A weight's shape.
    pub fn shape(&self, id: ParamId) -> [usize; 2] {
        self.get(id).value.shape()
    }

    /// A weight's element type.
    pub fn dtype(&self, id: ParamId) -> DType {
        self.get(id).value.dtype()
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Numbers of elements, by [`ParamId`].
    pub(crate) fn lens(&self) -> impl Iterator<Item = usize> {
        self.list.iter().map(|param| param.value.len())
    }

    /// Number of elements of all weights.
    pub fn num_elements(&self) -> u64 {
        self.lens().map(|len| len as u64).sum()
    }
}

/// Distributes the weights of each bucket separately, so that each of a weight's `members` has a part of every segment;
/// by [`ParamId`]. A tied embedding is distributed by itself, since the ranks with its other copy have it among other
/// weights, and so is what several layers share. So are weights added to a base ([`Params::set_added`]): a member's part
/// of the base does not depend on them.
pub fn deal_buckets(params: &Params, members: &dyn Fn(ParamId) -> usize) -> Vec<Vec<Range<usize>>> {
    let mut all = vec![Vec::new(); params.len()];
    for bucket in params.buckets() {
        let mut together: BTreeMap<(Option<ParamId>, bool, usize), Vec<ParamId>> = BTreeMap::new();
        for id in bucket {
            let alone = params.tied() == Some(id) || params.shared.contains(&id);
            let with = (alone.then_some(id), params.is_added(id), members(id));
            together.entry(with).or_default().push(id);
        }
        for ((.., members), ids) in together {
            let lens: Vec<usize> = ids.iter().map(|id| params.get(*id).value.held().len()).collect();
            for (id, ranges) in ids.iter().zip(deal(&lens, members)) {
                all[id.index()] = ranges;
            }
        }
    }
    all
}
