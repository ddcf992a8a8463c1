//! Ranks as processes, each with a device: NCCL carries tensors from device to device, plain sockets carry the words that
//! go with them.
//!
//! Sums are not left to NCCL: the collectives above a link add in the order of the ranks, in f32, so a run gives the same
//! sums on threads and on processes. What goes over is messages, each pair of ranks and each direction with a
//! communicator of its own: messages of one pair arrive in the order of their sending, and none waits for those of
//! another pair, as the link's contract wants. A message's label goes by socket ([`control`]): a receiver knows that its
//! sender has come there, and that it sends what is expected, before the device is made to wait for it.
//!
//! A thread of its own watches what is under way ([`watch`]), from the first meeting until all have left: a failure of NCCL, a rank
//! that is gone or ended the run, or a message that takes longer than the deadline ends all communicators, so no device waits for
//! ever. They are ended in one group while no thread is in a call ([`table`]); if that does not end, the process does.
//!
//! What NCCL does not promise: communicators of one device are used at once, and ranks issue in orders of their own. That they do
//! not wait for each other rests on room for all their kernels ([`world`] sizes them) and on a queue of the driver for each stream.
//!
//! Run between processes over the pretended NCCL of `fathom-rehearsal`, which is strict; never run on several GPUs.

mod comm;
mod control;
mod line;
mod link;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod watch;
mod world;

pub use comm::{Communicator, Kind, UniqueId};
pub use control::Lost;
pub use sys::Nccl;
pub use world::World;
