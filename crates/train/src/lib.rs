//! The one training loop.
//!
//! Pretraining, context extension and tuning differ in a source of batches and an objective; everything else is
//! [`Trainer::step`]. A plan is that very step on the machine without data.
//!
//! This crate knows nothing of HTTP or serving.
#![deny(missing_docs)]

mod plan;
mod schedule;
mod step;

pub use plan::{Plan, plan};
pub use schedule::{Decay, Schedule};
pub use step::{InStep, MicroBatch, StepResult, Trainer};
