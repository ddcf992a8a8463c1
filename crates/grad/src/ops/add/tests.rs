//! Sums whose gradients share buffers, against the reference.

use super::reference::add;
use crate::testing::{self, Stream};

#[test]
fn sums_and_shared_gradients() {
    for (tokens, width) in [(1, 1), (3, 33), (130, 16)] {
        testing::check_pair("add", [tokens, width], &|cx, name, [a, b]| cx.add(name, a, b), &add);
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
