//! Functions of the program around a run that take part in it: rewards by name, and an environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use fathom_train::policy::apart::Apart;
use fathom_train::policy::environment::Environment;
use fathom_train::policy::reward::Reward;
use fathom_train::policy::rules::RewardTable;

/// Makes a reward for one rank.
pub type MakeReward = Arc<dyn Fn() -> Box<dyn Reward + Send> + Send + Sync>;
/// Makes an environment for one rank.
pub type MakeEnvironment = Arc<dyn Fn() -> Box<dyn Environment> + Send + Sync>;

/// Functions that a run may call. What they return must depend only on what they are shown: a resumed run calls them
/// again for a rollout that was interrupted.
#[derive(Clone, Default)]
pub struct Functions {
    /// Rewards by the `name` of a table with `rule = "function"`.
    pub rewards: BTreeMap<String, MakeReward>,
    /// Replies to answers, for `environment.function`.
    pub environment: Option<MakeEnvironment>,
}

/// A reward on a thread of its own.
struct RewardOnThread(Box<dyn Reward + Send>);

impl Reward for RewardOnThread {
    fn score(
        &self,
        answers: &[fathom_train::policy::reward::RewardInput<'_>],
    ) -> fathom_train::policy::reward::Numbers {
        self.0.score(answers)
    }
}

impl Functions {
    /// Makes the reward of a table, on a thread of its own.
    ///
    /// # Errors
    /// The program has no function of this name.
    pub(super) fn reward(&self, table: &RewardTable) -> fathom_train::Result<Box<dyn Reward>> {
        let Some(make) = self.rewards.get(&table.name) else {
            let message = format!(
                "reward `{}` is a function of the program that began the run, and this one has none of that name; train from Python with \
                 it in `rewards=`",
                table.name
            );
            return Err(fathom_train::Error::Recipe { key: "rl.reward".into(), message });
        };
        Ok(Box::new(Apart::new(RewardOnThread(make()))))
    }

    /// Makes the environment.
    ///
    /// # Errors
    /// A message: the program has none.
    pub(super) fn environment(&self, name: &str) -> Result<Box<dyn Environment>, String> {
        let make = self.environment.as_ref().ok_or_else(|| {
            format!(
                "`{name}` is a function of the program that began the run, and this one has none; train from Python with it as \
                 `environment=`"
            )
        })?;
        Ok(make())
    }
}
