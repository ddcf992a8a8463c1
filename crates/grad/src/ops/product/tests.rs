//! Products against the reference.

use super::reference::product;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check(tokens: usize, width: usize) {
    testing::check(&testing::Case {
        what: format!("product [{tokens}, {width}]"),
        cols: 3 * width,
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, _| {
            let [a, b, c] = cx.split(["a", "b", "c"], x, [width; 3], None);
            let ab = cx.product("ab", a, b);
            let aab = cx.product("aab", a, ab);
            testing::join(cx, &[aab, c])
        },
        reference: &|x, _| {
            let [a, b, c] = [0, 1, 2].map(|part| x.columns(part * width..(part + 1) * width));
            Matrix::join(&[product(&a, &product(&a, &b)), c])
        },
        penalty: None,
    });
}

#[test]
fn products_of_halves() {
    for (tokens, width) in [(1, 1), (3, 33), (130, 16)] {
        check(tokens, width);
    }
}
