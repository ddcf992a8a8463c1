//! Rewards on separate threads: a reward that does not use the run's device has its own thread, which scores a rollout
//! written ahead while the next one is written and steps are taken.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::reward::{Answer, Numbers, PendingScores, Reward, RewardInput};

/// A request to the thread, and the channel for its result.
type Ask = (Arc<[Answer]>, Sender<Numbers>);

/// A reward that does not use the run's device, on its own thread, which processes requests in order.
pub struct Apart(Sender<Ask>);

impl Apart {
    /// Moves a reward to a new thread, which ends with this value.
    pub fn new(reward: impl Reward + Send + 'static) -> Apart {
        let (asks, asked) = channel::<Ask>();
        let work = move || {
            for (answers, numbers) in asked {
                let found = reward.score(&answers.iter().map(Answer::seen).collect::<Vec<_>>());
                // The receiver may be gone.
                let _ = numbers.send(found);
            }
        };
        std::thread::spawn(work);
        Apart(asks)
    }

    fn ask(&self, answers: Arc<[Answer]>) -> PendingScores {
        let (numbers, coming) = channel();
        // A thread that has ended drops the request, which the receiver notices.
        let _ = self.0.send((answers, numbers));
        PendingScores(coming)
    }
}

impl Reward for Apart {
    fn score(&self, answers: &[RewardInput<'_>]) -> Numbers {
        self.ask(answers.iter().map(|answer| Answer::from(*answer)).collect()).wait()
    }

    fn begin(&self, answers: &Arc<[Answer]>) -> Option<PendingScores> {
        Some(self.ask(answers.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::time::Duration;

    use serde_json::Map;

    use super::*;
    use crate::policy::reward::{WeightedReward, score, score_coming};

    /// Returns the length of each answer, once it is released.
    struct Waits(Receiver<()>);

    impl Reward for Waits {
        fn score(&self, answers: &[RewardInput<'_>]) -> Numbers {
            self.0.recv_timeout(Duration::from_secs(60)).map_err(|_| "was not let".to_string())?;
            Ok(answers.iter().map(|answer| (answer.tokens > 0).then_some(answer.tokens as f64)).collect())
        }
    }

    struct Panics;

    impl Reward for Panics {
        fn score(&self, _: &[RewardInput<'_>]) -> Numbers {
            panic!("a reward that panics")
        }
    }

    #[test]
    fn what_is_coming_is_what_is_asked() {
        let row = Map::new();
        let of = |tokens| RewardInput {
            row: &row,
            prompt: "p",
            text: "t",
            messages: &[],
            earned: Some(0.5),
            tokens,
            ended: true,
        };
        let answers = [of(3), of(0), of(5)];
        let owned: Arc<[Answer]> = answers.iter().map(|answer| Answer::from(*answer)).collect();
        assert_eq!(format!("{:?}", owned[0].seen()), format!("{:?}", answers[0]));
        let (lets, waits) = channel();
        let reward = Apart::new(Waits(waits));
        let coming = reward.begin(&owned).unwrap();
        let parts = [WeightedReward { name: "w".into(), weight: 2.0, reward: Box::new(reward) }];
        lets.send(()).unwrap();
        let found = score_coming(&parts, &answers, vec![Some(coming)]).unwrap();
        assert_eq!((found.sums[0], found.sums[2], found.sums[1].is_nan()), (6.0, 10.0, true));
        // A second request, scored by the calling thread.
        lets.send(()).unwrap();
        assert_eq!(score(&parts, &answers).unwrap().sums[2], 10.0);
        // A reward that panics fails alone.
        let panics = Apart::new(Panics);
        assert!(panics.begin(&owned).unwrap().wait().unwrap_err().contains("panicked"));
    }
}
