//! The next token from its logits.

use std::collections::BTreeSet;

use fathom_base::Sampling;
use fathom_tensor::choice::{self, Choose, Draw};
use fathom_tensor::{Category, DType, Device, Tensor};

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

    /// Chooses a token from a row of logits.
    ///
    /// # Errors
    /// The logits are not numbers.
    pub fn next(&mut self, device: &Device, logits: &Tensor) -> Result<u32, Error> {
        if self.how.repetition_penalty == 1.0 {
            let id = choose(device, logits, self.draw())?.swap_remove(0);
            return Ok(self.chose(id));
        }
        self.on_host(&mut device.to_f32(logits))
    }

    /// Chooses a token from logits, which it may change.
    fn on_host(&mut self, logits: &mut [f32]) -> Result<u32, Error> {
        self.penalise(logits);
        let id = self.draw().map_or_else(|| choice::largest(logits), |draw| choice::drawn(logits, &draw));
        let id = id.ok_or(Error::NotFinite { what: LOGIT })?;
        Ok(self.chose(id as u32))
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

    /// How the next token is drawn; none for the most likely one.
    fn draw(&self) -> Option<Draw> {
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = self.how;
        (temperature > 0.0).then_some(Draw { temperature, top_k, top_p, min_p, seed, drawn: self.drawn })
    }

    fn chose(&mut self, id: u32) -> u32 {
        self.drawn += 1;
        self.seen.insert(id);
        id
    }
}

/// What a model without numbers has.
const LOGIT: &str = "a logit";

/// What the machine chooses of each row of logits, so that no logits come to the host.
///
/// # Errors
/// The logits of a row are not numbers.
pub(crate) fn choose(device: &Device, logits: &Tensor, draw: Option<Draw>) -> Result<Vec<u32>, Error> {
    let ids = device.empty(1, logits.rows(), DType::I32, Category::Activations);
    device.machine.choose(&Choose { logits, ids: &ids, draw });
    let bytes = device.machine.read(&ids).wait();
    let id = |bytes: &[u8; 4]| u32::try_from(i32::from_le_bytes(*bytes)).ok();
    let ids = bytes.as_chunks::<4>().0.iter().map(id).collect::<Option<Vec<u32>>>();
    ids.ok_or(Error::NotFinite { what: LOGIT })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(how: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for seed in 0..2000 {
            let mut sampler = Sampler::new(&Sampling { seed, ..how.clone() }, &[]).unwrap();
            counts[sampler.on_host(&mut logits.to_vec()).unwrap() as usize] += 1;
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
        assert_eq!(sampler.on_host(&mut [2.0, 1.0, -0.5]).unwrap(), 1);
        assert_eq!(sampler.on_host(&mut [2.0, 1.0, -0.5]).unwrap(), 0);
        assert!(matches!(sampler.on_host(&mut [2.0, f32::NAN]), Err(Error::NotFinite { .. })));
        assert!(Sampler::new(&Sampling { top_p: 0.0, ..Sampling::default() }, &[]).is_err());
    }
}
