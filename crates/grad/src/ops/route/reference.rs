//! Scores of a router (Shazeer et al., 2017, section 2; sigmoids: DeepSeek-V3, 2024, section 2.1.2), the choice of the
//! largest, and their weights.

use fathom_tensor::{RouterScores, Routing};

use crate::testing::Matrix;

/// Probabilities or scores of each expert: [t, experts].
pub(crate) fn scores(kind: RouterScores, logits: &Matrix) -> Matrix {
    let sum = |t: usize| (0..logits.cols).map(|e| logits[(t, e)].exp()).sum::<f64>();
    Matrix::new(logits.rows, logits.cols, |t, e| match kind {
        RouterScores::Softmax => logits[(t, e)].exp() / sum(t),
        RouterScores::Sigmoid => 1.0 / (1.0 + (-logits[(t, e)]).exp()),
    })
}

/// Indices of the largest values in descending order, the first among equals.
fn largest(values: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(count);
    order
}

/// Experts and weights of each token, k each, in order.
pub(crate) fn route(routing: Routing, logits: &Matrix, bias: Option<&Matrix>) -> (Vec<Vec<usize>>, Matrix) {
    let scores = scores(routing.scores, logits);
    let mut chosen = Vec::new();
    for t in 0..logits.rows {
        let mut choice: Vec<f64> =
            (0..logits.cols).map(|e| scores[(t, e)] + bias.map_or(0.0, |bias| bias[(0, e)])).collect();
        if let Some(groups) = routing.groups {
            let size = logits.cols / groups.count;
            let judged = |group: &[f64]| largest(group, groups.by).iter().map(|e| group[*e]).sum();
            let sums: Vec<f64> = choice.chunks(size).map(judged).collect();
            let top = largest(&sums, groups.top);
            let outside = |e: &usize| !top.contains(&(e / size));
            (0..logits.cols).filter(outside).for_each(|e| choice[e] = f64::NEG_INFINITY);
        }
        chosen.push(largest(&choice, routing.top_k));
    }
    let weights = Matrix::new(logits.rows, routing.top_k, |t, slot| {
        let of = |slot: usize| scores[(t, chosen[t][slot])];
        let sum: f64 = if routing.normalise { (0..routing.top_k).map(of).sum() } else { 1.0 };
        f64::from(routing.scale) * of(slot) / sum
    });
    (chosen, weights)
}
