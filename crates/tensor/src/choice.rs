//! The choice of a token from its logits: the largest, or one drawn. What a machine does is what the functions here do on the host.
//! Where a logit is not a number, or the largest is infinite, there is no choice.

use crate::Tensor;

/// Chooses a column of each row.
#[derive(Clone, Copy, Debug)]
pub struct Choose<'a> {
    /// [r, vocab], f32 or bf16.
    pub logits: &'a Tensor,
    /// i32 [1, r]: the columns; -1 where there is no choice.
    pub ids: &'a Tensor,
    /// How they are drawn; without, each row's largest, the first of equals. Row i has number `drawn + i`.
    pub draw: Option<Draw>,
}

/// How a token is drawn: softmax of the logits over a temperature, of which some are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; above zero.
    pub temperature: f64,
    /// Keeps the k most likely; 0 keeps all.
    pub top_k: usize,
    /// Then keeps the fewest whose share reaches this; 1 keeps all.
    pub top_p: f64,
    /// Then drops those less likely than this share of the most likely.
    pub min_p: f64,
    /// The number drawn is a function of this
    pub seed: u64,
    /// and of how many were drawn before.
    pub drawn: u64,
}

/// The largest; the first of equals.
pub fn largest(logits: &[f32]) -> Option<usize> {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    let best = (1..logits.len()).fold(0, better);
    let numbers = logits.get(best)?.is_finite() && !logits.iter().any(|logit| logit.is_nan());
    numbers.then_some(best)
}

/// One that is drawn.
pub fn drawn(logits: &[f32], how: &Draw) -> Option<usize> {
    drawn_typical(logits, how, 1.0)
}

/// One that is drawn of those that are left, of which only the typical ones are kept: whose surprise is nearest to the entropy, until
/// their share reaches `typical_p` (Meister et al., 2023, arXiv:2202.00666); 1 keeps all.
pub fn drawn_typical(logits: &[f32], how: &Draw, typical_p: f64) -> Option<usize> {
    largest(logits)?;
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    if how.top_k > 0 {
        order.truncate(how.top_k);
    }
    let top = f64::from(logits[order[0]]);
    let weigh = |id: &usize| ((f64::from(logits[*id]) - top) / how.temperature).exp();
    let mut weights: Vec<f64> = order.iter().map(weigh).collect();
    keep_top_p(&mut weights, how.top_p);
    // The largest weight is one, because the top logit was subtracted.
    weights.retain(|weight| *weight >= how.min_p);
    keep_typical(&mut weights, typical_p);
    let total: f64 = weights.iter().sum();
    let mut left = uniform(how.seed, how.drawn) * total;
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    let last = weights.iter().rposition(|weight| *weight > 0.0)?;
    Some(order[chosen.unwrap_or(last)])
}

/// Drops the tail beyond the smallest set whose share reaches `p`; weights are in descending order.
fn keep_top_p(weights: &mut Vec<f64>, p: f64) {
    if p >= 1.0 {
        return;
    }
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let reached = weights.iter().position(|weight| {
        sum += weight;
        sum >= p * total
    });
    weights.truncate(reached.map_or(weights.len(), |last| last + 1));
}

/// Zeros for those that are not typical.
fn keep_typical(weights: &mut [f64], typical_p: f64) {
    if typical_p >= 1.0 {
        return;
    }
    let total: f64 = weights.iter().sum();
    let surprise = |weight: &f64| -(weight / total).ln();
    let entropy: f64 = weights.iter().filter(|w| **w > 0.0).map(|w| w / total * surprise(w)).sum();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    let apart = |at: &usize| (surprise(&weights[*at]) - entropy).abs();
    order.sort_by(|a, b| apart(a).total_cmp(&apart(b)));
    let mut sum = 0.0;
    let reached = order.iter().position(|at| {
        sum += weights[*at];
        sum >= typical_p * total
    });
    let kept = reached.map_or(order.len(), |last| last + 1);
    order[kept..].iter().for_each(|at| weights[*at] = 0.0);
}

/// A number in [0, 1) from a key and a counter (SplitMix64's finaliser, Steele et al., 2014).
pub fn uniform(seed: u64, counter: u64) -> f64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The columns for rows of `vocab` logits each.
pub(crate) fn of_rows(logits: &[f32], vocab: usize, draw: Option<Draw>) -> Vec<i32> {
    let choose = |(row, logits): (usize, &[f32])| match draw {
        None => largest(logits),
        Some(draw) => drawn(logits, &Draw { drawn: draw.drawn + row as u64, ..draw }),
    };
    let id = |row| choose(row).map_or(-1, |id| id as i32);
    logits.chunks_exact(vocab).enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_choice_without_numbers() {
        let draw = Draw { temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0, seed: 3, drawn: 0 };
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in 0..3 {
                let mut logits = [1.0, 2.0, f32::NEG_INFINITY, 0.5];
                logits[at] = bad;
                assert_eq!((largest(&logits), drawn(&logits, &draw)), (None, None), "{logits:?}");
            }
        }
        let none = [f32::NEG_INFINITY; 4];
        assert_eq!((largest(&none), drawn(&none, &draw), largest(&[])), (None, None, None));
        let some = [f32::NEG_INFINITY, 2.0];
        assert_eq!((largest(&some), drawn(&some, &draw)), (Some(1), Some(1)));
        assert_eq!(of_rows(&[1.0, 2.0, f32::NAN, 0.0], 2, None), [1, -1]);
    }
}
