//! The next token from its logits.

use std::collections::BTreeSet;

use fathom_base::Sampling;

use crate::error::Error;

/// Chooses tokens for one sequence. The same seed, settings and logits give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    seen: BTreeSet<u32>,
    drawn: u64,
}

impl Sampler {
    /// A sampler; `prompt` counts as seen for the repetition penalty.
    ///
    /// # Errors
    /// Settings out of range, by name.
    pub fn new(how: &Sampling, prompt: &[u32]) -> Result<Sampler, Error> {
        let refuse = |key, message: &str| Err(Error::Sampling { key, message: message.into() });
        if !(how.temperature.is_finite() && how.temperature >= 0.0) {
            return refuse("temperature", "must be zero (greedy) or a positive number");
        }
        if !(how.top_p > 0.0 && how.top_p <= 1.0) {
            return refuse("top_p", "must be above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&how.min_p) {
            return refuse("min_p", "must be from 0 to 1");
        }
        if !(how.repetition_penalty.is_finite() && how.repetition_penalty > 0.0) {
            return refuse("repetition_penalty", "must be a positive number; 1 changes nothing");
        }
        Ok(Sampler { how: how.clone(), seen: prompt.iter().copied().collect(), drawn: 0 })
    }

    /// Chooses a token from `logits`, which it may change.
    pub fn next(&mut self, logits: &mut [f32]) -> u32 {
        self.penalise(logits);
        let id = if self.how.temperature == 0.0 { greedy(logits) } else { self.draw(logits) };
        self.seen.insert(id);
        id
    }

    /// Divides positive and multiplies negative logits of tokens already seen (Keskar et al., 2019).
    fn penalise(&self, logits: &mut [f32]) {
        let penalty = self.how.repetition_penalty as f32;
        if penalty == 1.0 {
            return;
        }
        for id in &self.seen {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let at = |id: u32| logits[id as usize];
        order.sort_unstable_by(|a, b| at(*b).total_cmp(&at(*a)).then(a.cmp(b)));
        if self.how.top_k > 0 {
            order.truncate(self.how.top_k.max(1));
        }
        let top = f64::from(at(order[0]));
        let weigh = |id: &u32| ((f64::from(at(*id)) - top) / self.how.temperature).exp();
        let mut weights: Vec<f64> = order.iter().map(weigh).collect();
        keep_top_p(&mut weights, self.how.top_p);
        // The largest weight is one, because the top logit was subtracted.
        weights.retain(|weight| *weight >= self.how.min_p);
        let total: f64 = weights.iter().sum();
        let mut left = uniform(self.how.seed, self.drawn) * total;
        self.drawn += 1;
        let chosen = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order[chosen.unwrap_or(weights.len() - 1)]
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

/// The most likely token; the lowest id among equals.
pub(crate) fn greedy(logits: &[f32]) -> u32 {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (1..logits.len()).fold(0, better) as u32
}

/// A number in [0, 1) from a key and a counter (SplitMix64's finaliser, Steele et al., 2014).
fn uniform(seed: u64, counter: u64) -> f64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(how: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for seed in 0..2000 {
            let mut sampler = Sampler::new(&Sampling { seed, ..how.clone() }, &[]).unwrap();
            counts[sampler.next(&mut logits.to_vec()) as usize] += 1;
        }
        counts
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [2.0f32, 1.0, 0.0, -1.0];
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let all = counts(warm.clone(), &logits);
        assert!(all.iter().all(|n| *n > 0) && all.windows(2).all(|pair| pair[0] > pair[1]), "{all:?}");
        assert_eq!(counts(Sampling { top_k: 2, ..warm.clone() }, &logits)[2..], [0, 0]);
        assert_eq!(counts(Sampling { top_p: 0.6, ..warm.clone() }, &logits)[1..], [0, 0, 0]);
        assert_eq!(counts(Sampling { min_p: 0.3, ..warm.clone() }, &logits)[2..], [0, 0]);
        assert_eq!(counts(Sampling::default(), &logits)[0], 2000);
    }

    #[test]
    fn penalty_and_range() {
        let how = Sampling { repetition_penalty: 4.0, ..Sampling::default() };
        let mut sampler = Sampler::new(&how, &[0]).unwrap();
        assert_eq!(sampler.next(&mut [2.0, 1.0, -0.5]), 1);
        assert_eq!(sampler.next(&mut [2.0, 1.0, -0.5]), 0);
        assert!(Sampler::new(&Sampling { top_p: 0.0, ..Sampling::default() }, &[]).is_err());
    }
}
