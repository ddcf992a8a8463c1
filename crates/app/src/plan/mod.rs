//! The training steps of a job on the machine without data: what they need, and what would change that.

mod meshes;
mod page;
mod stages;
mod trace;

pub use meshes::{Mesh, Meshes};
pub(crate) use stages::rollout_of;
pub use stages::{Asked, Figures, Planned, Plans, plan};
pub use trace::write as trace;
