//! Progress of the work on an index.

/// A part of the work on an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexPhase {
    /// Files are read into segments.
    Reading,
    /// Chunks are encoded.
    Encoding,
    /// Vectors are written to a store outside.
    Storing,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexProgress {
    /// The current part.
    pub phase: IndexPhase,
    /// Files or chunks that are done.
    pub done: u64,
    /// Files or chunks in all.
    pub all: u64,
}
