//! Rails around a model. A [`Rail`] judges a text and finds; the engine turns what it found into a
//! [`Verdict`] by the configured action; `GuardedService` wraps a service so that nothing is generated or released without
//! the verdicts of a [`Config`].
//!
//! - Everything fails closed: a rail that errs, panics or takes too long blocks, unless the file allows it by name.
//! - A stream equals the rewritten whole, byte for byte, for every chunking (`stream`).
//! - Verdicts, records and reasons never contain judged text.
//!
//! This crate knows nothing of HTTP, of engines and of the files of models: services come as
//! [`fathom_base::Service`], personal data and languages through the traits of [`needs`].

mod answers;
pub mod audit;
mod calls;
mod cel;
pub mod checks;
mod config;
mod engine;
pub mod evaluation;
mod guard;
mod guarded;
mod guards;
pub mod import;
mod journal;
mod judge;
mod ledger;
mod load;
mod metrics;
pub mod needs;
mod prompt;
mod rail;
pub mod rails;
mod reasoning;
mod registry;
pub mod report;
mod schema;
mod spans;
mod stream;
mod threads;
mod verdict;

pub use config::{
    AuditSettings, Config, ConfigError, ConfiguredRail, FILE, FileError, GuardSettings, Hold, OnFailure,
    Reasoning, Setting, ToolRule,
};
pub use engine::{Engine, Outcome, Selection, Subject};
pub use guard::Guard;
pub use guarded::{GuardedService, Session};
pub use guards::Guards;
pub use journal::{Journal, JournalParts, ModelCall, RailRun};
pub use judge::{JudgeError, Perplexity, jailbreak_affixes, perplexity};
pub use ledger::Ledger;
pub use metrics::{Metrics, RailCounters};
pub use needs::Needs;
pub use rail::{Action, Context, Cost, Failure, Horizon, Manifest, Opinion, Rail, RailInput, ToolUse, Until};
pub use registry::{BuildError, Entry, OptionError, OptionTable, RAILS, RailKind, entry, fields, find};
pub use stream::{AnswerStart, AnswerStream};
pub use verdict::{Decision, Direction, Edit, Finding, Reason, Verdict, edited};
