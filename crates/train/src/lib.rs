//! The one training loop.
//!
//! Every stage of a run draws packed samples of token stores and minimises the cross-entropy of the next token, in
//! [`Trainer::step`]. Pretraining and context extension differ in lengths, rotary frequencies and data. A plan is the same
//! step on the machine without data.
//!
//! This crate knows nothing of HTTP or serving.

pub mod activations;
mod agree;
mod blend;
mod checkpoint;
mod error;
pub mod fault;
pub mod fuzz;
mod new_model;
pub mod offload;
pub mod parallel;
mod picture;
mod place_rules;
mod plan;
pub mod recipe;
mod recipe_check;
mod run;
mod schedule;
mod source;
pub mod stage;
mod state;
mod step;
mod timeline;

pub use blend::{Stores, needs_corpus};
pub use checkpoint::{Checkpoint, Checkpoints, Saved, Saving, compare_checkpoints};
pub use error::{Error, Result};
pub use new_model::{new_model, train_experts};
pub use picture::{Subject, longest_stage};
pub use place_rules::check_places;
pub use plan::{
    Bar, Budgets, Candidate, Change, Draft, Edit, Gantt, Growth, Instead, Lane, Longest, MeshPlaces,
    MeshPlan, MeshSolution, MeshState, OfRank, Plan, Resource, Row, Say, Settled, Solution, Why, Workload,
    distinct, fuzz_config, plan,
};
pub use recipe_check::{check, check_training};
pub use run::{Amax, Anew, Ended, Hooks, Outcome, Parts, Progress, Run, rank_folder};
pub use schedule::{Decay, Schedule};
pub use state::{open_state_disk, state_disk_bytes};
pub use step::{InStep, MicroBatch, StepResult, Trainer};
