//! Sums whose gradients share buffers, against the reference.

use super::reference::add;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check(tokens: usize, width: usize) {
    testing::check(&testing::Case {
        what: format!("add [{tokens}, {width}]"),
        cols: 3 * width,
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, _| {
            let [a, b, c] = cx.split(["a", "b", "c"], x, [width; 3], None);
            // One gradient reaches a by two ways, b by one, and c unchanged.
            let ab = cx.add("ab", a, b);
            let aab = cx.add("aab", a, ab);
            testing::join(cx, &[aab, c])
        },
        reference: &|x, _| {
            let [a, b, c] = [0, 1, 2].map(|part| x.columns(part * width..(part + 1) * width));
            Matrix::join(&[add(&a, &add(&a, &b)), c])
        },
        penalty: None,
    });
}

#[test]
fn sums_and_shared_gradients() {
    for (tokens, width) in [(1, 1), (3, 33), (130, 16)] {
        check(tokens, width);
    }
}

#[test]
fn a_value_added_to_itself() {
    testing::check(&testing::Case {
        what: "x + x".to_string(),
        cols: 5,
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[3], None, 1),
        record: &|cx, x, _| cx.add("y", x, x),
        reference: &|x, _| add(x, x),
        penalty: None,
    });
}
