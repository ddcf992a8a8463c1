//! What a segment holds for its backward pass: in memory, or on its way to disk and back.
//!
//! A value leaves when its segment's forward pass is over, and its memory is free when the next segment's is. It is
//! fetched when the backward pass of the segment above begins, and waited for when its own begins: fixed points, so
//! the memory of a step does not depend on the disk's speed.

use fathom_tensor::spill::{Codec, Reading, Spill, Stored, Tag, Writing};
use fathom_tensor::{Category, DType, Device, Tensor};

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
    at: At,
}

enum At {
    Here(Tensor),
    Leaving(Writing),
    Away(Stored),
    Coming(Reading),
    /// A transfer failed. The step goes on with values that mean nothing; its caller asks [`Spill::check`] before it
    /// uses any of them.
    Lost,
}

impl Held {
    /// Stays in memory.
    pub fn here(tensor: Tensor) -> Held {
        Held { rows: tensor.rows(), cols: tensor.cols(), dtype: tensor.dtype(), at: At::Here(tensor) }
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
            At::Leaving(writing) => writing.retire().map_or(At::Lost, At::Away),
            other => other,
        };
    }

    /// Gives it memory again and begins to read.
    pub fn fetch(&mut self, offload: &Offload, device: &Device) {
        self.at = match std::mem::replace(&mut self.at, At::Lost) {
            At::Away(stored) => {
                let into = device.empty(self.rows, self.cols, self.dtype, Category::Activations);
                offload.spill.read(&stored, into).map_or(At::Lost, At::Coming)
            }
            other => other,
        };
    }

    /// The value, in memory; waits for it where it is on its way.
    pub fn take(mut self, offload: Option<&Offload>, device: &Device) -> Tensor {
        if let (At::Away(_), Some(offload)) = (&self.at, offload) {
            self.fetch(offload, device);
        }
        let back = match self.at {
            At::Here(tensor) => Some(tensor),
            // Not gone yet: no need to read it.
            At::Leaving(writing) => writing.retire_with().ok().map(|(_, tensor)| tensor),
            At::Coming(reading) => reading.retire().ok(),
            At::Away(_) | At::Lost => None,
        };
        back.unwrap_or_else(|| device.empty(self.rows, self.cols, self.dtype, Category::Activations))
    }
}
