//! The state of a stage's source of rollouts.

use std::rc::Rc;

use fathom_model::Rollout;
use fathom_text::lessons::Prompt;
use fathom_text::loader::Cursor;

use super::episode::EpisodePlayer;
use super::kept::{ScoredRollout, UsedRollout};
use super::pack::Room;
use super::reward::{PendingScores, WeightedReward};
use crate::in_step::InStep;
use crate::recipe::RlTable;
use crate::source::SourceReport;

/// Everything that rollouts are made from.
pub struct RolloutInputs {
    /// All prompts.
    pub prompts: Vec<Prompt>,
    /// Identifies the prompts: it changes with the file, tokenizer or template.
    pub fingerprint: String,
    /// Writes the answers.
    pub rollout: Box<dyn Rollout>,
    /// The rewards.
    pub rewards: Vec<WeightedReward>,
    /// The environment for answers of several turns, if any.
    pub playing: Option<EpisodePlayer>,
}

/// The source of a stage.
pub(super) struct Policies {
    pub(super) of: Rc<RolloutInputs>,
    pub(super) how: RlTable,
    pub(super) room: Room,
    /// Maximum number of tokens of a prompt with its answer.
    pub(super) seq_tokens: usize,
    /// If set, streams are padded, with positions as in samples of this many tokens.
    pub(super) filled: Option<usize>,
    /// Settings for evaluating answers with models.
    pub(super) asking: InStep,
    pub(crate) seed: u64,
    pub(super) shuffle: bool,
    pub(crate) cursor: Cursor,
    pub(crate) pending: Option<UsedRollout>,
    /// Answers of the next rollout, if they are written ahead; without rewards until they are used.
    pub(crate) next: Option<ScoredRollout>,
    /// Its rewards that are still being computed, by reward.
    pub(super) coming: Vec<Option<PendingScores>>,
    pub(super) reported: SourceReport,
    pub(crate) wait_s: f64,
}
