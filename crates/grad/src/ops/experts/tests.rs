//! Products by expert of every layout, with biases, against the reference.

use fathom_tensor::{Activation, RouterScores, Routing};

use super::reference::experts;
use super::{ExpertTerm, ExpertWeights, ExpertsUse};
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
    /// Slots have separate inputs.
    apart: bool,
}

#[track_caller]
fn check(case: Case) {
    let Case { tokens, inner, out, experts: number, top_k, trans, bias, apart } = case;
    let routing =
        Routing { top_k, scores: RouterScores::Softmax, groups: None, normalise: false, scale: 1.0 };
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

/// Low-rank terms of one or two runs of columns equal terms added to the weights.
#[track_caller]
fn check_terms(runs: &[(usize, usize)], (trans, apart): (bool, bool)) {
    let (number, inner, out, top_k, rank) = (4, 7, 12, 2, 3);
    let routing =
        Routing { top_k, scores: RouterScores::Softmax, groups: None, normalise: false, scale: 1.0 };
    let (width, scale) = (if apart { top_k * inner } else { inner }, 1.5);
    let own = if trans { [number * out, inner] } else { [number * inner, out] };
    let mut params = vec![Matrix::random(number, 4, 7), Matrix::random(own[0], own[1], 4).times(0.4)];
    for (at, (_, columns)) in runs.iter().enumerate() {
        params.push(Matrix::random(number * rank, inner, 20 + at as u64).times(0.4));
        params.push(Matrix::random(number * columns, rank, 30 + at as u64).times(0.4));
    }
    let adapted = |p: &[Matrix]| {
        let term = |row: usize, i: usize| {
            let (expert, column) = (row / out, row % out);
            let of = |(at, (first, columns)): (usize, &(usize, usize))| {
                let Some(own) = column.checked_sub(*first).filter(|own| own < columns) else { return 0.0 };
                let (a, b) = (&p[2 + 2 * at], &p[3 + 2 * at]);
                let low = |r: usize| b[(expert * columns + own, r)] * a[(expert * rank + r, i)];
                (0..rank).map(low).sum::<f64>()
            };
            f64::from(scale) * runs.iter().enumerate().map(of).sum::<f64>()
        };
        let base = |row: usize, i: usize| {
            if trans { p[1][(row, i)] } else { p[1][(row / out * inner + i, row % out)] }
        };
        Matrix::new(number * out, inner, |row, i| base(row, i) + term(row, i))
    };
    testing::check(&testing::Case {
        what: format!("terms {runs:?} trans {trans} apart {apart}"),
        cols: 5 + width,
        params,
        wide_params: false,
        stream: Stream::documents(&[140], None, 1),
        record: &|cx, x, p| {
            let [h, x, _] = cx.split(["h", "x", "none"], x, [4, width, 1], None);
            let logits = cx.linear_wide("logits", h, p[0], None);
            let [_, index] = cx.route(["weights", "index"], logits, routing, None);
            let term = |at: usize| {
                let columns = *runs.get(at)?;
                Some(ExpertTerm { a: p[2 + 2 * at], b: p[3 + 2 * at], scale, columns })
            };
            let weights = ExpertWeights { weight: p[1], bias: None, terms: [term(0), term(1)] };
            cx.adapted_experts("y", [x, index], ExpertsUse { experts: number, trans }, weights)
        },
        reference: &|x, p| {
            let (chosen, _) = route(routing, &linear(&x.columns(0..4), &p[0], None), None);
            let index: Vec<Vec<Option<usize>>> =
                chosen.iter().map(|experts| experts.iter().copied().map(Some).collect()).collect();
            experts(&x.columns(4..4 + width), &index, &adapted(p), out, None)
        },
        penalty: None,
    });
}

#[test]
fn low_rank_terms() {
    check_terms(&[(0, 12)], (true, false));
    check_terms(&[(0, 5), (5, 7)], (true, true));
    check_terms(&[(4, 8)], (false, false));
    check_terms(&[(0, 12)], (false, true));
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
