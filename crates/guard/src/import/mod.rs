//! NeMo Guardrails' folder as a `guard.toml`: `config.yml` with its prompts, `.railsignore` and Colang 1.0 are read, nothing
//! is executed, and everything that our file cannot say is listed by name and line.

mod colang;
mod dialog;
mod draft;
mod expression;
mod flows;
mod folder;
mod keys;
mod options;
mod outcome;
mod yaml;

use std::path::Path;

pub use colang::{Definition, DefinitionKind, Event, Form, Program, Step, StepKind};
pub use expression::Expression;
pub use outcome::{ImportError, ImportGap, NemoImport};
pub use yaml::check_yaml_depth;

/// Translates a folder.
///
/// # Errors
/// No configuration there; a file that cannot be read or is malformed; Colang 2.
pub fn from_nemo(folder: &Path) -> Result<NemoImport, ImportError> {
    let files = folder::read(folder)?;
    Ok(keys::translate(&files))
}
