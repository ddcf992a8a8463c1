//! Look-ups with repeated and missing ids against the reference.

use super::reference::embed;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check(lengths: &[usize], [vocab, width]: [usize; 2], learned: bool, scale: f32) {
    let stream = Stream::documents(lengths, None, vocab);
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let positions = learned.then(|| Matrix::random(longest + 2, width, 4));
    testing::check(&testing::Case {
        what: format!("embed {lengths:?} of {vocab} x {width}, learned positions {learned}, scale {scale}"),
        cols: 0,
        params: std::iter::once(Matrix::random(vocab, width, 3)).chain(positions).collect(),
        wide_params: false,
        stream: stream.clone(),
        record: &|cx, _, p| cx.embed(p[0], p.get(1).copied(), (scale, false)),
        reference: &|_, p| embed(&stream, &p[0], p.get(1), scale),
        penalty: None,
    });
}

#[test]
fn tables_with_repeated_and_missing_ids() {
    for learned in [false, true] {
        check(&[1], [1, 1], learned, 1.0);
        check(&[30, 3, 17], [7, 33], learned, 1.0);
        check(&[130], [301, 16], learned, 4.0);
    }
}
