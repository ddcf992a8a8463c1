//! Magnitudes of all and of some columns compared with the reference.

use super::reference::rescale;
use crate::low_rank::{LinearCut, LoraUse, Runs};
use crate::ops::lora::reference::adapted;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check([tokens, inner, out, rank]: [usize; 4], runs: &[(usize, usize)], bias: bool) {
    let (runs, scale) = (Runs::new(runs), 0.5);
    let columns = runs.columns();
    let ones = Matrix::random(1, columns, 7).times(0.1);
    let magnitude = Matrix::new(1, columns, |_, column| 1.0 + ones[(0, column)]);
    let low = [Matrix::random(runs.len() * rank, inner, 5), Matrix::random(columns, rank, 6)];
    let weight = Matrix::random(out, inner, 3);
    let lora = [low[0].clone(), low[1].clone(), weight.clone()];
    let sum = adapted(&lora, scale, runs);
    let length = |row: usize| (0..inner).map(|col| sum[(row, col)].powi(2)).sum::<f64>().sqrt();
    let lengths: Vec<f64> = (0..out).map(length).collect();
    let [a, b] = low;
    let bias = bias.then(|| Matrix::random(1, out, 4));
    testing::check(&testing::Case {
        what: format!("rescale [{tokens}, {out}], rank {rank}, {runs:?}"),
        cols: out,
        params: [magnitude, a, b, weight].into_iter().chain(bias).collect(),
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| {
            let low = LoraUse::new(p[1], p[2], &vec![scale as f32; runs.len()], runs);
            cx.rescale("y", x, p[0], (p[3], p.get(4).copied()), (low, LinearCut::Columns))
        },
        reference: &|x, p| rescale(x, &p[0], &lengths, p.get(4), runs),
        penalty: None,
    });
}

#[test]
fn lengths_of_all_and_of_some_columns() {
    check([5, 7, 9, 2], &[(0, 9)], false);
    check([1, 7, 9, 2], &[(2, 4)], true);
    check([130, 24, 40, 4], &[(0, 16), (28, 12)], true);
}

/// Precomputed factors: nothing else is read.
#[test]
fn lengths_that_are_fixed() {
    for (tokens, out, runs, bias) in [(5, 9, &[(0, 9)][..], false), (130, 40, &[(0, 16), (28, 12)], true)] {
        let runs = Runs::new(runs);
        let bias = bias.then(|| Matrix::random(1, out, 4));
        testing::check(&testing::Case {
            what: format!("rescale [{tokens}, {out}], {runs:?}, fixed"),
            cols: out,
            params: [Matrix::random(1, runs.columns(), 7)].into_iter().chain(bias).collect(),
            wide_params: false,
            stream: Stream::documents(&[tokens], None, 1),
            record: &|cx, x, p| {
                let low = LoraUse { fixed: true, ..LoraUse::new(p[0], p[0], &vec![1.0; runs.len()], runs) };
                cx.rescale("y", x, p[0], (p[0], p.get(1).copied()), (low, LinearCut::Columns))
            },
            reference: &|x, p| rescale(x, &p[0], &vec![1.0; out], p.get(1), runs),
            penalty: None,
        });
    }
}
