//! Gradients of a router's losses compared with finite differences.

use fathom_tensor::{RouterScores, Routing};

use super::RouterCosts;
use super::reference::losses;
use crate::ops::combine::reference::combine;
use crate::ops::linear::reference::linear;
use crate::ops::route::reference::route;
use crate::testing::{self, Matrix, Stream};

const EXPERTS: usize = 6;
const HIDDEN: usize = 9;
const TOP_K: usize = 2;

#[track_caller]
fn check(tokens: usize, kind: RouterScores, costs: RouterCosts) {
    let width = 3;
    let cols = HIDDEN + TOP_K * width + 1;
    let routing = Routing { top_k: TOP_K, scores: kind, groups: None, normalise: true, scale: 1.0 };
    let logits = |x: &Matrix, p: &[Matrix]| linear(&x.columns(0..HIDDEN), &p[0], None);
    testing::check(&testing::Case {
        what: format!("{tokens} tokens, {kind:?}, {costs:?}"),
        cols,
        params: vec![Matrix::random(EXPERTS, HIDDEN, 3).times(0.4)],
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| {
            cx.rows(|cx| {
                let [h, y, _] = cx.split(["h", "y", "none"], x, [HIDDEN, cols - HIDDEN - 1, 1], None);
                let logits = cx.linear_wide("logits", h, p[0], None);
                let [weights, index] = cx.route(["weights", "index"], logits, routing, None);
                let weights = cx.balance(["balanced", "load"], [weights, index, logits], kind, costs);
                cx.combine("out", y, weights)
            })
        },
        reference: &|x, p| combine(&x.columns(HIDDEN..cols - 1), &route(routing, &logits(x, p), None).1),
        penalty: Some(&|x, p| {
            let logits = logits(x, p);
            let mut load = vec![0.0; EXPERTS];
            route(routing, &logits, None).0.concat().into_iter().for_each(|e| load[e] += 1.0);
            losses(kind, TOP_K, costs, &logits, &load)
        }),
    });
}

#[test]
fn losses_join_the_gradient_of_the_logits() {
    for kind in [RouterScores::Softmax, RouterScores::Sigmoid] {
        for costs in [RouterCosts { aux: 0.7, z: 0.0 }, RouterCosts { aux: 0.0, z: 0.3 }] {
            check(23, kind, costs);
        }
        check(130, kind, RouterCosts { aux: 0.5, z: 0.1 });
    }
}
