//! Learning rates over steps.

use crate::recipe::{Decay, Recipe};

/// Default number of warm-up steps.
const WARMUP_STEPS: u64 = 20;

/// A schedule over a number of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSchedule {
    /// The shape.
    pub decay: Decay,
    /// The peak rate.
    pub peak: f64,
    /// The final rate as a share of the peak.
    pub final_share: f64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Share of the steps after warm-up over which `wsd` decays.
    pub decay_share: f64,
    /// Total number of steps.
    pub total_steps: u64,
}

impl RateSchedule {
    /// The rates of a stage of `steps` steps. A share of them is rounded up, as in Transformers (`get_warmup_steps`).
    pub fn new(recipe: &Recipe, index: usize, steps: u64) -> RateSchedule {
        let (table, stage) = (&recipe.schedule, &recipe.stage[index]);
        let share = table.warmup_share.map(|share| (share * steps as f64).ceil() as u64);
        RateSchedule {
            decay: table.decay,
            peak: recipe.optimizer.lr * stage.lr_scale,
            final_share: table.final_share,
            warmup_steps: stage.warmup_steps.or(share).or(table.warmup_steps).unwrap_or(WARMUP_STEPS),
            decay_share: table.decay_share,
            total_steps: steps,
        }
    }

    /// The rate of step `step`, counted from 0. It depends only on its arguments, so a resumed run continues with the
    /// same rates.
    pub fn rate(&self, step: u64) -> f64 {
        self.rate_at(step, step as f64 / self.total_steps.max(1) as f64)
    }

    /// The rate of step `step` at `progress` (0 to 1) of the run; for runs measured in time.
    pub fn rate_at(&self, step: u64, progress: f64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let warm = self.warmup_steps as f64 / self.total_steps.max(1) as f64;
        let done = ((progress - warm) / (1.0 - warm).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let share = match self.decay {
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            Decay::Linear => 1.0 - done,
            Decay::Wsd => ((1.0 - done) / self.decay_share.max(f64::MIN_POSITIVE)).min(1.0),
            Decay::Constant => 1.0,
        };
        self.peak * (self.final_share + (1.0 - self.final_share) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Stage;

    fn rates(decay: Decay) -> Vec<f64> {
        let schedule = RateSchedule {
            decay,
            peak: 1.0,
            final_share: 0.1,
            warmup_steps: 4,
            decay_share: 0.25,
            total_steps: 20,
        };
        (0..20).map(|step| schedule.rate(step)).collect()
    }

    #[test]
    fn every_shape_warms_up_and_ends_low() {
        for decay in Decay::ALL {
            let rates = rates(*decay);
            assert_eq!(rates[..4], [0.25, 0.5, 0.75, 1.0], "{decay}");
            assert!(rates[4..].windows(2).all(|pair| pair[1] <= pair[0]), "{decay}: {rates:?}");
            if *decay != Decay::Constant {
                assert!(rates[19] < 0.35, "{decay}: {rates:?}");
            }
        }
        assert_eq!(rates(Decay::Wsd)[15], 1.0);
    }

    #[test]
    fn warm_up_is_steps_or_a_share_of_them() {
        let mut recipe = Recipe { stage: vec![Stage::default()], ..Recipe::default() };
        let warm = |recipe: &Recipe, steps: u64| RateSchedule::new(recipe, 0, steps).warmup_steps;
        assert_eq!(warm(&recipe, 1000), 20);
        // Recipes without warm-up have 0 steps, over which a share takes precedence.
        recipe.schedule.warmup_steps = Some(0);
        assert_eq!(warm(&recipe, 1000), 0);
        recipe.schedule.warmup_share = Some(0.03);
        // Transformers rounds like this: `math.ceil(steps * ratio)`.
        assert_eq!([1, 33, 34, 100, 1001].map(|steps| warm(&recipe, steps)), [1, 1, 2, 3, 31]);
        recipe.schedule.warmup_share = Some(0.0);
        assert_eq!(warm(&recipe, 1000), 0);
        recipe.stage[0].warmup_steps = Some(5);
        assert_eq!(warm(&recipe, 1000), 5);
    }
}
