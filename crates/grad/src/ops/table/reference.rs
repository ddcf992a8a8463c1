//! The definition.

use crate::testing::Matrix;

/// Each row of a table through a projection: `table W^T`.
pub(crate) fn projected(table: &Matrix, weight: &Matrix) -> Matrix {
    let dot = |row: usize, out: usize| (0..table.cols).map(|c| table[(row, c)] * weight[(out, c)]).sum();
    Matrix::new(table.rows, weight.rows, dot)
}
