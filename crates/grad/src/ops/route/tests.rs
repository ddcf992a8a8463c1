//! Choices and weights of every kind of router, with their gradients.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Groups, Route, RouterScores, Routing};

use super::reference::route;
use crate::ops::combine::reference::combine;
use crate::ops::linear::reference::linear;
use crate::testing::{self, Matrix, Stream, assert_close, download, levels, upload};

const EXPERTS: usize = 12;
const HIDDEN: usize = 9;

/// Weights reach the output through sums of the input's own columns.
#[track_caller]
fn check(tokens: usize, routing: Routing) {
    let width = 5;
    let cols = HIDDEN + routing.top_k * width + 1;
    let random = Matrix::random(EXPERTS, HIDDEN, 3).times(0.4);
    testing::check(&testing::Case {
        what: format!("{tokens} tokens, {routing:?}"),
        cols,
        params: vec![random],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| {
            let [h, y, _] = cx.split(["h", "y", "none"], x, [HIDDEN, cols - HIDDEN - 1, 1], None);
            let logits = cx.linear_wide("logits", h, p[0], None);
            let [weights, _] = cx.route(["weights", "index"], logits, routing, None);
            cx.combine("out", y, weights)
        },
        reference: &|x, p| {
            let logits = linear(&x.columns(0..HIDDEN), &p[0], None);
            combine(&x.columns(HIDDEN..cols - 1), &route(routing, &logits, None).1)
        },
        penalty: None,
    });
}

#[test]
fn softmax_and_sigmoid_of_some_experts() {
    for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
        for (top_k, normalise) in [(1, false), (3, false), (3, true), (12, true)] {
            let routing = Routing { top_k, scores, groups: None, normalise, scale: 1.0 };
            check(17, routing);
            check(140, Routing { scale: 2.5, ..routing });
        }
    }
}

#[test]
fn groups_are_chosen_first() {
    for (by, scores) in [(1, RouterScores::Softmax), (2, RouterScores::Sigmoid)] {
        let groups = Some(Groups { count: 4, top: 2, by });
        check(30, Routing { top_k: 4, scores, groups, normalise: true, scale: 1.5 });
    }
}

#[test]
fn a_bias_joins_the_choice_alone() {
    let (tokens, logits, bias) = (50, Matrix::random(50, EXPERTS, 6), Matrix::random(1, EXPERTS, 7));
    for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
        let groups = Some(Groups { count: 3, top: 2, by: 2 });
        let routing = Routing { top_k: 3, scores, groups, normalise: true, scale: 1.0 };
        let (chosen, expected) = route(routing, &logits, Some(&bias));
        assert_ne!(chosen, route(routing, &logits, None).0);
        for isa in levels() {
            let device = Device::new(Arc::new(Cpu::new(2, Some(isa))), 1 << 24);
            let [x, b] =
                [&logits, &bias].map(|from| upload(&device, from, DType::F32, Category::Data, false));
            let index = device.empty(tokens, 3, DType::I32, Category::Data);
            let weights = device.empty(tokens, 3, DType::F32, Category::Data);
            let call = Route { routing, logits: &x, bias: Some(&b), index: &index, weights: &weights };
            device.machine.route(&call);
            let found: Vec<usize> = device
                .machine
                .read(&index)
                .wait()
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
                .collect();
            assert_eq!(found, chosen.concat(), "{}", isa.name());
            let at = format!("{scores:?} on {}", isa.name());
            assert_close(&at, "weights", &download(&device, &weights).data, &expected.data, 1e-5, 0.0);
        }
    }
}
