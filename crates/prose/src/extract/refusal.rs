//! Why a document has no text.

use std::fmt;

/// Reason why a record yields no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The bytes are not text.
    Binary,
    /// No charset fits the bytes.
    UnknownCharset,
    /// The input exceeds the size limit.
    PageTooLarge,
    /// The page exceeds the limit of elements.
    TooManyElements,
    /// No text was found.
    NoContent,
    /// The text is shorter than the options require.
    TooShort,
    /// A third-party extractor panicked.
    ExtractorFailed,
    /// A wiki page that redirects to another.
    Redirect,
    /// Macro expansion exceeds its limits.
    ExpansionTooLarge,
    /// Stop words are required, but the page's language has no list of them.
    NoStopWords,
    /// The source contains neither a section nor `\begin{document}`.
    NoDocument,
}

impl Refusal {
    /// Stable name for reports.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::Binary => "binary",
            Refusal::UnknownCharset => "unknown_charset",
            Refusal::PageTooLarge => "page_too_large",
            Refusal::TooManyElements => "too_many_elements",
            Refusal::NoContent => "no_content",
            Refusal::TooShort => "too_short",
            Refusal::ExtractorFailed => "extractor_failed",
            Refusal::Redirect => "redirect",
            Refusal::ExpansionTooLarge => "expansion_too_large",
            Refusal::NoStopWords => "no_stop_words",
            Refusal::NoDocument => "no_document",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}
