//! The device's memory: the range behind a pool, transfers from and to the host, and the basis of
//! [`fathom_tensor::spill`]'s transfers.

mod arena;
mod blocks;
mod copies;
mod fill;
mod read;
mod share;
mod stamps;
mod streams;
mod write;

pub use arena::GrowingRange;
pub use blocks::{AttentionOp, Counts, Work};
pub use copies::{DeviceCopies, cut};
pub use fill::fill;
pub use read::{Reads, read};
pub use share::{share, take};
pub use stamps::Stamps;
pub use streams::Streams;
pub use write::Writes;
