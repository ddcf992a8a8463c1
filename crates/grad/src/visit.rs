//! A value while it is in memory: fetched for its first user, and freed after the last.

use fathom_tensor::Tensor;
use fathom_tensor::mesh::Flying;
use fathom_tensor::spill::Reading;

/// The users of a value, and its elements while there are any.
#[derive(Default)]
pub(crate) struct Visit {
    users: u32,
    at: At,
}

#[derive(Default)]
enum At {
    #[default]
    Absent,
    Coming(Tensor, Coming),
    Here(Tensor),
}

/// A fetch in flight.
pub(crate) enum Coming {
    Disk(Vec<Reading>),
    /// From other ranks.
    Ranks(Flying),
}

impl Coming {
    /// Waits until the value has arrived.
    fn arrive(self) {
        match self {
            // Failures are the engine's first error, reported by `StateDisk::check`.
            Coming::Disk(readings) => readings.into_iter().for_each(|reading| drop(reading.retire())),
            Coming::Ranks(flying) => flying.wait(),
        }
    }
}

impl Visit {
    /// The elements, once they have arrived.
    pub fn tensor(&self) -> Option<Tensor> {
        match &self.at {
            At::Here(tensor) => Some(tensor.clone()),
            At::Absent | At::Coming(..) => None,
        }
    }

    /// Adds a user: starts a fetch unless the value is in memory or coming.
    pub fn enter(&mut self, fetch: impl FnOnce() -> (Tensor, Coming)) {
        self.users += 1;
        if matches!(self.at, At::Absent) {
            let (tensor, coming) = fetch();
            self.at = At::Coming(tensor, coming);
        }
    }

    /// Waits for a fetch.
    pub fn wait(&mut self) {
        self.at = match std::mem::take(&mut self.at) {
            At::Coming(tensor, coming) => {
                coming.arrive();
                At::Here(tensor)
            }
            other => other,
        };
    }

    /// Removes a user; the last one frees the memory.
    pub fn leave(&mut self) {
        self.users -= 1;
        if self.users == 0
            && let At::Coming(_, coming @ Coming::Ranks(_)) = std::mem::take(&mut self.at)
        {
            // Other users wait until theirs has arrived.
            coming.arrive();
        }
    }
}
