//! `y[t, o] = x[t, o] l[o]` for the columns o of a run (Liu et al., 2022, section 3.3).

use crate::low_rank::Runs;
use crate::testing::Matrix;

/// x [t, n], factors [1, columns of all runs].
pub(crate) fn factors(x: &Matrix, factors: &Matrix, runs: Runs) -> Matrix {
    let mut y = x.clone();
    let columns = runs.iter().flat_map(|(at, columns)| at..at + columns);
    for (index, column) in columns.enumerate() {
        (0..x.rows).for_each(|t| y[(t, column)] *= factors[(0, index)]);
    }
    y
}
