//! The stages of a run, or of several in one process that take turns, a step of each after the other: adapters over one base. Each is the
//! run that it would be alone, with its own data, optimizer, log and checkpoints, so it resumes alone as well, wherever it was.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::recover::{Failed, recover};
use super::{Hooks, Outcome, Run, Running};
use crate::error::Result;
use crate::offload::Passed;

/// A run among others.
struct Turn<'a, 'b> {
    run: &'b mut Run<'a>,
    hooks: &'b mut dyn Hooks,
    running: Option<Running>,
    ended: Option<Outcome>,
}

impl Turn<'_, '_> {
    /// A turn of one of several, which has the memory of its plan: what is open behind it is passed on, and nothing of this run is under
    /// way or unread after it.
    fn take_among(&mut self, passed: &mut Passed) -> Result<()> {
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

    /// One step, or what comes between stages.
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

/// Runs all stages that are left of several runs on one device, in turns of a step each; one alone takes no turns. When a rank fails, all
/// go back a few steps, as often as the recipe of the first allows, where all can be rebuilt; any other failure of one ends all. What each
/// saved stays.
///
/// # Errors
/// The first failure of any.
///
/// # Panics
/// If there are not as many hooks as runs.
#[track_caller]
pub fn together(runs: &mut [Run<'_>], hooks: &mut [&mut dyn Hooks]) -> Result<Outcome> {
    assert_eq!(runs.len(), hooks.len(), "together: hooks of each run");
    let Some(first) = runs.first() else { return Ok(Outcome::Finished) };
    let (mut restarts, device) = (first.recipe.mesh.restarts, first.stepper.device().clone());
    loop {
        if restarts == 0 || !runs.iter().all(|run| run.stepper.can_rebuild()) {
            return all_turns(runs, hooks);
        }
        // A rank that is rebuilt keeps nothing of what a panic may have left half made.
        let ended = catch_unwind(AssertUnwindSafe(|| all_turns(runs, hooks)));
        let failed = match ended {
            Ok(Ok(outcome)) => return Ok(outcome),
            Ok(Err(error)) => Failed::of(&device, error)?,
            Err(panic) => Failed::panic(&device, panic.as_ref()),
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
    let mut passed = Passed::default();
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
