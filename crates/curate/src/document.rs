//! The unit of text: one file or one record, with its source.

use twox_hash::XxHash3_64;

/// A coherent piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text, valid UTF-8 and never blank.
    pub text: String,
    /// Source of the text: `file`, `file#record` (line or row, counted from 1), or `first..last` when joined.
    pub source: String,
    /// Group within which documents may be joined: a crate, a folder named by the user, or a record.
    pub group: u64,
}

/// Group of a name: its XXH3 hash, so that equal names give equal groups on every machine.
pub(crate) fn group_of(name: &str) -> u64 {
    XxHash3_64::oneshot(name.as_bytes())
}

/// File name part of an id, which may end in a record number.
pub(crate) fn file_of(id: &str) -> &str {
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    id.rsplit_once('#').filter(|(_, number)| is_number(number)).map_or(id, |(file, _)| file)
}
