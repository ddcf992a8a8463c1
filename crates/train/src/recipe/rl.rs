//! Learning from rewards: keys for sampling, rewards and the loss.

use std::path::PathBuf;

use fathom_base::{choice, recipe};
use fathom_tensor::choice::kept_bytes;

use super::limits::{Above0, COLUMNS, MANY, MOST_TOKENS, NO_END, Real, SECONDS, Whole};
use crate::policy::{
    AdvantageName, Divergence, Entropies, Estimator, Level, Policy, Reduction, Surrogate, Values,
};

choice! {
    /// The loss of a policy's answers.
    pub enum PolicyName {
        /// Nothing: the run does not learn from rewards.
        None = "none",
        /// GRPO (Shao and others, 2024): clipped ratios of tokens, a mean over answers.
        Grpo = "grpo",
        /// The same, a mean over the tokens of a micro batch.
        Bnpo = "bnpo",
        /// The same, a mean over the tokens of the whole step (DAPO).
        Dapo = "dapo",
        /// The same, a sum over `max_answer_tokens` tokens for each answer (Dr. GRPO).
        DrGrpo = "dr_grpo",
        /// Clipped ratios of whole answers, by the mean of their tokens' log-ratios (GSPO).
        Gspo = "gspo",
        /// Clipped ratios as constant weights of log-probabilities (CISPO), at most `epsilon_high`, as in TRL.
        Cispo = "cispo",
        /// The same from 1 - `epsilon` to 1 + `epsilon_high`, as in verl and NeMo-RL.
        CispoBand = "cispo_band",
        /// Smooth gates instead of clips (SAPO).
        Sapo = "sapo",
        /// Clipped ratios of whole answers, by the sum of their tokens' log-ratios (RLOO).
        Rloo = "rloo",
        /// Log-probabilities times advantages (REINFORCE), a mean over the tokens of the whole step.
        Reinforce = "reinforce",
        /// PPO: as `dapo`, with a value head that is trained with the policy.
        Ppo = "ppo",
        /// The cross-entropy of the best `keep` answers of each group (rejection sampling).
        Rejection = "rejection",
    }
}

choice! {
    /// Estimator of the divergence from the reference at a token.
    pub enum EstimatorName {
        /// `exp(d) - d - 1`, `d` being the reference's log-probability less the model's.
        K3 = "k3",
        /// `d^2 / 2`.
        K2 = "k2",
        /// `-d`.
        K1 = "k1",
    }
}

choice! {
    /// Place of the divergence.
    pub enum KlIn {
        /// In the loss of each token.
        Loss = "loss",
        /// Subtracted from the reward.
        Reward = "reward",
    }
}

choice! {
    /// Weight of a token's loss if earlier weights sampled it: the ratio of its probabilities under the weights before the update
    /// and under those that sampled it, as in TRL's `vllm_importance_sampling_mode`.
    pub enum ImportanceName {
        /// No weight: the ratio within the loss is of the sampler's probabilities itself.
        None = "none",
        /// A token's ratio, brought between the bounds.
        TokenTruncate = "token_truncate",
        /// A token's ratio; 0 outside the bounds.
        TokenMask = "token_mask",
        /// The answer's, the product over its tokens, brought between the bounds.
        SequenceTruncate = "sequence_truncate",
        /// The answer's; 0 outside the bounds.
        SequenceMask = "sequence_mask",
    }
}

impl ImportanceName {
    /// True if ratios are of whole answers.
    pub fn is_of_answers(self) -> bool {
        matches!(self, ImportanceName::SequenceTruncate | ImportanceName::SequenceMask)
    }

    /// True if ratios are clamped to the bounds.
    pub fn truncates(self) -> bool {
        matches!(self, ImportanceName::TokenTruncate | ImportanceName::SequenceTruncate)
    }
}

choice! {
    /// Treatment of an answer whose reward is not a number.
    pub enum NanName {
        /// Ends the run.
        Refuse = "refuse",
        /// Leaves the answer out of its group and of the loss.
        Mask = "mask",
    }
}

recipe! {
    /// Learning from rewards.
    pub struct RlTable {
        /// The loss; `none` for runs that do not learn from rewards.
        pub loss: PolicyName = PolicyName::None,
        /// The file that says what an answer is worth (TOML, a table `[[reward]]` for each part).
        pub reward: Option<PathBuf>,
        /// Prompts of a rollout.
        pub prompts: usize [Whole(1, MANY)] = 8,
        /// Answers to each prompt: a group (TRL `num_generations`).
        pub answers: usize [Whole(1, MANY)] = 8,
        /// Maximum number of tokens of an answer; of each, where an episode has several.
        pub max_answer_tokens: usize [Whole(1, MOST_TOKENS)] = 256,
        /// Divides the logits of the distribution that answers are sampled from; log-probabilities are of that distribution.
        pub temperature: f64 [Above0(NO_END)] = 1.0,
        /// Answers of an episode at most; more than one with an environment (`environment.command`) alone.
        pub turns: usize [Whole(1, MANY)] = 1,
        /// Samples from the k most likely tokens alone; 0 from all. With losses of policies log-probabilities are among those too.
        pub top_k: usize [Whole(0, 1 << 24)] = 0,
        /// Samples from the fewest tokens whose probability reaches this. With losses of policies log-probabilities are among those too.
        pub top_p: f64 [Above0(1.0)] = 1.0,
        /// Then drops tokens less likely than this share of the most likely one, in the same way; 0 drops none.
        pub min_p: f64 [Real(0.0, 1.0)] = 0.0,
        /// Answers that are written at once, each with pages of keys and values; 0 for all of a rollout.
        pub sequences: usize [Whole(0, COLUMNS)] = 0,
        /// Steps that a rollout's groups are shared out to.
        pub minibatches: usize [Whole(1, MANY)] = 1,
        /// Passes over a rollout (TRL `num_iterations`).
        pub epochs: usize [Whole(1, MANY)] = 1,
        /// With 1 the answers of a rollout are written by the weights before the steps of the rollout before it.
        pub behind: usize [Whole(0, 1)] = 0,
        /// With `behind`, or over a ring: what a token's loss weighs, so that it makes up for who sampled it.
        pub importance_sampling_mode: ImportanceName = ImportanceName::TokenTruncate,
        /// With `behind`: the largest such weight (TRL `vllm_importance_sampling_clip_max`); none for no such limit.
        pub importance_sampling_clip_max: Option<f64> [Above0(NO_END)] = Some(3.0),
        /// With `behind`: the smallest (TRL `vllm_importance_sampling_clip_min`); none for no such limit.
        pub importance_sampling_clip_min: Option<f64> [Real(0.0, NO_END)],
        /// Computation of advantages from rewards.
        pub advantage: AdvantageName = AdvantageName::Trl,
        /// Largest amount by which a ratio may fall below 1.
        pub epsilon: f64 [Real(0.0, 1.0)] = 0.2,
        /// Largest amount by which a ratio may rise above 1; unset: `epsilon`. For `cispo` the largest ratio itself.
        pub epsilon_high: Option<f64> [Real(0.0, NO_END)],
        /// Largest ratio that is not clipped (TRL `delta`); none for no such limit.
        pub delta: Option<f64> [Above0(NO_END)],
        /// Dual clip: the loss of a token with an advantage A below 0 is at most `-dual_clip A`; none for no such limit.
        pub dual_clip: Option<f64> [Real(1.0, NO_END)],
        /// For `sapo`: temperature of tokens with an advantage above 0.
        pub sapo_positive: f64 [Above0(NO_END)] = 1.0,
        /// For `sapo`: temperature of the others.
        pub sapo_negative: f64 [Above0(NO_END)] = 1.05,
        /// Weight of the divergence from the reference; 0 for none, and no reference is loaded.
        pub beta: f64 [Real(0.0, NO_END)] = 0.0,
        /// Estimator of the divergence.
        pub kl: EstimatorName = EstimatorName::K3,
        /// Place of the divergence.
        pub kl_in: KlIn = KlIn::Loss,
        /// Multiplies the divergence in the loss by the ratio, so that it is unbiased off policy (TRL `use_bias_correction_kl`).
        pub kl_corrected: bool = false,
        /// Folder of the reference model; none for `model.from`.
        pub reference: Option<PathBuf>,
        /// Drops groups whose rewards are all the same, and samples others in their place (DAPO).
        pub dynamic_sampling: bool = false,
        /// With `dynamic_sampling`: rollouts that a step is made of at most.
        pub dynamic_rounds: usize [Whole(1, MANY)] = 4,
        /// The reward of an answer falls in a line over the last so many of `max_answer_tokens` (DAPO's overlong penalty); 0 for none.
        pub overlong_tokens: usize [Whole(0, MOST_TOKENS)] = 0,
        /// By how much it falls.
        pub overlong_penalty: f64 [Real(0.0, NO_END)] = 1.0,
        /// Leaves answers that did not end by themselves out of the loss.
        pub mask_truncated: bool = false,
        /// Treatment of rewards that are not numbers.
        pub nan_rewards: NanName = NanName::Refuse,
        /// For `gae`: discount of later rewards.
        pub gamma: f64 [Real(0.0, 1.0)] = 1.0,
        /// For `gae`: weight of longer sums of them.
        pub lambda: f64 [Real(0.0, 1.0)] = 0.95,
        /// For `gae`: brings the advantages of a rollout to mean 0 and deviation 1.
        pub whiten: bool = true,
        /// For `ppo`: weight of the value head's loss.
        pub value_coefficient: f64 [Real(0.0, NO_END)] = 0.1,
        /// For `ppo`: how far a value may go from what it was; none for no limit.
        pub value_clip: Option<f64> [Above0(NO_END)] = Some(0.2),
        /// Share of an answer's tokens, those with the largest entropies of a micro batch, whose clipped or weighted terms count; the
        /// divergence from the reference counts at all.
        pub top_entropy_quantile: f64 [Real(0.0, 1.0)] = 1.0,
        /// Times the mean entropy of those tokens, in nats, is subtracted from the loss (TRL `entropy_coef`); below 0 it is added.
        pub entropy_coefficient: f64 [Real(-NO_END, NO_END)] = 0.0,
        /// For `rejection`: answers of each group that are learned.
        pub keep: usize [Whole(1, MANY)] = 1,
        /// Answers of a rollout that the log shows.
        pub shown: usize [Whole(0, MANY)] = 4,
    }

    /// Environment that replies to a policy's answers, so that they have several turns.
    pub struct EnvironmentTable {
        /// The program and its arguments: one JSON object a line each way. Empty: none replies. Needs `--allow-processes`.
        pub command: Vec<String>,
        /// A function of the program around the run replies instead: its name and version, as Python writes them (`environment=`).
        pub function: Option<String>,
        /// Processes of it on each rank that plays; episodes are dealt out to them by number, and each is asked one question at a time.
        pub processes: usize [Whole(1, 4096)] = 1,
        /// Seconds for a reply.
        pub timeout_s: f64 [Above0(SECONDS)] = 60.0,
        /// For conversations: who says what it writes, as the chat template names it.
        pub role: String = "tool".into(),
        /// Weight of its rewards in the sum.
        pub weight: f64 [Real(-NO_END, NO_END)] = 1.0,
        /// Its reward for an episode that ends without a reply (a crash, a time-out, a line that is not understood); none leaves the
        /// episode out of its group and of the loss.
        pub failed_reward: Option<f64> [Real(-NO_END, NO_END)],
    }
}

impl EnvironmentTable {
    /// True if there is an environment.
    pub fn is_on(&self) -> bool {
        !self.command.is_empty() || self.function.is_some()
    }
}

impl RlTable {
    /// True if the run learns from rewards.
    pub fn is_on(&self) -> bool {
        self.loss != PolicyName::None
    }

    /// True if it has a value head.
    pub fn has_values(&self) -> bool {
        self.loss == PolicyName::Ppo
    }

    /// True if it needs a reference.
    pub fn has_reference(&self) -> bool {
        self.is_on() && self.beta > 0.0
    }

    /// The loss; `None` for rejection sampling, whose objective is the cross-entropy.
    pub fn policy(&self) -> Option<Policy> {
        use PolicyName as P;
        let high = self.epsilon_high.unwrap_or(self.epsilon);
        let low = self.epsilon;
        let clipped = Surrogate::Clipped { low, high, delta: self.delta, dual: self.dual_clip };
        let surrogate = match self.loss {
            P::None | P::Rejection => return None,
            P::Cispo => Surrogate::Cispo { low: None, high },
            P::CispoBand => Surrogate::Cispo { low: Some(low), high: 1.0 + high },
            P::Sapo => Surrogate::Sapo { positive: self.sapo_positive, negative: self.sapo_negative },
            P::Reinforce => Surrogate::Score,
            _ => clipped,
        };
        let level = match self.loss {
            P::Gspo => Level::Sequence,
            P::Rloo => Level::SequenceSum,
            _ => Level::Token,
        };
        let reduction = match self.loss {
            P::Bnpo => Reduction::LocalTokens,
            P::Dapo | P::Cispo | P::CispoBand | P::Reinforce | P::Ppo => Reduction::Tokens,
            P::DrGrpo => Reduction::Constant((self.turns.max(1) * self.max_answer_tokens) as f64),
            _ => Reduction::Answers,
        };
        let beta = if self.kl_in == KlIn::Loss { self.beta } else { 0.0 };
        let divergence = Divergence { beta, estimator: self.estimator(), corrected: self.kl_corrected };
        let (coefficient, clip) = (self.value_coefficient, self.value_clip);
        let values = self.has_values().then_some(Values { coefficient, clip });
        let entropies = Entropies { top: self.top_entropy_quantile, coefficient: self.entropy_coefficient };
        let (name, temperature, keeps) = (self.loss.name(), self.temperature, self.leaves_out());
        Some(Policy { name, surrogate, level, reduction, divergence, values, entropies, temperature, keeps })
    }

    /// True if answers are sampled from a part of the vocabulary.
    fn leaves_out(&self) -> bool {
        self.top_p < 1.0 || self.top_k > 0 || self.min_p > 0.0
    }

    /// True if masks of the candidate tokens are stored with answers, because log-probabilities for learning are over
    /// these tokens only.
    pub fn keeps(&self) -> bool {
        self.leaves_out() && self.policy().is_some()
    }

    /// Estimator of the divergence.
    pub fn estimator(&self) -> Estimator {
        match self.kl {
            EstimatorName::K1 => Estimator::K1,
            EstimatorName::K2 => Estimator::K2,
            EstimatorName::K3 => Estimator::K3,
        }
    }

    /// True if answers by earlier weights get importance weights.
    pub fn corrects(&self) -> bool {
        self.policy().is_some() && self.importance_sampling_mode != ImportanceName::None
    }

    /// True if the trainer recomputes log-probabilities of answers before learning them: for answers by earlier weights
    /// (`late`), and if its order of addition differs from the sampler's (`rings`).
    pub fn recomputes(&self, late: bool, rings: bool) -> bool {
        (late && self.corrects()) || (rings && self.policy().is_some())
    }

    /// Maximum bytes of answers held between steps, on the host and in checkpoints, for episodes of full length: token
    /// ids, numbers of the written tokens, and `kept` bytes of a vocabulary mask per token.
    pub fn held_bytes(&self, seq_tokens: usize, vocab: usize) -> u64 {
        let answers = self.prompts * self.answers;
        let written = (self.turns.max(1) * self.max_answer_tokens).min(seq_tokens);
        // Log-probabilities and advantages; the reference's; values and returns.
        let columns = 2 + usize::from(self.has_reference()) + 2 * usize::from(self.has_values());
        let kept = if self.keeps() { written * kept_bytes(vocab) } else { 0 };
        let each = |columns: usize| answers * (4 * (seq_tokens + columns * written) + kept);
        let learned = if self.steps() > 1 { each(columns) } else { 0 };
        let ahead = if self.behind > 0 { each(1) } else { 0 };
        (learned + ahead) as u64
    }

    /// Number of steps per rollout.
    pub fn steps(&self) -> usize {
        self.epochs.max(1) * self.minibatches.max(1)
    }
}
