//! Products of many sizes against the reference.

use super::reference::linear;
use crate::testing::{self, Matrix, Stream};

/// Sizes of one product.
struct Case {
    tokens: usize,
    inner: usize,
    out: usize,
    bias: bool,
}

#[track_caller]
fn check(case: &Case) {
    let Case { tokens, inner, out, bias } = *case;
    let weight = Matrix::random(out, inner, 3).times(1.0 / (inner as f64).sqrt());
    let params = std::iter::once(weight).chain(bias.then(|| Matrix::random(1, out, 4))).collect();
    testing::check(&testing::Case {
        what: format!("linear [{tokens}, {inner}] to {out}, bias {bias}"),
        cols: inner,
        params,
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| cx.linear("y", x, p[0], p.get(1).copied()),
        reference: &|x, p| linear(x, &p[0], p.get(1)),
        penalty: None,
    });
}

#[test]
fn products_of_all_sizes() {
    let sizes = [(1, 1, 1), (1, 48, 80), (5, 7, 3), (33, 64, 48), (130, 31, 65), (257, 17, 16), (128, 96, 1)];
    for (tokens, inner, out) in sizes {
        for bias in [false, true] {
            check(&Case { tokens, inner, out, bias });
        }
    }
}

#[test]
#[should_panic(expected = "linear y: x [t, 5], weight [3, 4]")]
fn shapes_are_named() {
    let case = testing::Case {
        what: "misfit".to_string(),
        cols: 5,
        params: vec![Matrix::zeros(3, 4)],
        wide_params: false,
        stream: Stream::documents(&[2], None, 1),
        record: &|cx, x, p| cx.linear("y", x, p[0], None),
        reference: &|_, _| Matrix::zeros(2, 3),
        penalty: None,
    };
    testing::check(&case);
}
