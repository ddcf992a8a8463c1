//! Ranks as processes, each with a device: NCCL transfers tensors from device to device, plain sockets transfer the
//! accompanying control messages.
//!
//! NCCL's own sums are not used: the collectives above a link add in rank order in f32, so threads and processes give
//! the same sums. Only messages are transferred, with a separate communicator for each pair of ranks and each
//! direction: messages of one pair arrive in the order of sending, and none waits for those of another pair, as the
//! link's contract requires. A message's label goes over a socket ([`control`]): a receiver knows that its sender has
//! reached the message, and that it sends what is expected, before the device is made to wait for it.
//!
//! A separate thread watches messages in flight ([`watch`]), from the first meeting until all ranks have left: a
//! failure of NCCL, a rank that is gone or has ended the run, or a message that exceeds the deadline aborts all
//! communicators, so that no device waits forever. They are aborted in one group while no thread is in a call
//! ([`table`]); if that does not return, the process exits.
//!
//! This relies on behaviour that NCCL does not promise: communicators of one device are used concurrently, and ranks
//! issue in different orders. That they do not wait for each other depends on room for all their kernels ([`world`]
//! sizes them) and on a driver queue for each stream.
//!
//! Tested between processes over the simulated NCCL of `fathom-rehearsal`, which is strict; never run on several GPUs.

mod comm;
mod control;
mod line;
mod link;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod turns;
mod watch;
mod world;

pub use comm::{Communicator, Kind};
pub use control::RecvFailure;
pub use sys::Nccl;
pub use sys::UniqueId;
pub use world::World;
