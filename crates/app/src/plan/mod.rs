//! Plans of a job's training steps on the machine without data: resources they need, and changes that would reduce
//! them.

mod json;
mod meshes;
mod page;
mod stages;
mod trace;

pub use json::{LARGEST, flops, rank_place};
pub use meshes::{Mesh, Meshes};
pub(crate) use stages::rollout_of;
pub use stages::{Figures, PlanOptions, PlannedStage, Plans, plan};
pub use trace::write as trace;
