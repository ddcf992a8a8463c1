//! Memory of layers for each sequence besides keys and values: named states of fixed sizes, in slots.

use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_model::{Model, StateSpec};
use fathom_tensor::{Category, DType, Device, Tensor};

use super::row::row_bytes;

/// The states of a sequence after some of its tokens, in host memory.
pub(crate) type Checkpoint = Rc<Vec<Vec<u8>>>;

/// States of all sequences, and where tokens are guessed, as many spare ones: those from before a step that reads guesses.
#[derive(Default)]
pub(super) struct States {
    /// By layer and name: f32 [slots x rows, columns], and the rows of a slot.
    all: BTreeMap<(usize, &'static str), (Tensor, usize)>,
    /// Number of slots of sequences, before the spare ones.
    sequences: usize,
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

/// Bytes of the states of `sequences` sequences, for this rank's part of the model; with spare ones if tokens are guessed.
pub fn state_bytes(model: &Model, sequences: usize, guesses: bool) -> u64 {
    let bytes = |(_, state): (usize, StateSpec)| 4 * state.shape.iter().product::<usize>() as u64;
    slots(sequences, guesses) as u64 * specs(model).map(bytes).sum::<u64>()
}

fn slots(sequences: usize, guesses: bool) -> usize {
    sequences * (1 + usize::from(guesses))
}

impl States {
    /// Allocates those of `sequences` sequences.
    pub fn new(device: &Device, model: &Model, sequences: usize, guesses: bool) -> States {
        let slots = slots(sequences, guesses);
        let room = |(layer, StateSpec { name, shape: [rows, cols] })| {
            let room = device.zeros(slots * rows, cols, DType::F32, Category::Kv);
            ((layer, name), (room, rows))
        };
        States { all: specs(model).map(room).collect(), sequences }
    }

    fn of(&self, slot: usize) -> impl Iterator<Item = Tensor> + '_ {
        self.all.values().map(move |(room, rows)| room.view_rows(slot * rows..(slot + 1) * rows))
    }

    /// The spare states of the sequence in a slot.
    pub fn spare(&self, slot: usize) -> usize {
        self.sequences + slot
    }

    /// Copies the states in a slot to another.
    pub fn copy(&self, device: &Device, [from, to]: [usize; 2]) {
        self.of(from).zip(self.of(to)).for_each(|(from, to)| device.machine.copy(&from, &to));
    }

    /// Copies the states of the sequence in a slot to host memory.
    pub fn save(&self, device: &Device, slot: usize) -> Checkpoint {
        Rc::new(self.of(slot).map(|state| device.machine.read(&state).wait()).collect())
    }

    /// Sets the states of the sequence in a slot.
    pub fn load(&self, device: &Device, slot: usize, checkpoint: &Checkpoint) {
        for (state, bytes) in self.of(slot).zip(checkpoint.iter()) {
            device.machine.write(&state, bytes);
        }
    }

    /// A checkpoint from the bytes of its states, one after the other; `None` if they are of other states.
    pub fn split(&self, mut bytes: &[u8]) -> Option<Checkpoint> {
        let mut checkpoint = Vec::new();
        for (room, rows) in self.all.values() {
            let (own, rest) = bytes.split_at_checked(rows * row_bytes(room))?;
            checkpoint.push(own.to_vec());
            bytes = rest;
        }
        bytes.is_empty().then(|| Rc::new(checkpoint))
    }

    /// Bytes of the states of a sequence.
    pub fn bytes(&self) -> usize {
        self.all.values().map(|(room, rows)| rows * row_bytes(room)).sum()
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
