//! Records of a file: what a reader returns, loses and refuses.

use std::io;

use fathom_prose::extract::Content;

use super::record::Columns;
use crate::counters::{Counters, Damage, Reason};

/// Next item of a reader.
pub(super) enum Step {
    Record(Raw),
    /// Lost records and the reason. The stream continues.
    Lost(Loss),
    /// The file cannot be read further.
    Failed(io::Error),
    /// Regular end of the file.
    End,
}

/// A record without its file.
pub(super) struct Raw {
    pub(crate) content: Content,
    /// Number of the line, row, part or record, from 1, if a file can hold several.
    pub(crate) number: Option<u64>,
    pub(super) columns: Columns,
}

impl Raw {
    /// A plain-text record.
    pub(super) fn text(text: String, number: Option<u64>) -> Raw {
        Raw { content: Content::Text(text), number, columns: Columns::new() }
    }
}

/// Records that a reader could not return.
pub(super) struct Loss {
    pub(crate) reason: Reason,
    /// Minimum number of records lost.
    pub(crate) records: u64,
    pub(super) bytes: u64,
    pub(crate) place: String,
    pub(crate) detail: String,
}

impl Loss {
    /// Counts the loss; only damage is listed with its place, since most pages of a crawl may be redirects and
    /// pictures.
    pub(crate) fn count(self, file: &str, counters: &mut Counters) {
        let Loss { reason, records, bytes, place, detail } = self;
        match reason {
            Reason::OtherStatus | Reason::OtherType | Reason::Redirect | Reason::OtherNamespace => {
                counters.drop_documents(reason, records, bytes);
            }
            _ => counters.damaged(Damage { file: file.to_string(), place, reason, detail }, records, bytes),
        }
    }
}

/// Reader of one open file.
pub(super) trait Records: Send {
    /// Returns the next step; not called again after `Failed` or `End`.
    fn step(&mut self) -> Step;

    /// At the end of the file: reports if no record had the text field.
    fn no_field(&self) -> Option<NoField> {
        None
    }
}

/// Report that no record of a file has the text field.
pub(super) struct NoField {
    pub(crate) problem: String,
    /// Names of the existing fields.
    pub(crate) names: String,
}
