//! A value while it is in memory: fetched for its first user, and freed after the last.

use fathom_tensor::Tensor;
use fathom_tensor::mesh::Transfers;
use fathom_tensor::spill::FileRead;

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
    Coming(Tensor, Fetch),
    Here(Tensor),
}

/// A fetch in flight.
pub(crate) enum Fetch {
    Disk(Vec<FileRead>),
    /// From other ranks.
    Ranks(Transfers),
}

impl Fetch {
    /// Waits until the value has arrived.
    fn arrive(self) {
        match self {
            // Failures are the engine's first error, reported by `StateDisk::check`.
            Fetch::Disk(readings) => readings.into_iter().for_each(|reading| drop(reading.retire())),
            Fetch::Ranks(flying) => flying.wait(),
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
    pub fn enter(&mut self, fetch: impl FnOnce() -> (Tensor, Fetch)) {
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
            && let At::Coming(_, coming @ Fetch::Ranks(_)) = std::mem::take(&mut self.at)
        {
            // Other users wait until theirs has arrived.
            coming.arrive();
        }
    }
}
