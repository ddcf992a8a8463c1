//! Where a value came from.

use std::fmt;

use crate::secrets::redacted;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The recipe type's own default.
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
    /// The type's own default, in place of a value of an earlier layer that made no sense with what a later one sets.
    Displaced {
        /// The value and its source.
        value: String,
        /// The key that the later layer sets.
        by: String,
    },
    /// A setting `a.b=v`.
    CommandLine,
    /// A flag such as `--minutes`.
    Flag(String),
}

impl Source {
    /// Whether no layer's value holds: the default does.
    pub fn is_default(&self) -> bool {
        matches!(self, Source::Default | Source::Displaced { .. })
    }

    /// Whether both are lines of one text.
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

/// A text that values are read from; with a line it gives a [`Source`].
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Recipe { name: String },
    File { path: String },
    CommandLine { text: String },
    Flag { flag: String },
}

impl Origin {
    /// The source of a value on a one-based line.
    pub fn source(&self, line: usize) -> Source {
        match self {
            Origin::Recipe { name } => Source::Recipe { name: name.clone(), line },
            Origin::File { path } => Source::File { path: path.clone(), line },
            Origin::CommandLine { .. } => Source::CommandLine,
            Origin::Flag { flag } => Source::Flag(flag.clone()),
        }
    }

    /// The place of an error on a one-based line, in words.
    pub fn place(&self, line: usize) -> String {
        match self {
            Origin::CommandLine { text } => format!("command line, `{}`", redacted(text)),
            _ => self.source(line).to_string(),
        }
    }

    /// Whether the text was typed on a command line.
    pub fn is_typed(&self) -> bool {
        matches!(self, Origin::CommandLine { .. } | Origin::Flag { .. })
    }
}
