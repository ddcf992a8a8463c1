//! Transfers of results from a machine to the host.

use std::fmt;

use crate::Tensor;

/// A result in transfer to the host. The buffer stays charged until [`InFlight::wait`].
pub struct InFlight {
    keep: Tensor,
    fetch: Box<dyn FnOnce() -> Vec<u8>>,
}

impl InFlight {
    /// Wraps a transfer of `tensor` that `fetch` completes.
    pub fn new(tensor: &Tensor, fetch: impl FnOnce() -> Vec<u8> + 'static) -> InFlight {
        InFlight { keep: tensor.clone(), fetch: Box::new(fetch) }
    }

    /// The retire point: the elements row by row, little-endian. Empty from a machine without data.
    pub fn wait(self) -> Vec<u8> {
        let InFlight { keep, fetch } = self;
        let bytes = fetch();
        drop(keep);
        bytes
    }

    /// The retire point of one f32; zero from a machine without data.
    pub fn wait_f32(self) -> f32 {
        self.wait().first_chunk::<4>().map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({:?})", self.keep)
    }
}
