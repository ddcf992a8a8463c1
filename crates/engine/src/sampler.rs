//! Sampling of the next token from its logits.

use std::collections::{BTreeMap, BTreeSet};

use fathom_base::Sampling;
use fathom_tensor::choice::{self, Choose, Draw};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::error::Error;

/// Chooses tokens for one sequence. The same seed, settings and logits give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    /// Tokens that prompt and answer contain.
    seen: BTreeSet<u32>,
    /// Number of occurrences of each token in the answer.
    counts: BTreeMap<u32, u32>,
    drawn: u64,
    /// End tokens, which are excluded before `min_tokens`.
    ends: Vec<u32>,
}

impl Sampler {
    /// A sampler; `prompt` counts as seen for the repetition penalty. `ends` are the tokens that end an answer.
    ///
    /// # Errors
    /// Settings out of range, by name.
    pub fn new(how: &Sampling, prompt: &[u32], ends: &[u32]) -> Result<Sampler, Error> {
        check(how)?;
        let seen = prompt.iter().copied().collect();
        Ok(Sampler { how: how.clone(), seen, counts: BTreeMap::new(), drawn: 0, ends: ends.to_vec() })
    }

    /// A sampler for another answer to the same prompt, before the first token.
    pub fn again(&self, answer: usize) -> Sampler {
        let mut other = self.clone();
        other.how.seed = self.how.seed.wrapping_add((answer as u64).wrapping_mul(SEED_STEP));
        other
    }

    /// A copy that predicts this sampler's choices, with the same future draws.
    pub fn guessing(&self) -> Sampler {
        // Copied only if needed: it may contain all of a long prompt.
        let seen = if self.how.repetition_penalty == 1.0 { BTreeSet::new() } else { self.seen.clone() };
        let Sampler { how, counts, drawn, ends, .. } = self;
        Sampler { how: how.clone(), seen, counts: counts.clone(), drawn: *drawn, ends: ends.clone() }
    }

    /// Tokens that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Chooses a token from a row of logits; `allowed` is a bit mask of the permitted tokens.
    ///
    /// # Errors
    /// The logits are not finite, or no token is permitted.
    pub fn next(&mut self, device: &Device, logits: &Tensor, allowed: Option<&[u32]>) -> Result<u32, Error> {
        if allowed.is_none()
            && let Some(draw) = self.plain(0)
        {
            let id = choose(device, logits, &[draw], None).swap_remove(0);
            return Ok(self.chose(id.ok_or(Error::NotFinite { what: LOGIT })?));
        }
        self.on_host(&mut device.to_f32(logits), allowed)
    }

    /// The draw for the token `ahead` tokens after the next one, if it depends only on the logits.
    pub fn plain(&self, ahead: usize) -> Option<Option<Draw>> {
        let draw = || self.draw().map(|draw| Draw { drawn: draw.drawn + ahead as u64, ..draw });
        self.is_plain().then(draw)
    }

    fn is_plain(&self) -> bool {
        is_plain(&self.how) && self.drawn >= self.how.min_tokens as u64
    }

    /// Chooses a token from logits, modifying them.
    fn on_host(&mut self, logits: &mut [f32], allowed: Option<&[u32]>) -> Result<u32, Error> {
        // Excluded tokens become minus infinity from here on, so non-finite logits must be detected before.
        choice::largest(logits).ok_or(Error::NotFinite { what: LOGIT })?;
        self.penalise(logits);
        if self.drawn < self.how.min_tokens as u64 {
            self.ends.iter().for_each(|id| leave_out(logits, *id));
        }
        if let Some(allowed) = allowed {
            let is = |id: usize| allowed.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
            (0..logits.len()).filter(|id| !is(*id)).for_each(|id| logits[id] = f32::NEG_INFINITY);
        }
        let drawn = |draw: Draw| choice::drawn_typical(logits, &draw, self.how.typical_p);
        let id = self.draw().map_or_else(|| choice::largest(logits), drawn);
        let id = id.ok_or(Error::NoToken)?;
        Ok(self.chose(id as u32))
    }

    /// Divides positive and multiplies negative logits of tokens already seen (Keskar et al., 2019), subtracts the
    /// frequency and presence penalties of the answer's tokens, and adds the biases.
    fn penalise(&self, logits: &mut [f32]) {
        let penalty = self.how.repetition_penalty as f32;
        for id in self.seen.iter().filter(|_| penalty != 1.0) {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        for (id, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*id as usize) {
                let often = self.how.frequency_penalty * f64::from(*count);
                *logit -= (often + self.how.presence_penalty) as f32;
            }
        }
        for (id, bias) in &self.how.logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
    }

    /// The draw of the next token; `None` chooses the most likely one.
    fn draw(&self) -> Option<Draw> {
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = self.how;
        (temperature > 0.0).then_some(Draw { temperature, top_k, top_p, min_p, seed, drawn: self.drawn })
    }

    /// Records a chosen token.
    pub fn chose(&mut self, id: u32) -> u32 {
        self.drawn += 1;
        self.seen.insert(id);
        *self.counts.entry(id).or_default() += 1;
        id
    }
}

/// True if choices depend only on logits, from [`Sampling::min_tokens`] on.
pub(crate) fn is_plain(how: &Sampling) -> bool {
    let Sampling { repetition_penalty, frequency_penalty, presence_penalty, typical_p, .. } = *how;
    repetition_penalty == 1.0
        && frequency_penalty == 0.0
        && presence_penalty == 0.0
        && (typical_p >= 1.0 || how.temperature == 0.0)
        && how.logit_bias.is_empty()
}

/// The largest penalty.
const MOST_PENALTY: f64 = 1000.0;

/// Distance between the seeds of a request's answers.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn leave_out(logits: &mut [f32], id: u32) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

/// Checks that settings are in range.
///
/// # Errors
/// A setting out of range, by name.
pub(crate) fn check(how: &Sampling) -> Result<(), Error> {
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
    if !(how.typical_p > 0.0 && how.typical_p <= 1.0) {
        return refuse("typical_p", "must be above 0 and at most 1");
    }
    // Beyond these limits, logits would overflow.
    if !(1.0 / MOST_PENALTY..=MOST_PENALTY).contains(&how.repetition_penalty) {
        return refuse("repetition_penalty", "must be from 0.001 to 1000; 1 changes nothing");
    }
    for (key, penalty) in
        [("frequency_penalty", how.frequency_penalty), ("presence_penalty", how.presence_penalty)]
    {
        if !(-MOST_PENALTY..=MOST_PENALTY).contains(&penalty) {
            return refuse(key, "must be from -1000 to 1000; 0 changes nothing");
        }
    }
    if how.logit_bias.values().any(|bias| bias.is_nan() || *bias == f32::INFINITY) {
        return refuse("logit_bias", "must be numbers, or minus infinity for a token that is never chosen");
    }
    if how.min_tokens > how.max_tokens {
        return refuse("min_tokens", "must be at most max_tokens");
    }
    Ok(())
}

/// The quantity named in errors about non-finite logits.
pub(crate) const LOGIT: &str = "a logit";

/// Chooses a token for each row of logits on the machine, without copying the logits to the host; `None` for rows that
/// are not finite. Masks of the sampled candidates are written to `kept` ([`Choose::kept`]).
pub(crate) fn choose(
    device: &Device,
    logits: &Tensor,
    draws: &[Option<Draw>],
    kept: Option<&Tensor>,
) -> Vec<Option<u32>> {
    let ids = device.empty(1, logits.rows(), DType::I32, Category::Activations);
    device.machine.choose(&Choose { logits, ids: &ids, draws, kept });
    if !device.machine.has_data() {
        return vec![Some(0); logits.rows()];
    }
    let bytes = device.machine.read(&ids).wait();
    let id = |bytes: &[u8; 4]| u32::try_from(i32::from_le_bytes(*bytes)).ok();
    bytes.as_chunks::<4>().0.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(how: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for seed in 0..2000 {
            let mut sampler = Sampler::new(&Sampling { seed, ..how.clone() }, &[], &[]).unwrap();
            counts[sampler.on_host(&mut logits.to_vec(), None).unwrap() as usize] += 1;
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
    fn typical_tokens_are_kept() {
        // Shares .5, .25, .125, .0625, .0625: the entropy is 1.3 nats, to which .25 (1.386) is nearest, then .5 (.693),
        // .125 (2.08).
        let logits = [0.5f32, 0.25, 0.125, 0.0625, 0.0625].map(f32::ln);
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let kept = |typical_p| {
            counts(Sampling { typical_p, ..warm.clone() }, &logits)
                .iter()
                .enumerate()
                .filter(|(_, n)| **n > 0)
                .map(|(id, _)| id)
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(0.2), [1]);
        assert_eq!(kept(0.7), [0, 1]);
        assert_eq!(kept(0.8), [0, 1, 2]);
        assert_eq!(kept(1.0), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn biases_penalties_and_ends() {
        let logits = [2.0f32, 1.0, 0.0, -1.0];
        let how = Sampling { logit_bias: [(2, 5.0)].into(), ..Sampling::default() };
        assert_eq!(counts(how, &logits)[2], 2000);
        let how = Sampling { presence_penalty: 1.5, frequency_penalty: 0.25, ..Sampling::default() };
        let mut sampler = Sampler::new(&how, &[0], &[]).unwrap();
        let next = |sampler: &mut Sampler| sampler.on_host(&mut logits.to_vec(), None).unwrap();
        assert_eq!((next(&mut sampler), next(&mut sampler), next(&mut sampler)), (0, 1, 0));
        let how = Sampling { min_tokens: 1, ..Sampling::default() };
        let mut sampler = Sampler::new(&how, &[], &[0]).unwrap();
        assert_eq!((next(&mut sampler), next(&mut sampler)), (1, 0));
        let mut sampler = Sampler::new(&Sampling::default(), &[], &[]).unwrap();
        assert_eq!(sampler.on_host(&mut logits.to_vec(), Some(&[0b1100])).unwrap(), 2);
        assert!(matches!(sampler.on_host(&mut logits.to_vec(), Some(&[0])), Err(Error::NoToken)));
    }

    #[test]
    fn penalty_and_range() {
        let how = Sampling { repetition_penalty: 4.0, ..Sampling::default() };
        let mut sampler = Sampler::new(&how, &[0], &[]).unwrap();
        assert_eq!(sampler.on_host(&mut [2.0, 1.0, -0.5], None).unwrap(), 1);
        assert_eq!(sampler.on_host(&mut [2.0, 1.0, -0.5], None).unwrap(), 0);
        assert!(matches!(sampler.on_host(&mut [2.0, f32::NAN], None), Err(Error::NotFinite { .. })));
        assert!(Sampler::new(&Sampling { top_p: 0.0, ..Sampling::default() }, &[], &[]).is_err());
        for penalty in [1e308, f64::INFINITY, f64::NAN] {
            let of = |how: Sampling| check(&how).unwrap_err().to_string();
            assert!(of(Sampling { repetition_penalty: penalty, ..Sampling::default() }).contains("1000"));
            assert!(of(Sampling { frequency_penalty: penalty, ..Sampling::default() }).contains("1000"));
            assert!(of(Sampling { presence_penalty: -penalty, ..Sampling::default() }).contains("1000"));
        }
    }
}
