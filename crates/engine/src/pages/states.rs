//! Memory of layers for each sequence besides keys and values: named states of fixed sizes, in slots.

use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_model::{Model, StateSpec};
use fathom_tensor::{Category, DType, Device, Tensor};

/// The states of a sequence after some of its tokens, in host memory.
pub(crate) type Checkpoint = Rc<Vec<Vec<u8>>>;

/// States of all sequences.
#[derive(Default)]
pub(super) struct States {
    /// By layer and name: f32 [slots x rows, columns], and the rows of a slot.
    all: BTreeMap<(usize, &'static str), (Tensor, usize)>,
}

/// The states of this rank's layers.
fn specs(model: &Model) -> impl Iterator<Item = (usize, StateSpec)> {
    let ranks = model.portion.sharers_of_layers();
    let of = move |layer: usize| -> Vec<(usize, StateSpec)> {
        let states = model.spec.layers[layer].own().flat_map(|own| own.states(&ranks));
        states.map(|state| (layer, state)).collect()
    };
    model.portion.layers().flat_map(of)
}

/// Bytes of the states of `sequences` sequences, for this rank's part of the model.
pub fn state_bytes(model: &Model, sequences: usize) -> u64 {
    let bytes = |(_, state): (usize, StateSpec)| 4 * state.shape.iter().product::<usize>() as u64;
    sequences as u64 * specs(model).map(bytes).sum::<u64>()
}

impl States {
    /// Allocates those of `slots` sequences.
    pub fn new(device: &Device, model: &Model, slots: usize) -> States {
        let room = |(layer, StateSpec { name, shape: [rows, cols] })| {
            let room = device.zeros(slots * rows, cols, DType::F32, Category::Kv);
            ((layer, name), (room, rows))
        };
        States { all: specs(model).map(room).collect() }
    }

    fn of(&self, slot: usize) -> impl Iterator<Item = Tensor> + '_ {
        self.all.values().map(move |(room, rows)| room.view_rows(slot * rows..(slot + 1) * rows))
    }

    /// Copies the states of the sequence in a slot.
    pub fn save(&self, device: &Device, slot: usize) -> Checkpoint {
        Rc::new(self.of(slot).map(|state| device.machine.read(&state).wait()).collect())
    }

    /// Sets the states of the sequence in a slot.
    pub fn load(&self, device: &Device, slot: usize, checkpoint: &Checkpoint) {
        for (state, bytes) in self.of(slot).zip(checkpoint.iter()) {
            device.machine.write(&state, bytes);
        }
    }

    /// A state of the sequence in a slot.
    ///
    /// # Panics
    /// If the layer has no state of this name.
    #[track_caller]
    pub fn get(&self, layer: usize, name: &str, slot: usize) -> Tensor {
        let of_layer = self.all.range((layer, "")..).take_while(|((at, _), _)| *at == layer);
        let named = of_layer.filter(|((_, of), _)| *of == name).map(|(_, state)| state).next();
        let Some((room, rows)) = named else { panic!("layer {layer} has declared no state {name}") };
        room.view_rows(slot * rows..(slot + 1) * rows)
    }
}
