//! Gated DeltaNet against the reference: shared key heads, ragged chunks, documents longer than a span of kept states,
//! documents packed and alone, and generation.

use fathom_tensor::DType;

use super::DeltaUse;
use super::reference::delta;
use crate::testing::recurrence::{self, Layer};
use crate::testing::{self, Matrix, Stream};
use crate::{Ctx, ParamId, Val};

#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: usize,
    value: usize,
    key_heads: usize,
    key: usize,
    beta: f32,
}

const SMALL: Sizes = Sizes { heads: 4, value: 5, key_heads: 2, key: 6, beta: 1.0 };

impl Sizes {
    fn how(&self) -> DeltaUse {
        let Sizes { key_heads, key, beta, .. } = *self;
        DeltaUse { key_heads, key, l2_eps: 1e-6, beta, memory: "delta" }
    }

    fn cols(&self) -> usize {
        2 * self.key_heads * self.key + self.heads * self.value
    }

    fn params(&self) -> Vec<Matrix> {
        let a_log = Matrix::random(1, self.heads, 3).times(0.5);
        let bias = Matrix::random(1, self.heads, 4);
        vec![a_log, Matrix::new(1, self.heads, |_, h| bias[(0, h)] - 2.0)]
    }

    fn record(&self, cx: &mut Ctx<'_>, x: Val, p: &[ParamId]) -> Val {
        let parts = cx.split(["u", "a", "b"], x, [self.cols(), self.heads, self.heads], None);
        cx.delta(["y", "states", "began"], parts, [p[0], p[1]], self.how())
    }
}

#[track_caller]
fn check(sizes: Sizes, documents: &[usize], bf16: f64) {
    let (cols, heads, stream) = (sizes.cols(), sizes.heads, Stream::documents(documents, None, 1));
    let case = testing::Case {
        what: format!("{sizes:?} in {documents:?}"),
        cols: cols + 2 * heads,
        params: sizes.params(),
        wide_params: true,
        stream: stream.clone(),
        record: &|cx, x, p| sizes.record(cx, x, p),
        reference: &|x, p| {
            let parts = [x.columns(0..cols), x.columns(cols..cols + heads), x.columns(cols + heads..x.cols)];
            delta(parts.each_ref(), p, sizes.how(), &stream)
        },
        penalty: None,
    };
    testing::check_within(&case, bf16);
}

#[test]
fn shared_keys_and_ragged_chunks() {
    check(SMALL, &[1, 9, 17], 2e-2);
    check(Sizes { heads: 2, value: 16, key_heads: 2, key: 16, ..SMALL }, &[33], 2e-2);
    check(Sizes { heads: 3, value: 3, key_heads: 1, key: 20, beta: 2.0 }, &[70, 40], 2e-2);
}

#[test]
fn several_chunks() {
    check(Sizes { heads: 2, value: 3, key_heads: 1, key: 4, ..SMALL }, &[150, 20], 2e-2);
}

#[test]
fn documents_longer_than_a_span() {
    check(Sizes { heads: 1, value: 2, key_heads: 1, key: 2, ..SMALL }, &[5, 2150], 2e-2);
}

fn with_layer(test: impl Fn(&Layer<'_>)) {
    let sizes = Sizes { heads: 6, value: 6, key_heads: 3, key: 5, ..SMALL };
    test(&Layer {
        cols: sizes.cols() + 2 * sizes.heads,
        params: sizes.params(),
        states: &[("delta", [6, 30])],
        record: &|cx, x, p| sizes.record(cx, x, p),
    });
}

#[test]
fn packed_documents_have_the_bits_of_documents_alone() {
    with_layer(|layer| recurrence::packed_equals_alone(layer, &[5, 2300, 1, 130, 64]));
}

#[test]
fn threads_change_no_bit() {
    with_layer(|layer| recurrence::threads_agree(layer, &[3, 2500, 40]));
}

#[test]
fn generation_goes_on_with_the_state() {
    with_layer(|layer| {
        recurrence::goes_on(layer, DType::F32, &[&[128, 256, 60], &[128]], 0.0);
        recurrence::goes_on(layer, DType::F32, &[&[140, 1, 1, 7, 200, 1], &[1, 1, 300]], 1e-5);
        recurrence::goes_on(layer, DType::Bf16, &[&[40, 1, 1], &[1, 20]], 2e-2);
    });
}
