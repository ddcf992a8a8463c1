//! The number of a parameter.

/// Index of a weight in [`Params`](crate::Params).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

impl ParamId {
    /// The index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
