//! The recurrence against the reference, in both directions.

use super::reference::lstm;
use crate::testing::{self, Matrix, Stream};

#[test]
fn rows_follow_each_other() {
    for (rows, h) in [(1, 3), (5, 4), (9, 6)] {
        for reversed in [false, true] {
            testing::check(&testing::Case {
                what: format!("lstm [{rows}, {h}], reversed {reversed}"),
                cols: 4 * h,
                params: vec![Matrix::random(4 * h, h, 3).times(0.4), Matrix::random(1, 4 * h, 4)],
                wide_params: false,
                stream: Stream::documents(&[rows], None, 1),
                record: &|cx, x, p| cx.lstm("y", x, (p[0], p[1]), reversed),
                reference: &|x, p| lstm(x, &p[0], &p[1], reversed),
                penalty: None,
            });
        }
    }
}
