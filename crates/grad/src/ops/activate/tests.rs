//! Every function, plain and gated, against the reference.

use fathom_tensor::Activation;

use super::reference;
use crate::testing::{self, Stream};

const KINDS: [Activation; 7] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Relu,
    Activation::Relu2,
    Activation::Tanh,
    Activation::Sigmoid,
];

#[track_caller]
fn check(kind: Activation, gated: bool, [tokens, cols]: [usize; 2]) {
    testing::check(&testing::Case {
        what: format!("{kind:?}, gated {gated}, [{tokens}, {cols}]"),
        cols: if gated { 2 * cols } else { cols },
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, _| if gated { cx.gate("y", kind, x) } else { cx.activate("y", kind, x) },
        reference: &|x, _| if gated { reference::gate(kind, x) } else { reference::activate(kind, x) },
        penalty: None,
    });
}

#[test]
fn every_function() {
    for kind in KINDS {
        for gated in [false, true] {
            for shape in [[1, 1], [3, 37], [130, 16], [5, 129]] {
                check(kind, gated, shape);
            }
        }
    }
}
