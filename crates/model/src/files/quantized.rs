//! A tensor that files hold in few bits.

use fathom_tensor::{BlockFormat, DType};

/// A tensor that is stored in few bits.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// How.
    pub format: BlockFormat,
    /// Sizes of what it stands for.
    pub shape: Vec<usize>,
    /// The type that it was quantised from.
    pub dtype: DType,
    /// Name of the codes in the file's table.
    pub(super) codes: String,
    pub(super) scales: Scales,
}

#[derive(Clone, Debug)]
pub(super) enum Scales {
    /// f32: of blocks, or of rows.
    Plain(String),
    /// Eight bits, and largest magnitudes of their blocks.
    Nested { codes: String, scales: String, offset: f32, map: Vec<f32> },
}
