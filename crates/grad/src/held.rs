//! What a segment holds for its backward pass: in memory, or on its way to disk and back.
//!
//! A value leaves when its segment's forward pass is over, and its memory is free when the next segment reaches its
//! attention. It is fetched and waited for at fixed points among the steps of the schedule ([`crate::schedule`]), so
//! the memory of a step does not depend on the disk's speed. What is on disk can be read more than once.

use fathom_tensor::spill::{Codec, Reading, Spill, Stored, Tag, Writing};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::graph::Val;

/// Disk behind a tape, and how values are written.
#[derive(Clone)]
pub struct Offload {
    /// The engine.
    pub spill: Spill,
    /// How values are written.
    pub codec: Codec,
}

impl Offload {
    /// Values are written as they are.
    pub fn plain(spill: Spill) -> Offload {
        Offload { spill, codec: Codec::AsIs }
    }
}

/// A value between forward and backward.
pub(crate) struct Held {
    rows: usize,
    cols: usize,
    dtype: DType,
    stored: Option<Stored>,
    at: At,
}

enum At {
    Here(Tensor),
    Leaving(Writing),
    Away,
    Coming(Reading),
    /// A transfer failed. The step goes on with values that mean nothing; its caller asks [`Spill::check`] before it
    /// uses any of them.
    Lost,
}

impl Held {
    /// Stays in memory.
    pub fn here(tensor: Tensor) -> Held {
        let (rows, cols, dtype) = (tensor.rows(), tensor.cols(), tensor.dtype());
        Held { rows, cols, dtype, stored: None, at: At::Here(tensor) }
    }

    /// Sends it to disk. Nobody else may read the tensor from now on.
    pub fn leave(self, offload: &Offload, tag: Tag) -> Held {
        let at = match self.at {
            At::Here(tensor) => offload.spill.write(tensor, offload.codec, tag).map_or(At::Lost, At::Leaving),
            other => other,
        };
        Held { at, ..self }
    }

    /// Waits until it has left; its memory is free then.
    pub fn settle(&mut self) {
        self.at = match std::mem::replace(&mut self.at, At::Lost) {
            At::Leaving(writing) => writing.retire().map_or(At::Lost, |stored| {
                self.stored = Some(stored);
                At::Away
            }),
            other => other,
        };
    }

    /// Gives it memory again and begins to read; what has not left yet stays.
    pub fn fetch(&mut self, offload: &Offload, device: &Device) {
        self.at = match (std::mem::replace(&mut self.at, At::Lost), &self.stored) {
            (At::Leaving(writing), _) => writing.retire_with().map_or(At::Lost, |(stored, tensor)| {
                self.stored = Some(stored);
                At::Here(tensor)
            }),
            (At::Away, Some(stored)) => {
                device.pool.label(stored.tag().name, false);
                let into = device.empty(self.rows, self.cols, self.dtype, Category::Activations);
                offload.spill.read(stored, into).map_or(At::Lost, At::Coming)
            }
            (other, _) => other,
        };
    }

    /// The value, in memory; waits for it where it is on its way. What is on disk can be fetched again.
    pub fn arrive(&mut self, device: &Device) -> Tensor {
        let back = match std::mem::replace(&mut self.at, At::Away) {
            At::Here(tensor) => Some(tensor),
            At::Coming(reading) => reading.retire().ok(),
            At::Leaving(_) | At::Away | At::Lost => None,
        };
        back.unwrap_or_else(|| {
            self.at = At::Lost;
            device.empty(self.rows, self.cols, self.dtype, Category::Activations)
        })
    }
}

/// The values that a segment holds, and disk if there is one behind them.
pub(crate) struct Holding {
    pub vals: Vec<(Val, Held)>,
    /// What the backward pass reads first.
    pub first_reads: Vec<Val>,
}

impl Holding {
    fn get(&mut self, val: Val) -> Option<&mut Held> {
        self.vals.iter_mut().find(|(held, _)| *held == val).map(|(_, held)| held)
    }

    /// See [`Held::settle`].
    pub fn settle(&mut self) {
        self.vals.iter_mut().for_each(|(_, held)| held.settle());
    }

    /// Begins to read one value.
    pub fn fetch(&mut self, val: Val, offload: &Offload, device: &Device) {
        if let Some(held) = self.get(val) {
            held.fetch(offload, device);
        }
    }

    /// Begins to read what the backward pass reads first.
    pub fn fetch_first(&mut self, offload: &Offload, device: &Device) {
        for val in self.first_reads.clone() {
            self.fetch(val, offload, device);
        }
    }

    /// See [`Held::arrive`].
    ///
    /// # Panics
    /// If the value is not held.
    pub fn arrive(&mut self, val: Val, device: &Device) -> Tensor {
        match self.get(val) {
            Some(held) => held.arrive(device),
            None => panic!("value {val:?} is not held"),
        }
    }
}

/// What a pass over a segment knows of values outside memory.
pub(crate) struct Far<'a> {
    pub offload: &'a Offload,
    /// Of this segment, in the backward pass.
    pub own: Option<&'a mut Holding>,
    /// Of the segment below.
    pub below: Option<&'a mut Holding>,
}
