//! Log events of a rollout.

use fathom_base::metrics::events;

use super::episode::End;
use super::kept::ScoredRollout;
use super::mean_and_deviation;
use super::policies::Policies;
use crate::source::SourceReport;

/// Maximum bytes of a prompt or answer in the log.
const SHOWN: usize = 2000;

impl Policies {
    /// Records a rollout's metrics under TRL's names.
    pub(super) fn tell(&mut self, rolled: &ScoredRollout) {
        let mut seen = rolled.seen.clone();
        let [mean, deviation] = mean_and_deviation(rolled.sums.iter().copied());
        let mut insert = |name: &str, value: f64| {
            seen.insert(name.into(), value);
        };
        insert("reward", mean);
        insert("reward_std", deviation);
        for (part, rewards) in self.of.rewards.iter().zip(&rolled.each) {
            let [mean, deviation] = mean_and_deviation(rewards.iter().copied());
            insert(&format!("rewards/{}/mean", part.name), mean);
            insert(&format!("rewards/{}/std", part.name), deviation);
            let failed = rewards.iter().filter(|reward| reward.is_nan()).count();
            if failed > 0 {
                insert(&format!("rewards/{}/failed", part.name), failed as f64);
            }
        }
        let groups = rolled.sums.chunks(self.how.answers.max(1));
        let same = groups.clone().filter(|of| mean_and_deviation(of.iter().copied())[1] == 0.0).count();
        insert("frac_reward_zero_std", same as f64 / groups.len().max(1) as f64);
        let written = || rolled.groups.iter().flat_map(|group| &group.answers);
        let lengths =
            |ended: bool| written().filter(move |it| !ended || it.ended).map(|it| it.logps.len() as f64);
        for (which, ended) in [("", false), ("_terminated", true)] {
            let all: Vec<f64> = lengths(ended).collect();
            let [mean, _] = mean_and_deviation(all.iter().copied());
            insert(&format!("completions/mean{which}_length"), mean);
            insert(
                &format!("completions/min{which}_length"),
                all.iter().copied().reduce(f64::min).unwrap_or(0.0),
            );
            insert(
                &format!("completions/max{which}_length"),
                all.iter().copied().reduce(f64::max).unwrap_or(0.0),
            );
        }
        let [all, ended] = [lengths(false).count(), lengths(true).count()].map(|count| count as f64);
        insert("completions/clipped_ratio", (all - ended) / all.max(1.0));
        if self.of.playing.is_some() {
            let [mean, _] = mean_and_deviation(written().map(|it| it.turns() as f64));
            insert("episodes/turns/mean", mean);
            insert("episodes/turns/max", written().map(|it| it.turns()).max().unwrap_or(0) as f64);
            for end in End::ALL {
                let ended = written().filter(|it| it.end == Some(*end)).count() as f64;
                insert(&format!("episodes/end/{end}"), ended / all.max(1.0));
            }
        }
        insert("num_valid_samples", rolled.sums.iter().filter(|sum| !sum.is_nan()).count() as f64);
        seen.retain(|_, value| value.is_finite());
        self.reported = SourceReport { metrics: seen, rollout: Some(self.shown(rolled)) };
    }

    /// The first answers of the first groups, for reading.
    fn shown(&self, rolled: &ScoredRollout) -> events::Rollout {
        let group = self.how.answers.max(1);
        let cut = |text: &str| text[..text.floor_char_boundary(SHOWN)].to_owned();
        // The first answer of each group comes first.
        let order = (0..group).flat_map(|answer| (0..rolled.groups.len()).map(move |of| (of, answer)));
        let one = |(of, answer): (usize, usize)| {
            let (at, it) = (of * group + answer, &rolled.groups[of]);
            let written = &it.answers[answer];
            let each = self.of.rewards.iter().zip(&rolled.each);
            let rewards = each.map(|(part, rewards)| (part.name.clone(), rewards[at]));
            events::RolledAnswer {
                prompt: cut(&self.of.prompts[it.prompt].text),
                text: cut(&written.transcript()),
                reward: rolled.sums[at],
                rewards: rewards.filter(|(_, reward)| reward.is_finite()).collect(),
                tokens: written.logps.len() as u64,
                ended: written.ended,
            }
        };
        events::Rollout { step: 0, answers: order.take(self.how.shown).map(one).collect() }
    }
}
