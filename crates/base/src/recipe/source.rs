//! Sources of values.

use std::fmt;

use crate::secrets::redacted;

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The default of the recipe type.
    Default,
    /// A shipped recipe.
    Recipe {
        /// Its name.
        name: String,
        /// One-based line of the key.
        line: usize,
    },
    /// A file.
    File {
        /// Its path as given.
        path: String,
        /// One-based line of the key.
        line: usize,
    },
    /// The default of the recipe type, restored because a later layer sets a key with which an earlier value makes no
    /// sense.
    Displaced {
        /// The displaced value and its source.
        value: String,
        /// The key set by the later layer.
        by: String,
    },
    /// A setting `a.b=v`.
    CommandLine,
    /// A flag such as `--minutes`.
    Flag(String),
}

impl Source {
    /// Returns whether the value is the default, including one that was restored.
    pub fn is_default(&self) -> bool {
        matches!(self, Source::Default | Source::Displaced { .. })
    }

    /// Returns whether both are lines of the same text.
    pub(crate) fn is_same_text(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Recipe { name, .. }, Source::Recipe { name: theirs, .. }) => name == theirs,
            (Source::File { path, .. }, Source::File { path: theirs, .. }) => path == theirs,
            _ => self == other,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::Recipe { name, line } => write!(f, "recipe {name}, line {line}"),
            Source::File { path, line } => write!(f, "file {path}:{line}"),
            Source::Displaced { value, by } => write!(f, "default: {by} displaced {value}"),
            Source::CommandLine => f.write_str("command line"),
            Source::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A text from which values are read; together with a line it makes a [`Source`].
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Recipe { name: String },
    File { path: String },
    CommandLine { text: String },
    Flag { flag: String },
}

impl Origin {
    /// Returns the source of a value on a one-based line.
    pub fn source(&self, line: usize) -> Source {
        match self {
            Origin::Recipe { name } => Source::Recipe { name: name.clone(), line },
            Origin::File { path } => Source::File { path: path.clone(), line },
            Origin::CommandLine { .. } => Source::CommandLine,
            Origin::Flag { flag } => Source::Flag(flag.clone()),
        }
    }

    /// Describes the place of an error on a one-based line.
    pub fn place(&self, line: usize) -> String {
        match self {
            Origin::CommandLine { text } => format!("command line, `{}`", redacted(text)),
            _ => self.source(line).to_string(),
        }
    }

    /// Returns whether the text was typed on a command line.
    pub fn is_typed(&self) -> bool {
        matches!(self, Origin::CommandLine { .. } | Origin::Flag { .. })
    }
}
