//! The training step and its plan.

mod plan;
mod step;
