//! Sorting of rows of keys, as the stages see it.

use std::path::Path;

use crate::error::Error;

/// Takes a row; an error ends the sort.
pub(crate) type VisitRow<'a> = dyn FnMut(&[u64]) -> Result<(), Error> + 'a;

/// Puts tables of numbers in order.
pub(crate) trait KeySorter: Send + Sync {
    /// Hands out the rows of a folder of Parquet files, whose columns `names` hold 64-bit numbers, in ascending order of all
    /// columns but the last.
    fn sorted(&self, folder: &Path, names: &[&str], visit: &mut VisitRow<'_>) -> Result<(), Error>;

    /// How often a sort is worth trying.
    fn attempts(&self) -> usize {
        1
    }
}
