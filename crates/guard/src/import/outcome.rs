//! Results of a translation.

use std::path::PathBuf;

use crate::config::FileError;

/// A translated folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NemoImport {
    /// Text of `guard.toml`.
    pub toml: String,
    /// Number of its rails.
    pub rails: usize,
    /// Things that it does not say, in the order of files and lines.
    pub unsaid: Vec<ImportGap>,
}

/// A thing that a `guard.toml` cannot say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImportGap {
    /// File, relative to the folder.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Name of the key, flow or file.
    pub name: String,
    /// Reason.
    pub why: String,
}

impl std::fmt::Display for ImportGap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file.display(), self.line, self.name, self.why)
    }
}

/// Error of a folder that is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] fathom_base::Error),
    /// A file is malformed, or of another version.
    #[error(transparent)]
    Wrong(#[from] FileError),
    /// There is no configuration.
    #[error("{} has no config.yml; give the folder of a configuration of NeMo Guardrails", .0.display())]
    Missing(PathBuf),
}
