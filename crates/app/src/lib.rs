//! Jobs as values, and the functions that work on them.
//!
//! A recipe is resolved once into a [`Job`]: the machine, the specification and mesh of every stage, the run's folder.
//! Functions take a job, or a small request if there is no recipe, and return values; they report progress to
//! [`Events`]:
//!
//! ```no_run
//! # fn main() -> fathom_app::Result<()> {
//! use fathom_app::{Job, Silent, library, plan, train};
//!
//! let recipe = library::load(library::layers("quickstart", &["stage.0.steps=10".into()]))?;
//! let job = Job::new(recipe, &Silent)?;
//! for stage in plan(&job, None)?.stages(plan::PlanOptions::default(), &Silent) {
//!     println!("{}", stage?.figures.settled.plan.usage.peak_live);
//! }
//! train(&job, &train::Order::default(), &Silent)?;
//! # Ok(()) }
//! ```
//!
//! Tensor operations and allocations panic on failure; every function here catches that and returns it as an [`Error`].
//!
//! This crate has no notion of arguments or terminals: it prints nothing, never exits the process, and keeps no state
//! between jobs.

pub mod adapters;
pub mod board;
pub mod budgets;
mod calibration;
pub mod card;
pub mod chat;
pub mod crew;
#[cfg(feature = "curate")]
pub mod curate;
pub mod data;
pub mod editors;
pub mod encoder_eval;
mod encoder_files;
mod error;
pub mod evaluate;
mod events;
pub mod export;
mod exported;
pub mod figures;
pub mod foreign;
pub mod generate;
pub mod guardrails;
pub mod host;
pub mod inspect;
pub mod job;
pub mod judged;
mod judges;
pub mod lesson;
pub mod library;
pub mod machine;
pub mod measure;
pub mod models;
pub mod opening;
pub mod output;
pub mod place;
pub mod plan;
mod profiles;
pub mod prune;
pub mod python_files;
pub mod quantize;
pub mod report;
pub mod resources;
pub mod retrieval;
pub mod reward_bench;
pub mod rounds;
pub mod scale;
pub mod score;
pub mod selftest;
pub mod serve;
pub mod several;
pub mod spread;
pub mod stored;
pub mod tasks;
pub mod text;
pub mod train;
mod writer;

pub use error::{Error, Result, caught, in_full};
pub use evaluate::evaluate;
pub use events::{Event, Events, Silent};
pub use export::{export, import};
pub use generate::generate;
pub use host::Host;
pub use job::Job;
pub use machine::Machine;
pub use place::RankPlace;
pub use plan::plan;
pub use train::train;
