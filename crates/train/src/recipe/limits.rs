//! Limits of the numbers of a recipe.

pub(crate) use fathom_base::recipe::AllowedRange::{Above0, Any, Below1, Real, Whole};

/// No upper limit except that of the kernels' type.
pub(crate) const NO_END: f64 = fathom_base::recipe::AllowedRange::NO_END;
/// Tokens of a micro-batch: FLOPs of one operation are counted in 64 bits.
pub(crate) const MOST_TOKENS: u64 = 1 << 24;
/// Documents of a micro-batch; each has a slot whether it is used or not.
pub(crate) const MOST_DOCS: u64 = 1 << 22;
/// Draws of a document in an epoch, which are listed in memory.
pub(crate) const MOST_DRAWS: f64 = 1024.0;
/// Ranks of a mesh.
pub(crate) const MOST_RANKS: u64 = 1 << 24;
/// Ranks of an axis, and parts of other things per rank.
pub(crate) const MANY: u64 = 1 << 16;
/// Columns of a matrix.
pub(crate) const COLUMNS: u64 = 1 << 20;
/// Bytes: an exbibyte.
pub(crate) const BYTES: u64 = 1 << 60;
/// Seconds: thirty years.
pub(crate) const SECONDS: f64 = 1e9;
