//! How far a run is: a plain value, saved with every checkpoint. More of a stage that has ended: a run whose recipe has more steps
//! now, or more minutes, goes on where it was, with its optimizer.

use fathom_text::loader::Cursor;
use serde::{Deserialize, Serialize};

use crate::recipe::Recipe;

/// How far a run is; saved with every checkpoint.
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
    /// Of it in this stage's.
    #[serde(default)]
    pub stage_time_s: f64,
    /// Position in the stage's data; `None` at its beginning.
    pub cursor: Option<Cursor>,
    /// Where the stage before ended, until this one has made a step: more steps of it go on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// What delayed scaling looks back on, in what is saved of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<Amax>,
}

/// The end of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// Finished updates of the stage.
    pub stage_step: u64,
    /// Time spent in them.
    pub stage_time_s: f64,
    /// Position in the stage's data.
    pub cursor: Option<Cursor>,
    /// `run.minutes` of then.
    pub minutes: Option<f64>,
}

/// Largest elements of operands in earlier steps (`precision.gemm = "fp8_delayed"`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amax {
    /// The row that the next step will be.
    pub row: usize,
    /// The bits of f32 [steps, operands], row by row.
    pub bits: Vec<u32>,
}

impl Progress {
    /// After another step of this many seconds, with its source at a position; its tokens are added when all ranks have said theirs.
    pub(super) fn add_step(&mut self, step_s: f64, cursor: Cursor) {
        (self.step, self.stage_step) = (self.step + 1, self.stage_step + 1);
        self.time_s += step_s;
        self.stage_time_s += step_s;
        (self.cursor, self.ended) = (Some(cursor), None);
    }

    /// At the beginning of the next stage, of a run of so many minutes.
    pub(super) fn after_stage(&self, minutes: Option<f64>) -> Progress {
        let Progress { stage_step, stage_time_s, cursor, .. } = self.clone();
        let ended = Some(Ended { stage_step, stage_time_s, cursor, minutes });
        let started = Progress {
            stage: self.stage + 1,
            stage_step: 0,
            stage_time_s: 0.0,
            cursor: None,
            ..self.clone()
        };
        Progress { ended, ..started }
    }

    /// Whether the recipe has more steps for the stage that ended last than it made, or more minutes for the whole run, and no
    /// later stage has made a step.
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

    /// Back at the end of the stage that ended last, instead of at the beginning of the next, if there is more of it to do.
    pub(super) fn reopened(&self, recipe: &Recipe) -> Option<Progress> {
        if !self.has_more(recipe) {
            return None;
        }
        let Ended { stage_step, stage_time_s, cursor, .. } = self.ended.clone()?;
        let stage = self.stage.checked_sub(1)?;
        Some(Progress { stage, stage_step, stage_time_s, cursor, ended: None, ..self.clone() })
    }
}
