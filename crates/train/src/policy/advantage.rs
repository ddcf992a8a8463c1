//! Advantages: how good an answer was compared with others, computed from rewards by the conventions of the field's
//! libraries, in f64 on the host. Answers are ordered by group, each with one prompt. A NaN reward marks an answer that
//! does not count: it enters no mean, and its advantage is 0.

use fathom_base::choice;

choice! {
    /// Baseline that is subtracted from an answer's reward, and the scale that the rest is divided by. Deviations are unbiased.
    pub enum AdvantageName {
        /// The group's mean; its deviation + 1e-4 (TRL `scale_rewards=group`; Shao and others, 2024).
        Trl = "trl",
        /// The group's mean; nothing (TRL `scale_rewards=none`; Dr. GRPO: Liu and others, 2025).
        Mean = "mean",
        /// The group's mean; the deviation of all rewards of the rollout + 1e-4 (TRL `scale_rewards=batch`; Lite PPO).
        Batch = "batch",
        /// The group's mean; its deviation + 1e-6. A group of one keeps its reward (verl).
        Verl = "verl",
        /// The mean of the others; their deviation + 1e-6, and nothing where that is 0 (NeMo-RL).
        NemoRl = "nemo_rl",
        /// The mean of the others; nothing (RLOO: Ahmadian and others, 2024).
        LeaveOneOut = "leave_one_out",
        /// The mean over all tokens of the rollout, each with its answer's reward; their deviation (REINFORCE++: Hu, 2025).
        ReinforcePp = "reinforce_pp",
        /// `reinforce_pp` after the group's mean was subtracted (REINFORCE++ with baseline).
        ReinforcePpBaseline = "reinforce_pp_baseline",
        /// Each reward by its group's mean and deviation + 1e-4, then their weighted sum by mean and deviation of all (GDPO; TRL
        /// `normalize_then_sum`).
        EachThenSum = "each_then_sum",
        /// Nothing: the reward itself (REINFORCE).
        Raw = "raw",
        /// Generalised advantage estimation with a value head (Schulman and others, 2016).
        Gae = "gae",
    }
}

/// Mean and unbiased deviation of the numbers that are not NaN; 0 if there are too few.
pub fn mean_and_deviation(of: impl Iterator<Item = f64> + Clone) -> [f64; 2] {
    let there = of.filter(|x| !x.is_nan());
    let count = there.clone().count() as f64;
    if count == 0.0 {
        return [0.0; 2];
    }
    let mean = there.clone().sum::<f64>() / count;
    let squares: f64 = there.map(|x| (x - mean).powi(2)).sum();
    [mean, if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 }]
}

/// Rewards and sizes of a rollout's answers.
#[derive(Clone, Copy, Debug)]
pub struct RolloutRewards<'a> {
    /// Weighted sum of each answer's rewards.
    pub rewards: &'a [f64],
    /// Rewards of the answers, one list per reward function.
    pub each: &'a [Vec<f64>],
    /// Weights of the reward functions.
    pub weights: &'a [f64],
    /// Number of tokens of each answer.
    pub tokens: &'a [usize],
    /// Number of answers per group.
    pub group: usize,
}

/// The advantage of each answer. [`AdvantageName::Gae`] has advantages per token instead: see [`gae`].
///
/// # Errors
/// A message: a group that is too small for the convention.
pub fn advantages(name: AdvantageName, of: &RolloutRewards<'_>) -> Result<Vec<f64>, String> {
    use AdvantageName as A;
    let RolloutRewards { rewards, group, .. } = *of;
    if name == A::LeaveOneOut && group < 2 {
        return Err(format!(
            "subtracts the mean of the other answers, and there are none in groups of {group}"
        ));
    }
    let mut found: Vec<f64> = match name {
        A::Raw | A::Gae => rewards.to_vec(),
        A::Mean => by_group(rewards, group, |of| centred(of, 0.0, 1.0)),
        A::Trl => by_group(rewards, group, |of| {
            let [_, deviation] = mean_and_deviation(of.iter().copied());
            centred(of, deviation, 1e-4)
        }),
        A::Batch => {
            let [_, deviation] = mean_and_deviation(rewards.iter().copied());
            by_group(rewards, group, |of| centred(of, deviation, 1e-4))
        }
        A::Verl => by_group(rewards, group, |of| {
            if of.iter().filter(|reward| !reward.is_nan()).count() == 1 {
                return of.iter().map(|reward| reward / (1.0 + 1e-6)).collect();
            }
            let [_, deviation] = mean_and_deviation(of.iter().copied());
            centred(of, deviation, 1e-6)
        }),
        A::NemoRl => by_group(rewards, group, |of| against_others(of, Some(1e-6))),
        A::LeaveOneOut => by_group(rewards, group, |of| against_others(of, None)),
        A::ReinforcePp => whitened_by_token(rewards, of.tokens),
        A::ReinforcePpBaseline => {
            let centred = by_group(rewards, group, |of| centred(of, 0.0, 1.0));
            whitened_by_token(&centred, of.tokens)
        }
        A::EachThenSum => each_then_sum(of),
    };
    found.iter_mut().filter(|advantage| advantage.is_nan()).for_each(|advantage| *advantage = 0.0);
    Ok(found)
}

fn by_group(rewards: &[f64], group: usize, of: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    rewards.chunks(group.max(1)).flat_map(of).collect()
}

/// `(r - mean) / (deviation + least)`.
fn centred(rewards: &[f64], deviation: f64, least: f64) -> Vec<f64> {
    let [mean, _] = mean_and_deviation(rewards.iter().copied());
    rewards.iter().map(|reward| (reward - mean) / (deviation + least)).collect()
}

/// Subtracts the mean of the other answers in the group. With `least`, the result is divided by their deviation plus
/// `least`, unless the deviation is 0. An answer without others has the advantage 0.
fn against_others(rewards: &[f64], least: Option<f64>) -> Vec<f64> {
    let one = |at: usize| {
        let others = rewards.iter().enumerate().filter(move |(other, _)| *other != at);
        let others = others.map(|(_, reward)| *reward);
        if others.clone().all(f64::is_nan) {
            return 0.0;
        }
        let [mean, deviation] = mean_and_deviation(others);
        let scale = least.filter(|_| deviation > 0.0).map_or(1.0, |least| deviation + least);
        (rewards[at] - mean) / scale
    };
    (0..rewards.len()).map(one).collect()
}

/// Normalises by mean and deviation over tokens, each with its answer's number: `(r - mean) / sqrt(variance + 1e-8)`.
fn whitened_by_token(rewards: &[f64], tokens: &[usize]) -> Vec<f64> {
    let each = rewards.iter().zip(tokens);
    let all = each.flat_map(|(reward, tokens)| std::iter::repeat_n(*reward, *tokens));
    let [mean, deviation] = mean_and_deviation(all);
    rewards.iter().map(|reward| (reward - mean) / (deviation.powi(2) + 1e-8).sqrt()).collect()
}

fn each_then_sum(of: &RolloutRewards<'_>) -> Vec<f64> {
    let mut sums = vec![0.0; of.rewards.len()];
    for (rewards, weight) in of.each.iter().zip(of.weights) {
        let normal = by_group(rewards, of.group, |of| {
            let [_, deviation] = mean_and_deviation(of.iter().copied());
            centred(of, deviation, 1e-4)
        });
        for (sum, normal) in sums.iter_mut().zip(normal).filter(|(_, normal)| !normal.is_nan()) {
            *sum += weight * normal;
        }
    }
    // Answers that do not count stay excluded.
    sums.iter_mut()
        .zip(of.rewards)
        .filter(|(_, reward)| reward.is_nan())
        .for_each(|(sum, _)| *sum = f64::NAN);
    let [mean, deviation] = mean_and_deviation(sums.iter().copied());
    sums.iter().map(|sum| (sum - mean) / (deviation + 1e-4)).collect()
}

/// Generalised advantage estimation over an answer's tokens (Schulman and others, 2016, equation 16), with no value
/// after the end: `delta_t = r_t + gamma V_(t+1) - V_t` and `A_t = delta_t + gamma lambda A_(t+1)`. Returns advantages
/// and the returns `A_t + V_t`.
pub fn gae(rewards: &[f64], values: &[f64], [gamma, lambda]: [f64; 2]) -> [Vec<f64>; 2] {
    let (mut advantages, mut later) = (vec![0.0; rewards.len()], 0.0);
    for at in (0..rewards.len()).rev() {
        let next = values.get(at + 1).copied().unwrap_or(0.0);
        later = rewards[at] + gamma * next - values[at] + gamma * lambda * later;
        advantages[at] = later;
    }
    let returns = advantages.iter().zip(values).map(|(advantage, value)| advantage + value).collect();
    [advantages, returns]
}

/// Normalises to mean 0 and deviation 1: `(x - mean) / sqrt(variance + 1e-8)`, with the unbiased variance (TRL
/// `masked_whiten`).
pub fn whitened(of: &[f64]) -> Vec<f64> {
    let [mean, deviation] = mean_and_deviation(of.iter().copied());
    of.iter().map(|x| (x - mean) / (deviation.powi(2) + 1e-8).sqrt()).collect()
}

/// DAPO's penalty for long answers (Yu and others, 2025, equation 13): 0 up to `most - buffer` tokens, then linear down
/// to -1 at `most`.
pub fn overlong(tokens: usize, most: usize, buffer: usize) -> f64 {
    let beyond = (tokens + buffer).saturating_sub(most);
    if buffer == 0 { 0.0 } else { -(beyond as f64 / buffer as f64).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AdvantageName as A;

    #[track_caller]
    fn check(name: A, rewards: &[f64], group: usize, want: &[f64]) {
        let tokens = vec![1; rewards.len()];
        let each = [rewards.to_vec()];
        let of = RolloutRewards { rewards, each: &each, weights: &[1.0], tokens: &tokens, group };
        let found = advantages(name, &of).unwrap();
        assert_eq!(found.len(), want.len());
        for (found, want) in found.iter().zip(want) {
            assert!((found - want).abs() < 1e-9, "{name} of {rewards:?}: {found} {want}");
        }
    }

    /// One of four answers is right: the deviation with n - 1 is 1/2.
    #[test]
    fn one_right_answer_of_four() {
        let rewards = [1.0, 0.0, 0.0, 0.0];
        let (third, root) = (1.0 / 3.0, (1.0f64 / 3.0).sqrt());
        check(A::Trl, &rewards, 4, &[0.75, -0.25, -0.25, -0.25].map(|x| x / 0.5001));
        check(A::Batch, &rewards, 4, &[0.75, -0.25, -0.25, -0.25].map(|x| x / 0.5001));
        check(A::Verl, &rewards, 4, &[0.75, -0.25, -0.25, -0.25].map(|x| x / 0.500_001));
        check(A::Mean, &rewards, 4, &[0.75, -0.25, -0.25, -0.25]);
        check(
            A::NemoRl,
            &rewards,
            4,
            &[1.0, 0.0, 0.0, 0.0].map(|x| if x == 1.0 { x } else { -third / (root + 1e-6) }),
        );
        check(A::LeaveOneOut, &rewards, 4, &[1.0, -third, -third, -third]);
        check(A::ReinforcePp, &rewards, 4, &[0.75, -0.25, -0.25, -0.25].map(|x| x / (0.25f64 + 1e-8).sqrt()));
        check(A::Raw, &rewards, 4, &rewards);
        // Normalised by the group first, then by all, whose mean is 0 and whose deviation is 0.5 / 0.5001.
        let once = [0.75, -0.25, -0.25, -0.25].map(|x| x / 0.5001);
        check(A::EachThenSum, &rewards, 4, &once.map(|x| x / (0.5 / 0.5001 + 1e-4)));
    }

    #[test]
    fn groups_without_deviation_and_groups_of_one() {
        for name in
            [A::Trl, A::Batch, A::Verl, A::Mean, A::NemoRl, A::LeaveOneOut, A::ReinforcePp, A::EachThenSum]
        {
            check(name, &[0.5; 4], 4, &[0.0; 4]);
        }
        check(A::Trl, &[0.7, 0.1], 1, &[0.0; 2]);
        check(A::Verl, &[0.7, 0.1], 1, &[0.7, 0.1].map(|x| x / 1.000_001));
        check(A::NemoRl, &[0.7, 0.1], 1, &[0.0; 2]);
        // In a group of two, the one other answer has no deviation.
        check(A::NemoRl, &[1.0, 0.0], 2, &[1.0, -1.0]);
        let of = RolloutRewards { rewards: &[1.0], each: &[], weights: &[], tokens: &[1], group: 1 };
        assert!(advantages(A::LeaveOneOut, &of).unwrap_err().contains("groups of 1"));
        // The deviation is over both groups of the batch.
        let deviation = (3.0f64 / 4.0 * 4.0 / 3.0 / 4.0 * 4.0 / 3.0).sqrt();
        check(A::Batch, &[1.0, 1.0, 0.0, 0.0], 2, &[0.0; 4]);
        check(A::Batch, &[1.0, 0.0, 1.0, 0.0], 2, &[0.5, -0.5, 0.5, -0.5].map(|x| x / (deviation + 1e-4)));
    }

    #[test]
    fn what_was_left_out_is_in_no_mean() {
        let nan = f64::NAN;
        for name in
            [A::Trl, A::Verl, A::Mean, A::NemoRl, A::LeaveOneOut, A::ReinforcePp, A::EachThenSum, A::Batch]
        {
            let with = [1.0, nan, 0.0, 0.0];
            let tokens = [3, 9, 2, 4];
            let each = [with.to_vec()];
            let of =
                RolloutRewards { rewards: &with, each: &each, weights: &[1.0], tokens: &tokens, group: 4 };
            let found = advantages(name, &of).unwrap();
            let each = [vec![1.0, 0.0, 0.0]];
            let of = RolloutRewards {
                rewards: &each[0],
                each: &each,
                weights: &[1.0],
                tokens: &[3, 2, 4],
                group: 3,
            };
            let want = advantages(name, &of).unwrap();
            assert_eq!([found[0], found[2], found[3]], want[..], "{name}");
            assert_eq!(found[1], 0.0);
        }
        check(A::Trl, &[nan, nan], 2, &[0.0; 2]);
        check(A::NemoRl, &[nan, 1.0], 2, &[0.0; 2]);
    }

    #[test]
    fn tokens_weigh_in_reinforce_pp() {
        let of = RolloutRewards { rewards: &[1.0, 0.0], each: &[], weights: &[], tokens: &[3, 1], group: 2 };
        // 1, 1, 1, 0: mean 3/4, variance 1/4.
        let want = [0.25, -0.75].map(|x| x / (0.25f64 + 1e-8).sqrt());
        for (found, want) in advantages(A::ReinforcePp, &of).unwrap().iter().zip(want) {
            assert!((found - want).abs() < 1e-12);
        }
    }

    #[test]
    fn estimated_advantages_by_hand() {
        let (rewards, values) = ([0.1, 0.0, 1.0], [0.5, 0.4, 0.8]);
        let [gamma, lambda] = [0.9, 0.8];
        let deltas = [0.1 + 0.9 * 0.4 - 0.5, 0.9 * 0.8 - 0.4, 1.0 - 0.8];
        let decay: f64 = gamma * lambda;
        let sum = |from: usize| (from..3).map(|at| decay.powi((at - from) as i32) * deltas[at]).sum::<f64>();
        let [advantages, returns] = gae(&rewards, &values, [gamma, lambda]);
        for at in 0..3 {
            assert!((advantages[at] - sum(at)).abs() < 1e-12);
            assert!((returns[at] - sum(at) - values[at]).abs() < 1e-12);
        }
        // With lambda = gamma = 1 the return is the sum of the remaining rewards.
        let [_, returns] = gae(&rewards, &values, [1.0, 1.0]);
        assert!((returns[0] - 1.1).abs() < 1e-12 && (returns[2] - 1.0).abs() < 1e-12);
        let white = whitened(&[1.0, 2.0, 3.0]);
        assert!((white[2] - 1.0 / (1.0f64 + 1e-8).sqrt()).abs() < 1e-12 && white[1] == 0.0);
    }

    #[test]
    fn long_answers_are_penalised_in_a_line() {
        let of = |tokens| overlong(tokens, 100, 20);
        assert_eq!([0, 80, 90, 100, 120].map(of), [0.0, 0.0, -0.5, -1.0, -1.0]);
        assert_eq!((overlong(100, 100, 0), overlong(50, 10, 100)), (0.0, -1.0));
    }
}
