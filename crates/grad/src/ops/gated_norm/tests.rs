//! Gated norms against the reference, by groups, and the gate alone.

use super::GatedNormUse;
use super::reference::gated_norm;
use crate::testing::{self, Matrix, Stream};

#[test]
fn every_form_against_the_reference() {
    for (rows, cols, width, weight) in
        [(3, 10, 10, 10), (140, 24, 8, 24), (5, 24, 12, 12), (2, 200, 100, 200), (9, 16, 16, 0)]
    {
        for gate_first in [false, true] {
            let how = GatedNormUse { gate_first, width, eps: 1e-5 };
            let weights = (weight > 0).then(|| Matrix::random(1, weight, 3));
            testing::check(&testing::Case {
                what: format!("gated norm [{rows}, {cols}] by {width}, weight {weight}, {gate_first}"),
                cols: 2 * cols + 1,
                params: weights.into_iter().collect(),
                wide_params: rows % 2 == 0,
                stream: Stream::documents(&[rows], None, 1),
                record: &|cx, x, p| {
                    let [y, z, _] = cx.split(["y", "z", "rest"], x, [cols, cols, 1], None);
                    cx.rows(|cx| cx.gated_norm("out", y, z, p.first().copied(), how))
                },
                reference: &|x, p| {
                    gated_norm(&x.columns(0..cols), &x.columns(cols..2 * cols), p.first(), how)
                },
                penalty: None,
            });
        }
    }
}
