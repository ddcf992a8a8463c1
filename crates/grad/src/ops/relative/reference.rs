//! The definition: He et al., arXiv 2006.03654, equations 2 and 4.

use std::ops::Range;

use super::RelativeUse;
use crate::testing::Matrix;

/// The attention outputs of [q | k | v] of documents, with keys and queries of distances.
pub(crate) fn relative(
    x: &Matrix,
    [keys, queries]: [Option<&Matrix>; 2],
    docs: &[Range<usize>],
    how: RelativeUse,
) -> Matrix {
    let (width, dim) = (x.cols / 3, how.head_dim);
    let mut out = Matrix::zeros(x.rows, width);
    for doc in docs {
        let rows = how.distances.rows(doc.len());
        for (i, j_row) in doc.clone().enumerate() {
            for head in 0..width / dim {
                let col = |c: usize| head * dim + c;
                let dot = |a: &dyn Fn(usize) -> f64, b: &dyn Fn(usize) -> f64| -> f64 {
                    (0..dim).map(|c| a(col(c)) * b(col(c))).sum()
                };
                let score = |j: usize| {
                    let (at, key) = (rows[i + doc.len() - 1 - j], doc.start + j);
                    let q = |c: usize| x[(j_row, c)];
                    let k = |c: usize| x[(key, width + c)];
                    let c2p = keys.map_or(0.0, |table| dot(&q, &|c| table[(at, c)]));
                    let p2c = queries.map_or(0.0, |table| dot(&k, &|c| table[(at, c)]));
                    (dot(&q, &k) + c2p + p2c) * f64::from(how.scale)
                };
                let scores: Vec<f64> = (0..doc.len()).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
                for c in 0..dim {
                    let of = |(j, score): (usize, &f64)| {
                        (score - most).exp() / sum * x[(doc.start + j, 2 * width + col(c))]
                    };
                    out[(j_row, col(c))] = scores.iter().enumerate().map(of).sum();
                }
            }
        }
    }
    out
}
