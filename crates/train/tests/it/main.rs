//! The training step and its plan.
#![allow(clippy::unwrap_used)]

mod again;
mod budgets;
mod checkpoint;
mod configs;
mod draft;
mod experts;
mod mesh;
mod mesh_experts;
mod mesh_families;
mod mesh_optimizers;
mod mesh_plan;
mod narrow;
mod nemo;
mod plan;
mod published;
mod solve_mesh;
mod state;
mod step;
mod survive;
