//! The device's memory: the range behind a pool, the way of bytes from and to the host, and what transfers of
//! [`fathom_tensor::spill`] stand on.

mod arena;
mod copies;
mod fill;
mod read;
mod share;
mod streams;

pub use arena::Growing;
pub use copies::DeviceCopies;
pub use fill::fill;
pub use read::{Reads, read};
pub use share::{share, take};
pub use streams::Streams;
