//! The device's memory: the range behind a pool, the way of bytes from and to the host, and what transfers of
//! [`fathom_tensor::spill`] stand on.

mod arena;
mod blocks;
mod copies;
mod fill;
mod read;
mod share;
mod stamps;
mod streams;
mod write;

pub use arena::Growing;
pub use blocks::{Attended, Counts, Work};
pub use copies::{DeviceCopies, cut};
pub use fill::fill;
pub use read::{Reads, read};
pub use share::{share, take};
pub use stamps::Stamps;
pub use streams::Streams;
pub use write::Writes;
