//! The training step and its plan.
#![allow(clippy::unwrap_used)]

mod checkpoint;
mod draft;
mod mesh;
mod plan;
mod published;
mod state;
mod step;
