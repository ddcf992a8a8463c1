//! Progress of the making of a corpus.

/// Phase of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading everything once and drawing the sample.
    Read,
    /// Training the tokenizer.
    Tokenizer,
    /// Reading again, encoding and writing.
    Encode,
}

/// Progress of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Current phase.
    pub phase: Phase,
    /// Bytes of text processed in this phase.
    pub done_bytes: u64,
    /// Total bytes of text in this phase; in [`Phase::Read`] an estimate from the file sizes.
    pub total_bytes: u64,
}
