//! GPTQ (Frantar et al., 2022): rounds columns one after the other, and compensates each one's error in the remaining
//! columns, using the second moments of the inputs.

use nalgebra::DMatrix;
use rayon::prelude::*;

use super::{GroupedTensor, Zero, code, range, value};

/// Damping: the fraction of the diagonal's mean that is added to it.
const DAMPING: f64 = 0.01;
/// Rows processed together, so that each row of the factor is read once for all.
const ROWS: usize = 16;

/// Second moments of inputs: the sum over tokens of `x x^T`.
#[derive(Clone, Debug)]
pub struct InputMoments {
    sums: DMatrix<f32>,
    tokens: usize,
}

impl InputMoments {
    /// Empty moments for inputs of `cols` columns.
    pub fn new(cols: usize) -> InputMoments {
        InputMoments { sums: DMatrix::zeros(cols, cols), tokens: 0 }
    }

    /// Adds some tokens, row by row.
    pub fn add(&mut self, rows: &[f32]) {
        let cols = self.sums.nrows();
        let tokens = rows.len() / cols;
        let columns = DMatrix::from_column_slice(cols, tokens, rows);
        self.sums.gemm(1.0, &columns, &columns.transpose(), 1.0);
        self.tokens += tokens;
    }

    /// Returns whether there are enough tokens: twice as many as columns. With fewer, errors move into directions
    /// that these tokens do not show but others do. For random inputs in 128 columns with variances falling as 1/n or
    /// its root, the 4-bit loss relative to rounding to nearest was 0.9 and 2.0 with as many tokens as columns, 0.6
    /// and 1.1 with twice as many, and 1.2 and 1.6 with an eighth.
    pub fn are_enough(&self) -> bool {
        self.tokens >= 2 * self.sums.nrows()
    }
}

/// Quantizes a weight [rows, cols] given its inputs' moments: symmetric, in column order. `None` if the moments are
/// not positive definite.
///
/// # Panics
/// If the sizes do not match.
pub fn gptq(
    values: &[f32],
    [rows, cols]: [usize; 2],
    InputMoments { sums: moments, .. }: &InputMoments,
    group: usize,
) -> Option<GroupedTensor> {
    assert!(
        cols.is_multiple_of(group) && moments.shape() == (cols, cols),
        "gptq: {rows} x {cols} by {group}"
    );
    let (factor, dead) = factor(moments)?;
    let groups = cols / group;
    let mut out = GroupedTensor {
        shape: [rows, cols],
        group,
        codes: vec![0; rows * cols],
        scales: vec![0.0; rows * groups],
        zeros: vec![0; rows * groups],
    };
    let codes = out.codes.par_chunks_mut(ROWS * cols);
    let scales = out.scales.par_chunks_mut(ROWS * groups).zip(out.zeros.par_chunks_mut(ROWS * groups));
    values.par_chunks(ROWS * cols).zip(codes).zip(scales).for_each(|((values, codes), (scales, zeros))| {
        let mut left = values.to_vec();
        for row in left.chunks_exact_mut(cols) {
            dead.iter().for_each(|column| row[*column] = 0.0);
        }
        for col in 0..cols {
            // Row `col` of the upper factor.
            let factor = &factor[col * cols..(col + 1) * cols];
            for (at, row) in left.chunks_exact_mut(cols).enumerate() {
                let place = at * groups + col / group;
                if col % group == 0 {
                    (scales[place], zeros[place]) = range(&row[col..col + group], Zero::Middle);
                }
                let how = (scales[place], zeros[place]);
                let found = code(row[col], how);
                codes[at * cols + col] = found;
                let lost = (row[col] - value(found, how)) / factor[col];
                for (x, factor) in row[col + 1..].iter_mut().zip(&factor[col + 1..]) {
                    *x -= lost * factor;
                }
            }
        }
    });
    Some(out)
}

/// The upper factor U of the inverse of the damped moments, `H^-1 = U^T U`, row-major, and the columns whose inputs
/// are all zero.
fn factor(moments: &DMatrix<f32>) -> Option<(Vec<f32>, Vec<usize>)> {
    let n = moments.nrows();
    let mean = (0..n).map(|at| f64::from(moments[(at, at)])).sum::<f64>() / n as f64;
    let dead: Vec<usize> = (0..n).filter(|at| moments[(*at, *at)] == 0.0).collect();
    // In reverse order the lower factor becomes the upper one: H = V V^T, and U is V's inverse.
    let reversed = DMatrix::from_fn(n, n, |row, col| {
        let at = (n - 1 - row, n - 1 - col);
        let damped = if at.0 != at.1 {
            0.0
        } else if moments[at] == 0.0 {
            1.0
        } else {
            DAMPING * mean
        };
        f64::from(moments[at]) + damped
    });
    let lower = reversed.cholesky()?.unpack();
    let mut inverse = DMatrix::<f64>::identity(n, n);
    lower.solve_lower_triangular_mut(&mut inverse).then_some(())?;
    let upper =
        (0..n).flat_map(|row| (0..n).map(move |col| (n - 1 - row, n - 1 - col))).map(|at| inverse[at] as f32);
    Some((upper.collect(), dead))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| next() + next() + next()).collect()
    }

    /// `tr(D H D^T)` of the difference D.
    fn loss(x: &[f32], y: &[f32], moments: &DMatrix<f32>) -> f64 {
        let n = moments.nrows();
        let rows = x.chunks(n).zip(y.chunks(n)).map(|(x, y)| {
            let d: Vec<f64> = x.iter().zip(y).map(|(x, y)| f64::from(x - y)).collect();
            let product = |i: usize| (0..n).map(|j| f64::from(moments[(i, j)]) * d[j]).sum::<f64>();
            (0..n).map(|i| d[i] * product(i)).sum::<f64>()
        });
        rows.sum()
    }

    #[test]
    fn the_factor_is_that_of_the_inverse() {
        let x = DMatrix::from_vec(6, 40, numbers(240, 1));
        let moments = &x * x.transpose();
        let (upper, dead) = factor(&moments).unwrap();
        let upper = DMatrix::from_row_slice(6, 6, &upper);
        let mean = moments.diagonal().sum() / 6.0;
        let damped = &moments + DMatrix::identity(6, 6) * (DAMPING as f32 * mean);
        let product = upper.transpose() * &upper * damped;
        assert!((product - DMatrix::identity(6, 6)).abs().max() < 1e-3);
        assert!(dead.is_empty() && (0..6).all(|row| (0..row).all(|col| upper[(row, col)] == 0.0)));
    }

    #[test]
    fn less_is_lost_than_by_rounding() {
        // Correlated inputs, like a model's.
        let mixed = DMatrix::from_vec(64, 12, numbers(768, 2)) * DMatrix::from_vec(12, 300, numbers(3600, 3));
        let x = mixed + DMatrix::from_vec(64, 300, numbers(19200, 4)) * 0.1;
        let mut moments = InputMoments::new(64);
        for (at, rows) in x.as_slice().chunks(64 * 100).enumerate() {
            moments.add(rows);
            assert_eq!(moments.are_enough(), at > 0);
        }
        let weights = numbers(20 * 64, 5);
        let plain = GroupedTensor::round(&weights, [20, 64], 32, Zero::Middle);
        let better = gptq(&weights, [20, 64], &moments, 32).unwrap();
        let [plain, better] = [plain, better].map(|coded| loss(&weights, &coded.values(), &moments.sums));
        assert!(better < 0.5 * plain, "{better} {plain}");
    }

    #[test]
    fn inputs_that_never_come_lose_their_weights() {
        let mut moments = InputMoments { sums: DMatrix::identity(32, 32), tokens: 32 };
        moments.sums[(3, 3)] = 0.0;
        let coded = gptq(&numbers(64, 6), [2, 32], &moments, 32).unwrap().values();
        assert_eq!([coded[3], coded[35]], [0.0, 0.0]);
    }
}
