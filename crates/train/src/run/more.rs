//! More of a stage that has ended: a run whose recipe has more steps now, or more minutes, goes on where it was, with its optimizer.

use super::{Ended, Progress, Run};
use crate::checkpoint::read_if_there;
use crate::error::Result;
use crate::recipe::Recipe;

impl Progress {
    /// At the beginning of the next stage, of a run of so many minutes.
    pub(super) fn after_stage(&self, minutes: Option<f64>) -> Progress {
        let Progress { stage_step, stage_time_s, cursor, .. } = self.clone();
        let ended = Some(Ended { stage_step, stage_time_s, cursor, minutes });
        let begun = Progress {
            stage: self.stage + 1,
            stage_step: 0,
            stage_time_s: 0.0,
            cursor: None,
            ..self.clone()
        };
        Progress { ended, ..begun }
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

    /// Back at the end of the stage that ended last, instead of at the beginning of the next.
    fn reopened(&self) -> Option<Progress> {
        let Ended { stage_step, stage_time_s, cursor, .. } = self.ended.clone()?;
        let stage = self.stage.checked_sub(1)?;
        Some(Progress { stage, stage_step, stage_time_s, cursor, ended: None, ..self.clone() })
    }
}

impl Run<'_> {
    /// Goes back into the stage that ended last if there is more of it to do. A timed one decides its steps anew: it has the
    /// seconds that all stages left over.
    pub(super) fn reopen(&mut self) -> Result<()> {
        if !self.progress.has_more(self.recipe) {
            return Ok(());
        }
        let Some(progress) = self.progress.reopened() else { return Ok(()) };
        let index = progress.stage;
        if self.recipe.stage[index].steps.is_none() {
            self.forget_steps(index)?;
            let given: f64 = self.seconds.iter().take(index).sum();
            self.unspent_s = given - (progress.time_s - progress.stage_time_s);
        }
        self.progress = progress;
        Ok(())
    }

    /// Forgets the decided number of a stage's steps, and of those after it.
    fn forget_steps(&self, index: usize) -> Result<()> {
        let path = self.folder.join("steps.json");
        if read_if_there(&path)?.is_none() {
            return Ok(());
        }
        let kept: Vec<u64> =
            (0..index).map(|before| Ok(self.decided(before)?.unwrap_or(0))).collect::<Result<_>>()?;
        crate::checkpoint::publish(&path, serde_json::json!(kept).to_string().as_bytes())
    }
}
