//! The training step and its plan.
#![allow(clippy::unwrap_used)]

mod checkpoint;
mod plan;
mod state;
mod step;
