//! The training step and its plan.
#![allow(clippy::unwrap_used)]

mod adapters;
mod adapters_wide;
mod again;
mod budgets;
mod checkpoint;
mod configs;
mod distill;
mod draft;
mod experts;
mod frozen;
mod leading;
mod mesh;
mod mesh_experts;
mod mesh_families;
mod mesh_optimizers;
mod mesh_plan;
mod narrow;
mod nemo;
mod noise;
mod objective;
mod plan;
mod plan_whole;
mod preference;
mod published;
mod quantised;
mod rewards;
mod rounded;
mod several;
mod sft;
mod solve_mesh;
mod state;
mod step;
mod survive;
