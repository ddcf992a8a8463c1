//! Whole layers of experts: their weighted sums, with empty slots and in every tiling.

use fathom_tensor::{Activation, RouterScores, Routing};

use super::reference::combine;
use crate::ops::activate::reference as activate;
use crate::ops::experts::reference::experts;
use crate::ops::linear::reference::linear;
use crate::ops::route::reference::route;
use crate::testing::{self, Matrix, Stream};
use crate::{Ctx, ExpertsUse, ParamId, Val};

/// A layer: sizes, and how many slots an expert may have.
#[derive(Clone, Copy, Debug)]
struct Layer {
    tokens: usize,
    hidden: usize,
    ffn: usize,
    experts: usize,
    top_k: usize,
    limit: Option<f32>,
}

const ROUTING: Routing =
    Routing { top_k: 2, scores: RouterScores::Softmax, groups: None, normalise: true, scale: 1.0 };

fn record(cx: &mut Ctx<'_>, layer: Layer, x: Val, p: &[ParamId]) -> Val {
    let Layer { experts, top_k, limit, .. } = layer;
    let (routing, how) = (Routing { top_k, ..ROUTING }, ExpertsUse { experts, trans: true });
    cx.rows(|cx| {
        let logits = cx.linear_wide("moe.logits", x, p[0], None);
        let [weights, mut index] = cx.route(["moe.weights", "moe.index"], logits, routing, None);
        if let Some(factor) = limit {
            index = cx.whole(|cx| cx.limit("moe.limited", index, None, experts, factor));
        }
        let up = cx.experts("moe.up", [x, index], how, p[1], None);
        let act = cx.gate_each("moe.act", Activation::Silu, up, top_k);
        let down = cx.experts("moe.down", [act, index], how, p[2], None);
        cx.combine("moe.out", down, weights)
    })
}

fn reference(layer: Layer, x: &Matrix, p: &[Matrix]) -> Matrix {
    let Layer { tokens, hidden, ffn, experts: number, top_k, limit } = layer;
    let (chosen, weights) = route(Routing { top_k, ..ROUTING }, &linear(x, &p[0], None), None);
    let factor = limit.unwrap_or(f32::INFINITY);
    let capacity = (f64::from(factor) * (tokens * top_k) as f64 / number as f64).ceil();
    let mut counts = vec![0.0; number];
    let mut fill = |expert: &usize| {
        counts[*expert] += 1.0;
        (counts[*expert] <= capacity).then_some(*expert)
    };
    let index: Vec<Vec<Option<usize>>> =
        chosen.iter().map(|experts| experts.iter().map(&mut fill).collect()).collect();
    let up = experts(x, &index, &p[1], 2 * ffn, None);
    let slots: Vec<Matrix> = (0..top_k)
        .map(|slot| activate::gate(Activation::Silu, &up.columns(slot * 2 * ffn..(slot + 1) * 2 * ffn)))
        .collect();
    let down = experts(&Matrix::join(&slots), &index, &p[2], hidden, None);
    combine(&down, &weights)
}

fn weights(layer: Layer) -> Vec<Matrix> {
    let Layer { hidden, ffn, experts, .. } = layer;
    let random =
        |rows: usize, cols: usize, seed| Matrix::random(rows, cols, seed).times(1.0 / (cols as f64).sqrt());
    vec![random(experts, hidden, 3), random(experts * 2 * ffn, hidden, 4), random(experts * hidden, ffn, 5)]
}

#[track_caller]
fn check(layer: Layer) {
    testing::check_within(
        &testing::Case {
            what: format!("{layer:?}"),
            cols: layer.hidden,
            params: weights(layer),
            wide_params: false,
            stream: Stream::documents(&[layer.tokens], None, 1),
            record: &|cx, x, p| record(cx, layer, x, p),
            reference: &|x, p| reference(layer, x, p),
            penalty: None,
        },
        5e-2,
    );
}

#[test]
fn layers_of_experts() {
    let layer = Layer { tokens: 33, hidden: 12, ffn: 7, experts: 4, top_k: 2, limit: None };
    check(layer);
    check(Layer { tokens: 1, ..layer });
    check(Layer { tokens: 150, experts: 8, top_k: 3, ..layer });
    check(Layer { experts: 3, ..layer });
}

#[test]
fn slots_beyond_the_capacity_are_empty() {
    let layer = Layer { tokens: 40, hidden: 12, ffn: 7, experts: 4, top_k: 2, limit: Some(0.8) };
    check(layer);
    check(Layer { limit: Some(0.1), ..layer });
}
