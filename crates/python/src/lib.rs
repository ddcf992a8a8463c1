//! The native half of the Python package `fathom`: handles of models and runs, recipes, plans, and verbs. Arguments and
//! results are numbers, texts and JSON; the classes that users see are Python's.
//!
//! A model, a run and a server each have a thread of their own. `edge` is the only way from Python into the rest of
//! Fathom: it releases the interpreter's lock, turns panics into errors, and looks for Ctrl-C while it waits.

mod array;
mod curate;
mod edge;
mod error;
mod events;
mod functions;
mod model;
mod plan;
mod recipe;
mod retrieval;
mod run;
mod scale;
mod serve;
mod tokenizer;
mod verbs;

use pyo3::prelude::*;

/// Runs the command line; returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, argv: Vec<std::ffi::OsString>, program: std::path::PathBuf) -> u8 {
    let program = fathom_cli::Program { argv, image: program.clone(), path: program };
    py.detach(|| fathom_cli::main(program))
}

/// The native module.
#[pymodule]
mod _fathom {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::curate::{curate, curation_load};
    #[pymodule_export]
    use crate::events::{Channel, Records};
    #[pymodule_export]
    use crate::functions::Calls;
    #[pymodule_export]
    use crate::main;
    #[pymodule_export]
    use crate::model::{Model, Request};
    #[pymodule_export]
    use crate::plan::plan;
    #[pymodule_export]
    use crate::recipe::{recipe_diff, recipe_load, recipe_names, translate};
    #[pymodule_export]
    use crate::retrieval::{Guard, Index, index};
    #[pymodule_export]
    use crate::run::Run;
    #[pymodule_export]
    use crate::scale::scale;
    #[pymodule_export]
    use crate::serve::Server;
    #[pymodule_export]
    use crate::tokenizer::Tokenizer;
    #[pymodule_export]
    use crate::verbs::{evaluate, evaluate_tasks, export, forked, prune, quantize, report, score};
}
