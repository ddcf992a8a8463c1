//! Scaled dot-product attention (Vaswani et al., 2017, eq. 1) with the whole score matrix. Query head h reads key head
//! `h / (heads / kv_heads)` (grouped queries: Ainslie et al., 2023). Scores may be capped, `cap tanh(s / cap)` (Gemma
//! 2, 2024, section 2), and a sink is a logit that is added to the denominator and has no value (gpt-oss, 2025, section
//! 2.2). A bias of a score is a number by head and distance (T5: Raffel et al., 2020, section 2.1), or a slope by head times
//! the distance (ALiBi: Press et al., 2022, section 3).

use fathom_tensor::DistanceTerms;

use super::call::AttentionUse;
use crate::testing::{Matrix, Stream};

/// q [t, heads x head_dim], k and v [t, kv_heads x head_dim], sinks [1, heads] to the shape of q. A row that attends to
/// nothing is zero.
pub(crate) fn attention(
    [q, k, v]: [&Matrix; 3],
    stream: &Stream,
    how: AttentionUse,
    sinks: Option<&Matrix>,
    bias: Option<(&Matrix, DistanceTerms)>,
) -> Matrix {
    let AttentionUse { head_dim, scale, softcap, .. } = how;
    let (heads, kv_heads) = (q.cols / head_dim, k.cols / head_dim);
    let (scale, softcap) = (f64::from(scale), f64::from(softcap));
    let mut out = Matrix::zeros(q.rows, q.cols);
    for head in 0..heads {
        let (at, kv_at) = (head * head_dim, head / (heads / kv_heads) * head_dim);
        for i in 0..q.rows {
            let attended: Vec<usize> = (0..k.rows).filter(|j| stream.attends(i, *j)).collect();
            let score = |j: usize| {
                let dot: f64 = (0..head_dim).map(|c| q[(i, at + c)] * k[(j, kv_at + c)]).sum();
                let distance = i64::from(stream.positions[j] - stream.positions[i]);
                let term = bias.map_or(0.0, |(table, terms)| match terms {
                    DistanceTerms::Buckets(buckets) => table[(buckets.of(distance), head)],
                    DistanceTerms::Slopes => table[(0, head)] * distance as f64,
                });
                if softcap == 0.0 { scale * dot + term } else { softcap * (scale * dot / softcap).tanh() }
            };
            let weights: Vec<f64> = attended.iter().map(|j| score(*j).exp()).collect();
            let sink = sinks.map_or(0.0, |sinks| sinks[(0, head)].exp());
            let total = sink + weights.iter().sum::<f64>();
            for (j, weight) in attended.iter().zip(&weights) {
                for c in 0..head_dim {
                    out[(i, at + c)] += weight / total * v[(*j, kv_at + c)];
                }
            }
        }
    }
    out
}
