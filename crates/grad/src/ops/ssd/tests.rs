//! Scans against the reference: groups, ragged chunks, limits, strong decays, documents longer than a span of kept
//! states, documents packed and alone, and generation.

use fathom_tensor::DType;

use super::SsdUse;
use super::reference::ssd;
use crate::testing::recurrence::{self, Layer};
use crate::testing::{self, Matrix, Stream};
use crate::{Ctx, ParamId, Val};

#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: usize,
    width: usize,
    groups: usize,
    state: usize,
    limit: [f32; 2],
    /// Added to a_log.
    rate: f64,
}

const NO_LIMIT: [f32; 2] = [0.0, f32::INFINITY];
const SMALL: Sizes = Sizes { heads: 4, width: 5, groups: 2, state: 6, limit: NO_LIMIT, rate: -0.5 };

impl Sizes {
    fn how(&self) -> SsdUse {
        SsdUse { groups: self.groups, state: self.state, limit: self.limit, memory: "ssd" }
    }

    fn cols(&self) -> usize {
        self.heads * self.width + 2 * self.groups * self.state
    }

    fn params(&self) -> Vec<Matrix> {
        let a_log = Matrix::random(1, self.heads, 3);
        let a_log = Matrix::new(1, self.heads, |_, h| self.rate + 0.5 * a_log[(0, h)]);
        let bias = Matrix::random(1, self.heads, 4);
        let bias = Matrix::new(1, self.heads, |_, h| bias[(0, h)] - 2.0);
        vec![a_log, bias, Matrix::random(1, self.heads, 5)]
    }

    fn record(&self, cx: &mut Ctx<'_>, x: Val, p: &[ParamId]) -> Val {
        let [u, dt, _] = cx.split(["u", "dt", "rest"], x, [self.cols(), self.heads, 1], None);
        cx.ssd(["y", "states", "began"], u, dt, [p[0], p[1], p[2]], self.how())
    }
}

#[track_caller]
fn check(sizes: Sizes, documents: &[usize]) {
    let (cols, stream) = (sizes.cols(), Stream::documents(documents, None, 1));
    testing::check(&testing::Case {
        what: format!("{sizes:?} in {documents:?}"),
        cols: cols + sizes.heads + 1,
        params: sizes.params(),
        wide_params: true,
        stream: stream.clone(),
        record: &|cx, x, p| sizes.record(cx, x, p),
        reference: &|x, p| {
            ssd(&x.columns(0..cols), &x.columns(cols..cols + sizes.heads), p, sizes.how(), &stream)
        },
        penalty: None,
    });
}

#[test]
fn groups_and_ragged_chunks() {
    check(SMALL, &[1, 9, 17]);
    check(Sizes { heads: 2, width: 16, groups: 1, state: 16, ..SMALL }, &[33]);
    check(Sizes { heads: 3, width: 3, groups: 3, state: 2, ..SMALL }, &[130, 40]);
}

#[test]
fn several_chunks() {
    check(Sizes { heads: 2, width: 4, groups: 1, state: 3, ..SMALL }, &[300, 20]);
}

#[test]
fn more_heads_than_a_block() {
    check(Sizes { heads: 9, width: 2, groups: 1, state: 3, ..SMALL }, &[140, 3]);
}

#[test]
fn step_sizes_have_limits() {
    check(Sizes { limit: [0.05, 0.2], ..SMALL }, &[40, 8]);
}

#[test]
fn strong_decays() {
    check(Sizes { rate: 4.0, heads: 2, groups: 1, ..SMALL }, &[150]);
}

#[test]
fn documents_longer_than_a_span() {
    check(Sizes { heads: 1, width: 2, groups: 1, state: 2, ..SMALL }, &[5, 2200]);
}

fn with_layer(test: impl Fn(&Layer<'_>)) {
    let sizes = Sizes { heads: 10, width: 6, groups: 1, state: 5, ..SMALL };
    test(&Layer {
        cols: sizes.cols() + sizes.heads + 1,
        params: sizes.params(),
        states: &[("ssd", [10, 30])],
        record: &|cx, x, p| sizes.record(cx, x, p),
    });
}

#[test]
fn packed_documents_have_the_bits_of_documents_alone() {
    with_layer(|layer| recurrence::packed_equals_alone(layer, &[5, 2300, 1, 130, 128]));
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
