//! Convolutions against the reference, by document and in generation.

use fathom_tensor::DType;

use super::ConvUse;
use super::reference::conv;
use crate::testing::recurrence::{self, Layer};
use crate::testing::{self, Matrix, Stream};

fn weights(cols: usize, taps: usize, biased: bool) -> Vec<Matrix> {
    let bias = biased.then(|| Matrix::random(1, cols, 4).times(0.5));
    [Matrix::random(cols, taps, 3).times(0.6)].into_iter().chain(bias).collect()
}

#[test]
fn every_form_against_the_reference() {
    for (documents, cols, taps, biased, silu) in [
        (vec![9, 4, 1], 5, 4, true, true),
        (vec![130, 2, 3], 20, 4, false, true),
        (vec![7, 150], 300, 3, true, false),
        (vec![12, 11], 65, 8, true, true),
    ] {
        let stream = Stream::documents(&documents, None, 1);
        testing::check(&testing::Case {
            what: format!("conv of {taps} taps over {cols} columns in {documents:?}, silu {silu}"),
            cols,
            params: weights(cols, taps, biased),
            wide_params: cols % 2 == 0,
            stream: stream.clone(),
            record: &|cx, x, p| {
                cx.conv("y", x, p[0], p.get(1).copied(), ConvUse { silu, state: "conv", parts: &[] })
            },
            reference: &|x, p| conv(x, &p[0], p.get(1), silu, &stream),
            penalty: None,
        });
    }
}

/// A convolution of 24 columns.
fn layer() -> Layer<'static> {
    Layer {
        cols: 24,
        params: weights(24, 4, true),
        states: &[("conv", [3, 24])],
        record: &|cx, x, p| {
            cx.conv("y", x, p[0], Some(p[1]), ConvUse { silu: true, state: "conv", parts: &[] })
        },
    }
}

#[test]
fn packed_documents_have_the_bits_of_documents_alone() {
    recurrence::packed_equals_alone(&layer(), &[5, 200, 1, 130, 2]);
}

#[test]
fn threads_change_no_bit() {
    recurrence::threads_agree(&layer(), &[3, 300, 40]);
}

#[test]
fn generation_goes_on_with_the_last_rows() {
    for dtype in [DType::F32, DType::Bf16] {
        recurrence::goes_on(&layer(), dtype, &[&[2, 1, 1, 4, 40], &[30, 1, 17]], 0.0);
    }
}
