//! Ranks as processes, each with a device: NCCL carries tensors from device to device, plain sockets carry the words that
//! go with them.
//!
//! Sums are not left to NCCL: the collectives above a link add in the order of the ranks, in f32, so a run gives the same
//! sums on threads and on processes. What goes over is messages, each pair of ranks and each direction with a
//! communicator of its own: messages of one pair arrive in the order of their sending, and none waits for those of
//! another pair, as the link's contract wants. A message's label goes by socket ([`control`]): a receiver knows that its
//! sender has come there, and that it sends what is expected, before the device is told to wait for it.
//!
//! A thread of its own watches what is under way ([`watch`]): a failure of NCCL, a rank that is gone or ended the run, or a
//! message that takes longer than the deadline ends all communicators, so no device waits for ever.
//!
//! Compiled and run over a pretended device; never run on several GPUs.

mod comm;
mod control;
mod line;
mod link;
mod sys;
#[cfg(test)]
mod tests;
mod watch;
mod world;

pub use comm::{Communicator, Kind, UniqueId};
pub use control::Lost;
pub use sys::Nccl;
pub use world::World;
