//! Progress of a run: a plain value, saved with every checkpoint. A stage that has ended can continue where it was,
//! with its optimizer, if the recipe now has more steps or minutes.

use fathom_text::loader::Cursor;
use serde::{Deserialize, Serialize};

use crate::recipe::Recipe;

/// Progress of a run; saved with every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Finished updates.
    pub step: u64,
    /// Index of the stage.
    pub stage: usize,
    /// Finished updates of this stage.
    pub stage_step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Time spent in steps.
    pub time_s: f64,
    /// Time spent in steps of this stage.
    #[serde(default)]
    pub stage_time_s: f64,
    /// Position in the stage's data; `None` at its beginning.
    pub cursor: Option<Cursor>,
    /// End of the previous stage, until this one has taken a step: additional steps of it continue from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<StageEnd>,
    /// History of delayed scaling, in saved progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<Amax>,
}

/// The end of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageEnd {
    /// Finished updates of the stage.
    pub stage_step: u64,
    /// Time spent in them.
    pub stage_time_s: f64,
    /// Position in the stage's data.
    pub cursor: Option<Cursor>,
    /// `run.minutes` at that time.
    pub minutes: Option<f64>,
}

/// Largest elements of operands in earlier steps (`precision.gemm = "fp8_delayed"`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amax {
    /// The row for the next step.
    pub row: usize,
    /// The bits of f32 [steps, operands], row by row.
    pub bits: Vec<u32>,
}

impl Progress {
    /// Adds a step of `step_s` seconds that left its source at `cursor`; its tokens are added when all ranks have
    /// reported theirs.
    pub(super) fn add_step(&mut self, step_s: f64, cursor: Cursor) {
        (self.step, self.stage_step) = (self.step + 1, self.stage_step + 1);
        self.time_s += step_s;
        self.stage_time_s += step_s;
        (self.cursor, self.ended) = (Some(cursor), None);
    }

    /// Progress at the beginning of the next stage, in a run of `minutes` minutes.
    pub(super) fn after_stage(&self, minutes: Option<f64>) -> Progress {
        let Progress { stage_step, stage_time_s, cursor, .. } = self.clone();
        let ended = Some(StageEnd { stage_step, stage_time_s, cursor, minutes });
        let started = Progress {
            stage: self.stage + 1,
            stage_step: 0,
            stage_time_s: 0.0,
            cursor: None,
            ..self.clone()
        };
        Progress { ended, ..started }
    }

    /// True if the recipe has more steps for the stage that ended last than it took, or more minutes for the whole run,
    /// and no later stage has taken a step.
    pub fn has_more(&self, recipe: &Recipe) -> bool {
        let last = self.stage.checked_sub(1).and_then(|index| recipe.stage.get(index));
        let (Some(table), Some(ended)) = (last, self.ended.as_ref().filter(|_| self.stage_step == 0)) else {
            return false;
        };
        let done = self.stage == recipe.stage.len();
        match (table.steps, recipe.run.minutes, ended.minutes) {
            (Some(steps), ..) => steps > ended.stage_step,
            (None, Some(now), Some(then)) => done && now > then,
            _ => false,
        }
    }

    /// Progress at the end of the stage that ended last, instead of at the beginning of the next, if more of it is to
    /// be done.
    pub(super) fn reopened(&self, recipe: &Recipe) -> Option<Progress> {
        if !self.has_more(recipe) {
            return None;
        }
        let StageEnd { stage_step, stage_time_s, cursor, .. } = self.ended.clone()?;
        let stage = self.stage.checked_sub(1)?;
        Some(Progress { stage, stage_step, stage_time_s, cursor, ended: None, ..self.clone() })
    }
}
