//! A violated rule and where.

/// A violated rule and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Violation {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Violation {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.into(), line, message: message.into() }
    }
}
