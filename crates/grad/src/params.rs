//! Weights and their main gradients.

use std::rc::Rc;

use fathom_tensor::{Category, DType, Device, Tensor};

use crate::disk::{Role, StateDisk};
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
    /// Weights on disk in the order in which a forward pass needs them; the head's are the last.
    walk: Vec<Vec<ParamId>>,
}

/// Weights of a segment, in memory until this is dropped.
#[must_use = "weights on disk are in memory as long as this lives"]
pub struct Weights<'a> {
    params: &'a Params,
    ids: Vec<ParamId>,
}

impl Weights<'_> {
    /// True if none of them is on disk.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Waits until they are there: before their first use.
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
    /// No weights yet, with disk behind those to come and their state.
    pub fn with_disk(disk: Option<Rc<StateDisk>>) -> Params {
        Params { disk, ..Params::default() }
    }

    /// Room for a weight of `layer` (-1 outside the blocks): on disk if weights are there and it is a matrix, else in
    /// memory. Undefined until it is filled.
    pub fn room(&self, device: &Device, [rows, cols]: [usize; 2], dtype: DType, layer: i32) -> Value {
        match &self.disk {
            Some(disk) if disk.what().weights && Value::moves([rows, cols]) => {
                Value::on_disk(disk, [rows, cols], dtype, Role::Weight, layer)
            }
            _ => device.empty(rows, cols, dtype, Category::Params).into(),
        }
    }

    /// The disk behind weights and state.
    pub fn disk(&self) -> Option<&Rc<StateDisk>> {
        self.disk.as_ref()
    }

    /// Says in which order a forward pass needs the weights, segment by segment, the head last: what is on disk is
    /// fetched ahead by it.
    pub fn set_walk(&mut self, segments: impl IntoIterator<Item = Vec<ParamId>>) {
        let on_disk = |ids: Vec<ParamId>| -> Vec<ParamId> {
            ids.into_iter().filter(|id| self.get(*id).value.away().is_some()).collect()
        };
        let walk: Vec<_> = segments.into_iter().map(on_disk).filter(|ids| !ids.is_empty()).collect();
        self.walk = walk;
    }

    /// Begins to read those weights on disk that the segment after the one with these weights needs. The head counts as
    /// a segment where it `follows`.
    pub fn fetch_after(&self, device: &Device, ids: &[ParamId], follows: bool) -> Option<Weights<'_>> {
        let segments = self.walk.len() - usize::from(!follows && !self.walk.is_empty());
        let at = self.walk.iter().position(|segment| segment.iter().any(|id| ids.contains(id)))?;
        let next = self.walk[..segments].get(at + 1)?;
        Some(self.fetch(device, next.iter().copied()))
    }

    /// Begins to read those weights that are on disk; they stay in memory as long as the result lives.
    pub fn fetch(&self, device: &Device, ids: impl IntoIterator<Item = ParamId>) -> Weights<'_> {
        let on_disk = |id: &ParamId| self.get(*id).value.away().is_some();
        let ids: Vec<ParamId> = ids.into_iter().filter(on_disk).collect();
        ids.iter().for_each(|id| self.get(*id).value.fetch(device));
        Weights { params: self, ids }
    }
    /// Adds a weight.
    pub fn push(&mut self, param: Param) -> ParamId {
        self.list.push(param);
        ParamId(self.list.len() as u32 - 1)
    }

    /// All weights with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, &Param)> {
        self.list.iter().enumerate().map(|(index, param)| (ParamId(index as u32), param))
    }

    /// A weight's values.
    ///
    /// # Panics
    /// If they are on disk and were not fetched.
    #[track_caller]
    pub fn tensor(&self, id: ParamId) -> Tensor {
        self.list[id.index()].value.tensor()
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

    /// Sets which weights receive gradients.
    pub fn set_trainable(&mut self, trainable: impl Fn(&Param) -> bool) {
        for index in 0..self.list.len() {
            self.list[index].trainable = trainable(&self.list[index]);
        }
    }
}

/// f32 main gradients: of the *sum* of the loss over tokens, added to in place.
pub struct Grads {
    list: Vec<Option<Tensor>>,
}

impl Grads {
    /// Zeroed gradients for every trainable weight.
    pub fn zeros(device: &Device, params: &Params) -> Grads {
        device.pool.enter("grads", -1);
        let make = |param: &Param| {
            let [rows, cols] = param.value.shape();
            param.trainable.then(|| device.zeros(rows, cols, DType::F32, Category::Grads))
        };
        Grads { list: params.iter().map(|(_, param)| make(param)).collect() }
    }

    /// Starts the next step from zero.
    pub fn clear(&mut self, device: &Device) {
        self.list.iter().flatten().for_each(|grad| device.machine.zero(grad));
    }

    /// The gradient of a weight, if it has one.
    pub fn get(&self, id: ParamId) -> Option<&Tensor> {
        self.list[id.index()].as_ref()
    }

    /// All gradients in the order of the weights.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, &Tensor)> {
        self.list.iter().enumerate().filter_map(|(index, grad)| Some((ParamId(index as u32), grad.as_ref()?)))
    }
}
