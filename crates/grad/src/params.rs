//! Weights and their main gradients.

use fathom_tensor::{Category, DType, Device, Tensor};

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
    /// Values; vectors are [1, n].
    pub tensor: Tensor,
    /// Decoupled weight decay applies (matrices; not norms and biases).
    pub decays: bool,
    /// Receives a gradient.
    pub trainable: bool,
}

/// All weights of a model, in a fixed order.
#[derive(Default)]
pub struct Params {
    list: Vec<Param>,
}

impl Params {
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
    pub fn tensor(&self, id: ParamId) -> &Tensor {
        &self.list[id.index()].tensor
    }

    /// A weight.
    pub fn get(&self, id: ParamId) -> &Param {
        &self.list[id.index()]
    }

    /// A weight's shape.
    pub fn shape(&self, id: ParamId) -> [usize; 2] {
        self.tensor(id).shape()
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
        self.list.iter().map(|param| param.tensor.len() as u64).sum()
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
            let [rows, cols] = param.tensor.shape();
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
