//! What quantization-aware training rounds projections to.

/// Formats of projections in four bits that need no text to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTo {
    /// Blocks of 32 under a power of two.
    Mxfp4,
    /// Blocks of 16 under a number of e4m3, and an f32 for all.
    Nvfp4,
    /// Groups of 128, 64 or 32, the first that all projections have.
    Int4,
}
