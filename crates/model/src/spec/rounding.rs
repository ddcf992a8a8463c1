//! Formats for quantization-aware training.

/// Four-bit formats of projections that need no calibration text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTo {
    /// Blocks of 32 scaled by a power of two.
    Mxfp4,
    /// Blocks of 16 scaled by an e4m3 value, with a global f32.
    Nvfp4,
    /// Groups of 128, 64 or 32: the first that fits all projections.
    Int4,
}
