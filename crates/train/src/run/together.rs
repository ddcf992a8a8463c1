//! The stages of a run, or of several in one process that take turns step by step: adapters over one base. Each behaves
//! as it would alone, with its own data, optimizer, log and checkpoints, so it can be resumed alone too, wherever it
//! was.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::recover::{RankFailure, recover};
use super::{Hooks, Outcome, Run, RunningStage};
use crate::error::Result;
use crate::offload::OpenEngines;

/// One of the runs that take turns.
struct Turn<'a, 'b> {
    run: &'b mut Run<'a>,
    hooks: &'b mut dyn Hooks,
    running: Option<RunningStage>,
    ended: Option<Outcome>,
}

impl Turn<'_, '_> {
    /// A turn of one of several, within the memory of its plan: open offload engines are handed over, and nothing of
    /// this run is in flight or unread afterwards.
    fn take_among(&mut self, passed: &mut OpenEngines) -> Result<()> {
        let stage = self.running.as_ref().map(|at| &at.stage);
        self.run.stepper.take_over(std::mem::take(passed), stage)?;
        self.take()?;
        self.run.stepper.await_weights();
        if let Some(at) = &self.running {
            self.run.read(at, self.hooks)?;
        }
        *passed = self.run.stepper.pass_on();
        Ok(())
    }

    /// One step, or the work between stages.
    fn take(&mut self) -> Result<()> {
        let Turn { run, hooks, running, ended } = self;
        if running.is_none() {
            if run.progress.stage >= run.recipe.stage.len() {
                *ended = Some(Outcome::Finished);
                return run.end_save(*hooks);
            }
            *running = Some(run.enter(run.progress.stage, *hooks)?);
        }
        let Some(at) = running.as_mut() else { return Ok(()) };
        match run.turn(at, *hooks)? {
            None => {}
            Some(Outcome::Finished) => {
                if let Some(at) = running.take() {
                    *ended = run.leave(at, *hooks)?;
                }
            }
            Some(Outcome::Interrupted) => {
                *running = None;
                run.end_save(*hooks)?;
                *ended = Some(Outcome::Interrupted);
            }
        }
        Ok(())
    }
}

/// Runs all remaining stages of several runs on one device, which take turns of a step each; a single run takes no
/// turns. When a rank fails and all can be rebuilt, all return to an earlier step, as often as the first recipe allows;
/// any other failure of one ends all. Everything saved stays.
///
/// # Errors
/// The first failure of any run.
///
/// # Panics
/// If the number of hooks differs from the number of runs.
#[track_caller]
pub fn together(runs: &mut [Run<'_>], hooks: &mut [&mut dyn Hooks]) -> Result<Outcome> {
    assert_eq!(runs.len(), hooks.len(), "together: hooks of each run");
    let Some(first) = runs.first() else { return Ok(Outcome::Finished) };
    let (mut restarts, device) = (first.recipe.mesh.restarts, first.stepper.device().clone());
    loop {
        if restarts == 0 || !runs.iter().all(|run| run.stepper.can_rebuild()) {
            return all_turns(runs, hooks);
        }
        // A rebuilt rank keeps nothing that a panic may have left incomplete.
        let ended = catch_unwind(AssertUnwindSafe(|| all_turns(runs, hooks)));
        let failed = match ended {
            Ok(Ok(outcome)) => return Ok(outcome),
            Ok(Err(error)) => RankFailure::of(&device, error)?,
            Err(panic) => RankFailure::panic(&device, panic.as_ref()),
        };
        restarts -= 1;
        recover(runs, failed, hooks)?;
    }
}

/// Takes turns until all have ended.
fn all_turns(runs: &mut [Run<'_>], hooks: &mut [&mut dyn Hooks]) -> Result<Outcome> {
    let mut turns: Vec<Turn<'_, '_>> = Vec::new();
    for (run, hooks) in runs.iter_mut().zip(hooks) {
        let hooks = &mut **hooks;
        run.begin(hooks)?;
        turns.push(Turn { run, hooks, running: None, ended: None });
    }
    if let [turn] = &mut turns[..] {
        while turn.ended.is_none() {
            turn.take()?;
        }
    }
    let mut passed = OpenEngines::default();
    while turns.iter().any(|turn| turn.ended.is_none()) {
        let mut left = turns.iter_mut().filter(|turn| turn.ended.is_none());
        left.try_for_each(|turn| turn.take_among(&mut passed))?;
    }
    let mut outcome = Outcome::Finished;
    for Turn { run, ended, .. } in &turns {
        if let Some(Outcome::Interrupted) = ended {
            outcome = run.ended(Outcome::Interrupted)?;
        }
    }
    Ok(outcome)
}
