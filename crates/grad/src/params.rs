//! Weights.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fathom_tensor::mesh::Group;
use fathom_tensor::{BlockFormat, Category, DType, Device, Packing, Tensor};

use crate::disk::{Role, StateDisk};
use crate::gather::Gathering;
use crate::memo::Memo;
use crate::narrow::{NarrowLinear, Narrowing};
use crate::rounding::Rounding;
use crate::shares::{Shares, deal_buckets};
use crate::value::Value;

/// Index of a weight in [`Params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

impl ParamId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

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
    /// Weights are sharded over the ranks that would otherwise replicate them.
    parted: bool,
    /// Those that come to a base, which ranks deal as they would without.
    added: BTreeSet<ParamId>,
    /// Each run of layers' segments, with the weights that they need, in the order of a forward pass.
    walk: Walk,
    /// The embedding to which the head is tied.
    tied: Option<ParamId>,
    /// Updated weights that other ranks still have to send.
    gathering: RefCell<Option<Gathering>>,
    /// Weights with low-precision GEMMs.
    narrowing: Option<Narrowing>,
    /// Weights that are what a format makes of their masters.
    rounding: Option<Rounding>,
    /// The segments that were recorded over them.
    memo: Memo,
    /// What the learning rates of some weights are multiplied with.
    rates: BTreeMap<ParamId, f32>,
}

/// By run of layers and segment; the head is the last segment.
type Walk = Vec<Vec<Vec<ParamId>>>;

/// Weights of a segment, in memory until this is dropped.
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

    /// Waits until they have been fetched: before their first use.
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
    /// No weights yet; those to come, and their optimizer state, can be offloaded.
    pub fn with_disk(disk: Option<Rc<StateDisk>>) -> Params {
        Params { disk, ..Params::default() }
    }

    /// The same, for weights of which ranks that have the same ones keep a part each ([`Params::part`]).
    pub fn parted(mut self, parted: bool) -> Params {
        self.parted = parted;
        self
    }

    /// Room for a weight of `layer` (-1 outside the blocks): on disk if weights are there and it is a matrix, else in
    /// memory. Undefined until it is filled.
    pub fn room(&self, device: &Device, [rows, cols]: [usize; 2], dtype: DType, layer: i32) -> Value {
        match &self.disk {
            _ if self.parted => Value::parted(device, [rows, cols], dtype),
            Some(disk) if disk.what().weights && Value::moves([rows, cols]) => {
                Value::on_disk(disk, [rows, cols], dtype, Role::Weight, layer)
            }
            _ => device.empty(rows, cols, dtype, Category::Params).into(),
        }
    }

    /// As [`Params::room`] for a frozen matrix that is packed; what is said of the weight's place is said of its bytes.
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

    /// As [`Params::room`] for a frozen matrix that is held, and multiplied with, as blocks. Those of experts may be turned
    /// ([`Packing::turned`]).
    pub fn blocked_room(&self, device: &Device, packing: Packing, shape: [usize; 2], dtype: DType) -> Value {
        Value::blocked(device, packing, shape, dtype)
    }

    /// The disk behind weights and state.
    pub fn disk(&self) -> Option<&Rc<StateDisk>> {
        self.disk.as_ref()
    }

    /// Says in which order a forward pass needs the weights: of each run of layers the segments, the head the last of all. What
    /// is elsewhere is fetched ahead by it. `tied` is an embedding that is the head too.
    pub fn set_walk(&mut self, runs: Vec<Vec<Vec<ParamId>>>, tied: Option<ParamId>) {
        (self.walk, self.tied) = (runs, tied);
    }

    /// Says of a weight that it comes to a base, an adapter's: ranks deal the base as they would without.
    pub fn set_added(&mut self, id: ParamId) {
        self.added.insert(id);
    }

    /// Whether a weight comes to a base.
    pub(crate) fn is_added(&self, id: ParamId) -> bool {
        self.added.contains(&id)
    }

    /// The embedding to which the head is tied.
    pub fn tied(&self) -> Option<ParamId> {
        self.tied
    }

    /// All weights by the segment that needs them first, in the order of a forward pass; what none needs with the last.
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

    /// Gives each of the ranks with the same weights its part of them, where they keep parts: after the last weight. `replicas`
    /// says who has the same of a weight.
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

    /// Starts to fetch the offloaded weights of the segment after the one with these weights. The head counts as a segment where
    /// it `follows`.
    pub fn fetch_after(&self, device: &Device, ids: &[ParamId], follows: bool) -> Option<Weights<'_>> {
        let holds = |segment: &Vec<ParamId>| segment.iter().any(|id| ids.contains(id));
        let run = self.walk.iter().position(|run| run.iter().any(holds))?;
        let last_run = run + 1 == self.walk.len();
        let segments = &self.walk[run][..self.walk[run].len() - usize::from(last_run && !follows)];
        let mut at = segments.iter().position(holds)?;
        // A segment may be several of the walk's.
        while segments.get(at + 1).is_some_and(|next| next.iter().all(|id| ids.contains(id))) {
            at += 1;
        }
        Some(self.fetch(device, segments.get(at + 1)?.iter().copied()))
    }

    /// Starts to fetch those of the weights that are not in memory; they stay in memory as long as the result lives. Waits for
    /// updates of the others from other ranks.
    pub fn fetch(&self, device: &Device, ids: impl IntoIterator<Item = ParamId>) -> Weights<'_> {
        let all: Vec<ParamId> = ids.into_iter().collect();
        if let Some(gathering) = self.gathering.borrow_mut().as_mut() {
            gathering.arrive(device, self, &all);
        }
        let ids: Vec<ParamId> = all.into_iter().filter(|id| self.get(*id).value.comes()).collect();
        ids.iter().for_each(|id| self.get(*id).value.fetch(device));
        Weights { params: self, ids }
    }

    /// Begins to hand updated elements to the ranks that have the same weights and not their state; they arrive where a segment
    /// fetches its weights.
    pub(crate) fn begin_gather(&self, device: &Device, shares: &Rc<Shares>) {
        *self.gathering.borrow_mut() = Some(Gathering::begin(device, self, shares));
    }

    /// Cancels the transfers of a failed update; the weights are undefined until they are loaded.
    pub fn abandon(&mut self) {
        self.gathering.take();
    }

    /// Waits for all updated weights of other ranks: before anything but a segment reads weights. Collective.
    pub fn settle(&self, device: &Device) {
        if let Some(mut gathering) = self.gathering.borrow_mut().take() {
            gathering.settle(device, self);
        }
    }

    /// Sets the weights with low-precision GEMMs.
    pub fn set_narrowing(&mut self, narrowing: Option<Narrowing>) {
        self.memo.clear();
        self.narrowing = narrowing;
    }

    /// The weights with low-precision GEMMs.
    pub fn narrowing(&self) -> Option<&Narrowing> {
        self.narrowing.as_ref()
    }

    /// The number format of a weight's GEMM operands; `None` if they are not quantised.
    pub(crate) fn narrow(&self, id: ParamId) -> Option<NarrowLinear> {
        self.narrowing.as_ref()?.of(id)
    }

    /// Sets the weights that are what a format makes of their masters: [`crate::AdamW::round`] then writes them.
    pub fn set_rounding(&mut self, rounding: Option<Rounding>) {
        self.rounding = rounding;
    }

    /// The weights that are what a format makes of their masters.
    pub fn rounding(&self) -> Option<&Rounding> {
        self.rounding.as_ref()
    }

    /// Takes a weight out of training: before gradients and optimizer state are made.
    pub fn freeze(&mut self, id: ParamId) {
        self.memo.clear();
        self.list[id.index()].trainable = false;
    }

    /// Multiplies the learning rate of a weight.
    pub fn scale_rate(&mut self, id: ParamId, factor: f32) {
        self.rates.insert(id, factor);
    }

    /// What the learning rate of a weight is multiplied with.
    pub fn rate(&self, id: ParamId) -> f32 {
        self.rates.get(&id).copied().unwrap_or(1.0)
    }

    /// Adds a weight.
    pub fn push(&mut self, param: Param) -> ParamId {
        self.memo.clear();
        self.list.push(param);
        ParamId(self.list.len() as u32 - 1)
    }

    /// Forgets the segments that were recorded over them: a model that changes names other operations.
    pub fn forget_segments(&mut self) {
        self.memo.clear();
    }

    /// Records and schedules every segment each time it runs, and runs all of its steps: what tests compare with.
    pub fn remember_nothing(&mut self) {
        self.memo.end();
    }

    /// The segments that were recorded over them.
    pub(crate) fn memo(&self) -> &Memo {
        &self.memo
    }

    /// All weights with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, &Param)> {
        self.list.iter().enumerate().map(|(index, param)| (ParamId(index as u32), param))
    }

    /// A weight's values.
    ///
    /// # Panics
    /// If they are offloaded and have not been fetched.
    #[track_caller]
    pub fn tensor(&self, id: ParamId) -> Tensor {
        self.list[id.index()].value.tensor()
    }

    /// A weight's values, or its blocks where it is held as such.
    ///
    /// # Panics
    /// As [`Params::tensor`].
    #[track_caller]
    pub fn operand(&self, id: ParamId) -> Tensor {
        self.list[id.index()].value.operand()
    }

    /// How those of some weights are packed that are held as blocks.
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

    /// Number of elements of all weights.
    pub fn num_elements(&self) -> u64 {
        self.list.iter().map(|param| param.value.len() as u64).sum()
    }
}
