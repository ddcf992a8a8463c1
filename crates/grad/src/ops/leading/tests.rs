//! Rows at virtual tokens compared with the reference, in documents that all have them, and in documents without.

use super::reference::leading;
use crate::batch::VIRTUAL;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check(lengths: &[usize], virtual_tokens: usize, replaces: bool) {
    let mut stream = Stream::documents(lengths, None, 9);
    let mut start = 0;
    for length in lengths {
        (0..virtual_tokens).for_each(|at| stream.ids[start + at] = (VIRTUAL + at) as _);
        start += length;
    }
    let case = testing::Case {
        what: format!("leading rows {lengths:?}, {virtual_tokens}, replaces {replaces}"),
        cols: 12,
        params: vec![Matrix::random(virtual_tokens.max(1), 12, 3)],
        wide_params: false,
        stream: stream.clone(),
        record: &|cx, x, p| {
            let rows = cx.table("rows", p[0]);
            if replaces { cx.put_leading("out", x, rows) } else { cx.add_leading("out", x, rows) }
        },
        reference: &|x, p| leading(&stream, x, &p[0], replaces),
        penalty: None,
    };
    testing::check(&case);
}

#[test]
fn rows_stand_at_virtual_tokens() {
    for replaces in [false, true] {
        check(&[7], 3, replaces);
        check(&[30, 5, 140], 4, replaces);
        check(&[3, 6], 0, replaces);
    }
}
