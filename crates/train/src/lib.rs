//! The training loop.
//!
//! A stage of a run takes micro-batches from a [`Source`] and minimises an [`Objective`], in [`Trainer::step`]: packed
//! samples of token stores and the cross-entropy of the next token, unless a recipe selects others. Pretraining and
//! context extension differ in lengths, rotary frequencies and data. A plan is the same step on the machine without
//! data.
//!
//! This crate knows nothing of HTTP or serving.

pub mod activations;
mod adapted;
mod agree;
mod blend;
mod checkpoint;
pub mod claim;
mod distill;
pub mod encoder;
mod error;
pub mod fault;
pub mod fuzz;
mod held_out;
mod hidden;
mod hidden_loss;
mod in_step;
mod loaded;
mod look_ahead;
mod micro_batch;
mod minimised;
mod new_model;
mod objective;
pub mod offload;
pub mod parallel;
mod pass;
mod picture;
mod place_rules;
mod plan;
pub mod policy;
pub mod preference;
pub mod recipe;
mod recipe_check;
mod reference;
pub mod retrieval;
mod rounded;
mod rules;
mod run;
mod schedule;
pub mod seq2seq;
mod several;
mod source;
pub mod stage;
mod state;
mod step;
mod teacher;
mod teacher_inputs;
mod terms;
mod timeline;
mod weights;

pub use adapted::adapted;
pub use blend::{Stores, needs_corpus};
pub use checkpoint::{Base, Checkpoint, Checkpoints, PendingSave, SaveStats, compare_checkpoints};
pub use distill::Distill;
pub use error::{Error, Result};
pub use held_out::held_out;
pub use hidden_loss::HiddenLoss;
pub use in_step::InStep;
pub use micro_batch::{ContrastLosses, MicroBatch, RolloutColumns, SourceTokens, StepTotals};
pub use new_model::{new_model, train_experts};
pub use objective::{
    Answers, Best, Compares, CrossEntropy, Dft, Goal, LabelMetrics, Noise, Objective, ObjectiveSum,
    TeacherUse, Weigh, WeightedLoss,
};
pub use picture::{Subject, longest_stage};
pub use place_rules::check_places;
pub use plan::{
    Bar, Budgets, Candidate, Change, Draft, Edit, Gantt, Growth, Instead, Lane, Longest, MeshPlaces,
    MeshPlan, MeshSolution, MeshState, OfRank, Plan, Record, Resource, Row, Say, Solution, StageSettings,
    Why, Workload, distinct, fuzz_config, plan,
};
pub use recipe_check::{check, check_numbers, check_training, outdated};
pub use reference::{Reference, Refers, Sync};
pub use run::{
    Amax, Hooks, Outcome, Progress, Rebuild, Run, RunParts, StageEnd, StageTime, rank_folder, together,
};
pub use schedule::RateSchedule;
pub use source::{OpenedSource, Source, SourceReport, Sources, StepShare, loader_spec};
pub use state::open_state_disk;
pub use step::{StepResult, Trainer};
pub use weights::{frozen, quantizes};
