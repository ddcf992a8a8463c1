//! Durations of steps, and the number of steps that fit into a time. If several steps learn from one rollout, the first
//! of them writes it, and takes longer than the others.

/// A step taken by this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimedStep {
    /// Seconds.
    pub step_s: f64,
    /// True if it was the first of a round of steps that share a rollout.
    pub opens: bool,
}

/// Number of recent rounds from which durations are computed, since the machine's speed changes.
const RECENT: usize = 6;

/// Mean durations of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Number of steps in a round.
    round: u64,
    /// Seconds of a round's first step.
    opening_s: f64,
    /// Seconds of any other.
    other_s: f64,
}

impl Pace {
    /// Means over recent steps; `None` until there is one of each kind.
    pub fn of(made: &[TimedStep], round: u64) -> Option<Pace> {
        // The first step touches fresh memory and is slower than the rest.
        let most = RECENT.saturating_mul(round as usize).saturating_add(1);
        let made = &made[made.len().saturating_sub(most)..];
        let opening_s = mean(made, true)?;
        let other_s = if round > 1 { mean(made, false)? } else { opening_s };
        Some(Pace { round, opening_s, other_s })
    }

    /// Mean over a round.
    pub fn mean_s(&self) -> f64 {
        (self.opening_s + (self.round - 1) as f64 * self.other_s) / self.round as f64
    }

    /// Number of steps that end within `seconds`, after `made` steps of the stage.
    pub fn steps_within(&self, seconds: f64, made: u64) -> u64 {
        let Pace { round, opening_s, other_s } = *self;
        let others = |seconds: f64| (seconds.max(0.0) / other_s) as u64;
        let open = (round - made % round) % round;
        let left_s = seconds - open as f64 * other_s;
        if open > 0 && left_s < 0.0 {
            return others(seconds);
        }
        let round_s = opening_s + (round - 1) as f64 * other_s;
        let rounds = (left_s.max(0.0) / round_s) as u64;
        let rest_s = left_s - rounds as f64 * round_s;
        let opened = if round > 1 && rest_s >= opening_s { 1 + others(rest_s - opening_s) } else { 0 };
        open + rounds * round + opened
    }
}

/// Mean over the steps of a kind. The first one counts only if it is the only one.
fn mean(made: &[TimedStep], opens: bool) -> Option<f64> {
    let of_kind = |made: &[TimedStep]| -> Vec<f64> {
        made.iter().filter(|step| step.opens == opens).map(|step| step.step_s).collect()
    };
    let mut times = of_kind(made.get(1..)?);
    if times.is_empty() {
        times = of_kind(made);
    }
    (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps with these durations from the beginning of a stage.
    fn made(round: u64, seconds: &[f64]) -> Vec<TimedStep> {
        let numbered = (0..).zip(seconds);
        numbered
            .map(|(at, step_s): (u64, &f64)| TimedStep { step_s: *step_s, opens: at % round == 0 })
            .collect()
    }

    #[test]
    fn the_first_step_counts_only_alone() {
        let within = |seconds: &[f64]| Pace::of(&made(1, seconds), 1).unwrap().steps_within(60.0, 4);
        assert_eq!([within(&[6.0]), within(&[6.0, 3.0]), within(&[6.0, 3.0, 1.0, 2.0])], [10, 20, 30]);
        assert_eq!(Pace::of(&[], 1), None);
    }

    #[test]
    fn answers_are_written_once_a_round() {
        // Four steps of 1 s after 10 s of writing: a round takes 14 s, which the mean over the other steps does not
        // show.
        let pace = Pace::of(&made(4, &[13.0, 1.0, 1.0, 1.0, 11.0, 1.0]), 4).unwrap();
        assert_eq!(pace, Pace { round: 4, opening_s: 11.0, other_s: 1.0 });
        let within = |seconds: f64, made: u64| pace.steps_within(seconds, made);
        assert_eq!([within(28.0, 0), within(28.5, 8), within(27.9, 0)], [8, 8, 7]);
        // The rest of the current round comes first, as far as the time allows.
        assert_eq!([within(1.5, 5), within(3.5, 5), within(14.5, 5), within(17.0, 5)], [1, 3, 4, 7]);
        assert_eq!([within(0.0, 5), within(-1.0, 5), within(-1.0, 4)], [0; 3]);
        // Nothing is known before one of each kind.
        assert_eq!(Pace::of(&made(4, &[13.0]), 4), None);
        assert_eq!(
            Pace::of(&made(4, &[13.0, 1.0]), 4),
            Some(Pace { round: 4, opening_s: 13.0, other_s: 1.0 })
        );
    }
}
