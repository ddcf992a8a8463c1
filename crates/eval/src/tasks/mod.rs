//! Tasks in the format of lm-evaluation-harness (0.4.13), over local sets: the same requests, answers, figures and
//! results. What a task file writes in Python is refused by name.

mod builtin;
mod by_language;
pub mod compare;
mod config;
mod data;
mod doc;
mod files;
mod filters;
mod index;
mod languages;
mod measure;
mod measures;
mod pass_at_k;
mod programs;
mod prompt;
mod results;
mod run;
mod subject;
mod yaml;

pub use by_language::Languages;
pub use config::TaskConfig;
pub use data::{Data, Sets, room};
pub use index::{GroupNode, Index, Node};
pub use measure::OutputType;
pub use pass_at_k::pass_at_k;
pub use programs::RunPrograms;
pub use results::{Results, TaskResult, digest};
pub use run::{Options, Render, prepare, run};
pub use subject::{Cache, NO_ROLLING, Subject, answer_tokens};
