//! Factors against the reference.

use super::reference::scale;
use crate::testing::{self, Stream};

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
