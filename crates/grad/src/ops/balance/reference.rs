//! The losses themselves: `T aux E sum over e of f_e P_e` (Fedus et al., 2021) and `z sum over t of logsumexp^2` (Zoph et al.,
//! 2022), over sums of tokens.

use fathom_tensor::RouterScores;

use super::RouterCosts;
use crate::ops::route::reference::scores;
use crate::testing::Matrix;

/// The losses for logits [t, experts] from which each token chooses `top_k`, given the slots of every expert.
pub(crate) fn losses(
    kind: RouterScores,
    top_k: usize,
    costs: RouterCosts,
    logits: &Matrix,
    load: &[f64],
) -> f64 {
    let experts = load.len();
    let mut all = scores(kind, logits);
    if kind == RouterScores::Sigmoid {
        let sums: Vec<f64> = (0..all.rows).map(|t| (0..experts).map(|e| all[(t, e)]).sum()).collect();
        all = Matrix::new(all.rows, experts, |t, e| all[(t, e)] / sums[t]);
    }
    let (tokens, slots) = (logits.rows as f64, (logits.rows * top_k) as f64);
    let mut aux = 0.0;
    for (e, load) in load.iter().enumerate() {
        let mean = (0..logits.rows).map(|t| all[(t, e)]).sum::<f64>() / tokens;
        aux += load / slots * mean;
    }
    let lse = |t: usize| (0..experts).map(|e| logits[(t, e)].exp()).sum::<f64>().ln();
    let z: f64 = (0..logits.rows).map(|t| lse(t).powi(2)).sum();
    tokens * f64::from(costs.aux) * experts as f64 * aux + f64::from(costs.z) * z
}
