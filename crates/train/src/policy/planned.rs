//! Memory needs of a rollout: the run's own rollout code on the machine without data, in addition to everything that a
//! trainer holds.

use std::sync::Arc;

use fathom_model::{ModelView, Rollout, RolloutRequest};
use fathom_tensor::{Device, Meta, PoolUsage};

use serde_json::Map;

use super::judged::Question;
use super::replicas::{gathered, scores};
use super::reward::{RewardInput, WeightedReward, score};
use crate::error::{Error, Result};
use crate::micro_batch::MicroBatch;
use crate::plan::Workload;
use crate::recipe::RlTable;
use crate::state::planned_trainers;

/// Number of answer tokens that a plan generates one by one; those before are read like a prompt, which needs no less
/// memory.
const WRITTEN: usize = 64;

/// Peaks of the pool while a rollout is written, scored and evaluated. Writing holds weights, gradients, the
/// optimizer's state and the reference in their places, those of other adapters over the same base, pages for all
/// concurrent sequences at their maximum length, and the buffers of a chunk of tokens. Then models score the answers,
/// with the maximum number of tokens as words; then the value head, the reference and, for answers by earlier weights,
/// the current weights are evaluated over a whole stream. `judges` creates the rewards that run a model.
///
/// # Errors
/// Those of a trainer, of the rollout, and of the judges.
pub fn planned(
    work: &Workload<'_>,
    rl: &RlTable,
    room: usize,
    rollout: &dyn Rollout,
    judges: &dyn Fn(&Device) -> Result<Vec<WeightedReward>>,
) -> Result<PoolUsage> {
    let machine = Arc::new(Meta::new(work.profile.clone()));
    let device = Device::on_mesh(machine, u64::MAX, work.how.ranks.imagined());
    // The judges are created here instead.
    let mut how = work.how.clone();
    how.goal.judges.clear();
    let (trainer, _others) = planned_trainers(&device, &work.spec, work.dtype, &how)?;
    let judges = judges(&device)?;
    device.pool.reset_peak();
    let written = rl.max_answer_tokens.min(WRITTEN);
    // The prompts are divided among replicas; the last has at least as many as the others.
    let grid = work.how.ranks.grid;
    let prompts = rl.prompts.div_ceil(grid.dp * grid.cp);
    let asked = RolloutRequest {
        prompts: (0..prompts).map(|at| vec![(at % work.spec.vocab) as u32; room - written]).collect(),
        seeds: vec![0; prompts],
        answers: rl.answers,
        max_tokens: written,
        temperature: rl.temperature,
        top_k: rl.top_k,
        top_p: rl.top_p,
        min_p: rl.min_p,
        kept: rl.keeps(),
    };
    let weights = ModelView { device: &device, model: &trainer.model, params: &trainer.params };
    let gathered = gathered(&trainer, &work.how.ranks);
    rollout.rollout(weights, &asked).map_err(Error::Hook)?;
    drop(gathered);
    let [prompt, text] =
        [room - rl.max_answer_tokens.min(room), rl.max_answer_tokens].map(|words| "a ".repeat(words));
    let (row, tokens) = (Map::new(), rl.max_answer_tokens);
    let answer = RewardInput {
        row: &row,
        prompt: &prompt,
        text: &text,
        messages: &[],
        earned: None,
        tokens,
        ended: true,
    };
    let refuse = |message: String| Error::Recipe { key: "rl.reward".into(), message };
    if scores(&device.mesh) {
        score(&judges, &vec![answer; prompts * rl.answers]).map_err(refuse)?;
    }
    let stream = MicroBatch::shape(work.tokens, work.how.caps.seq_tokens);
    let [present, of_reference] = Question::of(rl, &work.how.ranks);
    for question in present {
        question.ask(&trainer.pass(&work.how), &stream);
    }
    if let Some(reference) = trainer.reference() {
        for question in of_reference {
            question.ask(&reference.pass(&trainer, &work.how), &stream);
        }
    }
    Ok(device.pool.usage())
}
