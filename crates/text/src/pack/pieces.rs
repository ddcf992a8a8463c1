//! Documents to pack, their pieces, and samples of pieces.

/// A run of consecutive tokens of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the document in its store.
    pub doc: u64,
    /// Index of its first token.
    pub start: u64,
    /// Number of tokens.
    pub len: u32,
}

/// Spans of one sample, in order; their lengths sum to at most `seq_len`.
pub type Sample = Vec<Span>;

/// Input of the packer: a document and its length in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doc {
    /// Index of the document in its store.
    pub doc: u64,
    /// Number of its tokens.
    pub tokens: u64,
}

/// Full pieces of a document, followed by the rest.
pub(super) fn pieces_of(Doc { doc, tokens }: Doc, seq_len: u32) -> impl Iterator<Item = Span> {
    (0..tokens).step_by(seq_len as usize).map(move |start| {
        // At most `seq_len`, so it fits u32.
        let len = (tokens - start).min(u64::from(seq_len)) as u32;
        Span { doc, start, len }
    })
}
