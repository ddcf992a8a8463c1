//! Adapters of all and of some columns against the reference, and over ranks against one.

use super::reference::lora;
use super::{LinearCut, LoraUse, Runs};
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check([tokens, inner, out, rank]: [usize; 4], runs: &[(usize, usize)], bias: bool) {
    let runs = Runs::new(runs);
    let a = Matrix::random(runs.len() * rank, inner, 5).times(1.0 / (inner as f64).sqrt());
    let b = Matrix::random(runs.columns(), rank, 6).times(0.5);
    let weight = Matrix::random(out, inner, 3).times(1.0 / (inner as f64).sqrt());
    let params = [a, b, weight].into_iter().chain(bias.then(|| Matrix::random(1, out, 4))).collect();
    let scale = 1.5;
    testing::check(&testing::Case {
        what: format!("lora [{tokens}, {inner}] to {out}, rank {rank}, {runs:?}, bias {bias}"),
        cols: inner,
        params,
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| {
            let low = LoraUse::new(p[0], p[1], &vec![scale; runs.len()], runs);
            cx.lora("y", x, (p[2], p.get(3).copied()), low, LinearCut::Columns)
        },
        reference: &|x, p| lora(x, p, f64::from(scale), runs),
        penalty: None,
    });
}

#[test]
fn adapters_of_all_and_of_some_columns() {
    check([5, 7, 9, 2], &[(0, 9)], false);
    check([130, 24, 40, 4], &[(0, 16), (16, 12), (28, 12)], true);
    check([33, 48, 40, 3], &[(0, 16), (28, 12)], false);
    check([33, 16, 40, 1], &[(16, 12)], true);
}

#[test]
#[should_panic(expected = "lora y: A [2, 4], B [3, 1]")]
fn shapes_are_named() {
    let case = testing::Case {
        what: "misfit".to_string(),
        cols: 4,
        params: vec![Matrix::zeros(2, 4), Matrix::zeros(3, 1), Matrix::zeros(3, 4)],
        wide_params: false,
        stream: Stream::documents(&[2], None, 1),
        record: &|cx, x, p| {
            let low = LoraUse::new(p[0], p[1], &[1.0], Runs::new(&[(0, 3)]));
            cx.lora("y", x, (p[2], None), low, LinearCut::Whole)
        },
        reference: &|_, _| Matrix::zeros(2, 3),
        penalty: None,
    };
    testing::check(&case);
}
