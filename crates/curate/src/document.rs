//! The unit of text: one file or one record, with its origin.

use twox_hash::XxHash3_64;

/// A piece of text that belongs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text, valid UTF-8 and never blank.
    pub text: String,
    /// Where it came from: `file`, `file#record` (line or row, counted from 1), or `first..last` when joined.
    pub source: String,
    /// Documents with the same group may be joined: one crate, one folder the user named, one record.
    pub group: u64,
}

/// The group of a name: its XXH3 hash, so that the same name means the same group on every machine.
pub(crate) fn group_of(name: &str) -> u64 {
    XxHash3_64::oneshot(name.as_bytes())
}

/// The file of an id, which may end in the number of a record.
pub(crate) fn file_of(id: &str) -> &str {
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    id.rsplit_once('#').filter(|(_, number)| is_number(number)).map_or(id, |(file, _)| file)
}
