//! Factors of all and of some columns against the reference.

use super::reference::factors;
use crate::low_rank::Runs;
use crate::testing::{self, Matrix, Stream};

#[test]
fn factors_of_all_and_of_some_columns() {
    for (tokens, cols, runs) in [
        (5, 9, Runs::new(&[(0, 9)])),
        (130, 40, Runs::new(&[(16, 12), (28, 8)])),
        (1, 8, Runs::new(&[(2, 3)])),
    ] {
        testing::check(&testing::Case {
            what: format!("factors [{tokens}, {cols}], {runs:?}"),
            cols,
            params: vec![Matrix::random(1, runs.columns(), 3)],
            wide_params: false,
            stream: Stream::documents(&[tokens], None, 1),
            record: &|cx, x, p| cx.factors("y", x, p[0], runs),
            reference: &|x, p| factors(x, &p[0], runs),
            penalty: None,
        });
    }
}
