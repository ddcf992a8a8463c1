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
    // Lanes by themselves, as vectors compute them.
    const LANES: usize = 16;
    let (mut most, mut no_number) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let mut take = |lane: usize, logit: f32| {
        most[lane] = if logit > most[lane] { logit } else { most[lane] };
        no_number[lane] |= logit.is_nan();
    };
    let (whole, rest) = logits.as_chunks::<LANES>();
    for lanes in whole {
        (0..LANES).for_each(|lane| take(lane, lanes[lane]));
    }
    rest.iter().for_each(|logit| take(0, *logit));
    let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if no_number.contains(&true) || !most.is_finite() {
        return None;
    }
    logits.iter().position(|logit| *logit == most)
}

/// One that is drawn.
pub fn drawn(logits: &[f32], how: &Draw) -> Option<usize> {
    drawn_typical(logits, how, 1.0)
}

/// One that is drawn of those that are left, of which only the typical ones are kept: whose surprise is nearest to the entropy, until
/// their share reaches `typical_p` (Meister et al., 2023, arXiv:2202.00666); 1 keeps all.
pub fn drawn_typical(logits: &[f32], how: &Draw, typical_p: f64) -> Option<usize> {
    let top = f64::from(logits[largest(logits)?]);
    let mut ranked = Ranked::new(logits);
    if how.top_k > 0 {
        ranked.keep(how.top_k);
    }
    let weigh = |id: usize| ((f64::from(logits[id]) - top) / how.temperature).exp();
    if typical_p >= 1.0
        && let Some(id) = drawn_of_few(&mut ranked, &weigh, how)
    {
        return Some(id);
    }
    let mut weights: Vec<f64> =
        (0..ranked.keys.len()).filter_map(|rank| ranked.id(rank)).map(weigh).collect();
    keep_top_p(&mut weights, how.top_p);
    // The largest weight is one, because the top logit was subtracted.
    weights.retain(|weight| *weight >= how.min_p);
    keep_typical(&mut weights, typical_p);
    ranked.id(drawn_weight(&weights, how)?)
}

/// The index of the weight that is drawn.
fn drawn_weight(weights: &[f64], how: &Draw) -> Option<usize> {
    let total: f64 = weights.iter().sum();
    let mut left = uniform(how.seed, how.drawn) * total;
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    let last = weights.iter().rposition(|weight| *weight > 0.0)?;
    Some(chosen.unwrap_or(last))
}

/// The same without the order of tokens that are less likely than all that matter: a row of logits is mostly those. The sum of all weights
/// is taken in any order here, whose rounding differs; nothing where that could decide.
fn drawn_of_few(ranked: &mut Ranked, weigh: &impl Fn(usize) -> f64, how: &Draw) -> Option<usize> {
    let total: f64 = (0..ranked.keys.len()).map(|at| weigh(ranked.at(at))).sum();
    // A sum of n numbers, in whatever order, is within n units of rounding, and so are n differences from it.
    let doubt = total * ranked.keys.len() as f64 * (8.0 * f64::EPSILON);
    if how.top_p >= 1.0 && how.min_p <= 0.0 {
        let mut left = uniform(how.seed, how.drawn) * total;
        for rank in 0..ranked.keys.len() {
            let id = ranked.id(rank)?;
            left -= weigh(id);
            if left.abs() <= doubt {
                return None;
            }
            if left < 0.0 {
                return Some(id);
            }
        }
        return None;
    }
    let (mut weights, mut sum) = (Vec::new(), 0.0);
    for rank in 0..ranked.keys.len() {
        let weight = weigh(ranked.id(rank)?);
        // Later weights are at most this one, but for the rounding of exponentials.
        if weight < how.min_p * (1.0 - 1e-9) {
            break;
        }
        weights.push(weight);
        sum += weight;
        if how.top_p < 1.0 {
            let over = sum - how.top_p * total;
            if over.abs() <= doubt {
                return None;
            }
            if over > 0.0 {
                break;
            }
        }
    }
    weights.retain(|weight| *weight >= how.min_p);
    ranked.id(drawn_weight(&weights, how)?)
}

/// Tokens, the most likely first and the first of equals; in order as far as was asked.
struct Ranked {
    /// By logit, descending, with the token below.
    keys: Vec<u64>,
    sorted: usize,
}

impl Ranked {
    fn new(logits: &[f32]) -> Ranked {
        let key = |(id, logit): (usize, &f32)| {
            let bits = logit.to_bits();
            let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
            u64::from(!ascending) << 32 | id as u64
        };
        Ranked { keys: logits.iter().enumerate().map(key).collect(), sorted: 0 }
    }

    /// Leaves out all but the first `count`.
    fn keep(&mut self, count: usize) {
        if count < self.keys.len() {
            self.keys.select_nth_unstable(count - 1);
            self.keys.truncate(count);
            self.sorted = self.sorted.min(count);
        }
    }

    /// A token, in no order.
    fn at(&self, at: usize) -> usize {
        self.keys[at] as u32 as usize
    }

    /// The token of a rank.
    fn id(&mut self, rank: usize) -> Option<usize> {
        while rank >= self.sorted && self.sorted < self.keys.len() {
            let count = (3 * self.sorted).max(256).min(self.keys.len() - self.sorted);
            let rest = &mut self.keys[self.sorted..];
            if count < rest.len() {
                rest.select_nth_unstable(count - 1);
            }
            rest[..count].sort_unstable();
            self.sorted += count;
        }
        (rank < self.keys.len()).then(|| self.at(rank))
    }
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

    /// By the definition: all tokens in order, and all of their weights.
    fn by_order(logits: &[f32], how: &Draw) -> Option<usize> {
        largest(logits)?;
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        if how.top_k > 0 {
            order.truncate(how.top_k);
        }
        let top = f64::from(logits[order[0]]);
        let weigh = |id: &usize| ((f64::from(logits[*id]) - top) / how.temperature).exp();
        let mut weights: Vec<f64> = order.iter().map(weigh).collect();
        keep_top_p(&mut weights, how.top_p);
        weights.retain(|weight| *weight >= how.min_p);
        Some(order[drawn_weight(&weights, how)?])
    }

    #[test]
    fn a_part_of_the_order_is_enough() {
        let mut quick = 0;
        let mut check = |logits: &[f32], how: &Draw| {
            assert_eq!(drawn(logits, how), by_order(logits, how), "{} logits, {how:?}", logits.len());
            let top = f64::from(logits[largest(logits).expect("numbers")]);
            let weigh = |id: usize| ((f64::from(logits[id]) - top) / how.temperature).exp();
            let mut ranked = Ranked::new(logits);
            ranked.keep(if how.top_k > 0 { how.top_k } else { logits.len() });
            quick += usize::from(drawn_of_few(&mut ranked, &weigh, how).is_some());
        };
        let mut cases = 0;
        for (count, spread, steps) in
            [(1, 1.0, 0.0), (5, 2.0, 0.0), (300, 8.0, 2.0), (5000, 12.0, 0.0), (5000, 6.0, 4.0)]
        {
            for seed in 0..6 {
                // Where there are steps, many are equal, zeros of both signs among them; some are left out.
                let logit = |at: usize| {
                    let x = (uniform(seed, at as u64) - 0.7) * spread;
                    let x = if steps > 0.0 { (x * steps).round() / steps } else { x };
                    if at % 97 == 50 { f32::NEG_INFINITY } else { x as f32 }
                };
                let logits: Vec<f32> = (0..count).map(logit).collect();
                for temperature in [0.3, 1.0, 1.7] {
                    for (top_k, top_p, min_p) in [
                        (0, 1.0, 0.0),
                        (1, 1.0, 0.0),
                        (40, 1.0, 0.0),
                        (0, 0.9, 0.0),
                        (300, 0.999, 0.02),
                        (0, 1.0, 0.1),
                        (0, 1e-3, 1.0),
                        (100_000, 0.5, 0.0),
                    ] {
                        for drawn in 0..4 {
                            cases += 1;
                            check(&logits, &Draw { temperature, top_k, top_p, min_p, seed, drawn });
                        }
                    }
                }
            }
        }
        assert!(quick * 10 > cases * 9, "{quick} of {cases} without all of the order");
        // A share that is met exactly, where rounding decides.
        let how = Draw { temperature: 1.0, top_k: 0, top_p: 0.5, min_p: 0.0, seed: 1, drawn: 0 };
        for number in 0..50 {
            let how = Draw { drawn: number, ..how };
            assert_eq!(drawn(&[0.0; 8], &how), by_order(&[0.0; 8], &how));
        }
    }

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
        // The first of equals, zeros of both signs among them, wherever it is.
        for (count, at) in (1..70).flat_map(|count| (0..count).map(move |at| (count, at))) {
            let mut logits = vec![-0.5; count];
            logits[at..].fill(0.0);
            logits[at] = -0.0;
            assert_eq!(largest(&logits), Some(at), "{count} logits");
            logits[at] = f32::NAN;
            assert_eq!(largest(&logits), None, "{count} logits");
        }
        let some = [f32::NEG_INFINITY, 2.0];
        assert_eq!((largest(&some), drawn(&some, &draw)), (Some(1), Some(1)));
        assert_eq!(of_rows(&[1.0, 2.0, f32::NAN, 0.0], 2, None), [1, -1]);
    }
}
