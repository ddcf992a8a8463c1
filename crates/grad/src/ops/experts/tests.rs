//! Products by expert of every layout, with biases, against the reference.

use fathom_tensor::{Activation, Routing, Scores};

use super::ExpertsUse;
use super::reference::experts;
use crate::ops::linear::reference::linear;
use crate::ops::route::reference::route;
use crate::testing::{self, Matrix, Stream};

/// Sizes of one layer.
#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: usize,
    inner: usize,
    out: usize,
    experts: usize,
    top_k: usize,
    trans: bool,
    bias: bool,
    /// Slots have inputs of their own.
    apart: bool,
}

#[track_caller]
fn check(case: Case) {
    let Case { tokens, inner, out, experts: number, top_k, trans, bias, apart } = case;
    let routing = Routing { top_k, scores: Scores::Softmax, groups: None, normalise: false, scale: 1.0 };
    let width = if apart { top_k * inner } else { inner };
    let own = if trans { [number * out, inner] } else { [number * inner, out] };
    let router = Matrix::random(number, 4, 7);
    let weight = Matrix::random(own[0], own[1], 4).times(1.0 / (inner as f64).sqrt());
    let bias = bias.then(|| Matrix::random(number, out, 5));
    let stored = move |weight: &Matrix| {
        if trans {
            weight.clone()
        } else {
            Matrix::new(number * out, inner, |row, i| weight[(row / out * inner + i, row % out)])
        }
    };
    testing::check(&testing::Case {
        what: format!("{case:?}"),
        cols: 5 + width,
        params: [router, weight].into_iter().chain(bias).collect(),
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| {
            let [h, x, _] = cx.split(["h", "x", "none"], x, [4, width, 1], None);
            let logits = cx.linear_wide("logits", h, p[0], None);
            let [_, index] = cx.route(["weights", "index"], logits, routing, None);
            let how = ExpertsUse { experts: number, trans };
            cx.experts("y", [x, index], how, p[1], p.get(2).copied())
        },
        reference: &|x, p| {
            let (chosen, _) = route(routing, &linear(&x.columns(0..4), &p[0], None), None);
            let index: Vec<Vec<Option<usize>>> =
                chosen.iter().map(|experts| experts.iter().copied().map(Some).collect()).collect();
            experts(&x.columns(4..4 + width), &index, &stored(&p[1]), out, p.get(2))
        },
        penalty: None,
    });
}

#[test]
fn products_of_every_layout() {
    for (tokens, inner, out, experts, top_k) in
        [(1, 5, 7, 4, 2), (37, 16, 9, 3, 1), (150, 7, 33, 8, 3), (260, 12, 10, 5, 2)]
    {
        for (trans, bias, apart) in [(true, false, false), (false, true, false), (true, true, true)] {
            check(Case { tokens, inner, out, experts, top_k, trans, bias, apart });
        }
        check(Case { tokens, inner, out, experts, top_k, trans: false, bias: false, apart: true });
    }
}

#[test]
fn clamped_gates_of_slots() {
    let limit = |x: f64, low: f64, high: f64| x.max(low).min(high);
    testing::check(&testing::Case {
        what: "clamped SwiGLU".to_string(),
        cols: 2 * 3 * 5,
        params: vec![],
        wide_params: false,
        stream: Stream::documents(&[40], None, 1),
        record: &|cx, x, _| {
            let x = cx.scale("wide", x, 4.0);
            cx.gate_each("y", Activation::ClampedSwiglu, x, 3)
        },
        reference: &|x, _| {
            Matrix::new(x.rows, 15, |t, col| {
                let (gate, up) = (4.0 * x[(t, 2 * col)], 4.0 * x[(t, 2 * col + 1)]);
                let (gate, up) = (limit(gate, f64::NEG_INFINITY, 7.0), limit(up, -7.0, 7.0));
                (up + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
            })
        },
        penalty: None,
    });
}
