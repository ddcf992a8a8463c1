//! Factors against the reference.

use super::reference::scale;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check(factor: f32, tokens: usize, cols: usize) {
    testing::check(&testing::Case {
        what: format!("{factor} x [{tokens}, {cols}]"),
        cols,
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, _| {
            let y = cx.scale("y", x, factor);
            testing::join(cx, &[y])
        },
        reference: &|x, _| scale(x, factor),
        penalty: None,
    });
}

#[test]
fn factors() {
    for factor in [0.22, -3.0, 1.0, 0.0] {
        for (tokens, cols) in [(1, 1), (5, 37), (130, 16)] {
            check(factor, tokens, cols);
        }
    }
}

#[test]
fn factors_of_runs_of_columns() {
    for tokens in [1, 5, 130] {
        testing::check(&testing::Case {
            what: format!("runs of x [{tokens}, 37]"),
            cols: 37,
            params: vec![],
            wide_params: false,
            stream: Stream::documents(&[tokens], None, 1),
            record: &|cx, x, _| {
                let y = cx.scale_columns("y", x, &[(5, 2.0), (1, 1.0), (31, -0.3)]);
                testing::join(cx, &[y])
            },
            reference: &|x, _| {
                let runs = [(0..5, 2.0), (5..6, 1.0), (6..37, -0.3)];
                Matrix::join(&runs.map(|(columns, factor)| scale(&x.columns(columns), factor)))
            },
            penalty: None,
        });
    }
}
