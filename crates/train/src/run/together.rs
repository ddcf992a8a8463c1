//! Several runs in one process, a step of each after the other: adapters over one base. Each is the run that it would be alone, with
//! its own data, optimizer, log and checkpoints, so it resumes alone as well, wherever it was. One run alone takes no turns.

use super::{Hooks, Outcome, Run, Running};
use crate::error::Result;

/// A run among others.
struct Turn<'a, 'b> {
    run: &'b mut Run<'a>,
    hooks: &'b mut dyn Hooks,
    running: Option<Running>,
    ended: Option<Outcome>,
}

impl Turn<'_, '_> {
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
        let outcome = run.turn(at, *hooks)?;
        // The next one's step has the memory of its plan: nothing of this one's is under way or unread meanwhile.
        run.stepper.await_weights();
        run.read(at, *hooks)?;
        match outcome {
            None => {}
            Some(Outcome::Finished) => {
                if let Some(at) = running.take() {
                    run.leave(at, *hooks)?;
                }
            }
            Some(Outcome::Interrupted) => {
                *running = None;
                run.end_save(*hooks)?;
                *ended = Some(run.ended(Outcome::Interrupted)?);
            }
        }
        Ok(())
    }
}

/// Runs all stages that are left of several runs on one device, in turns of a step each. A failure of one ends all; what each saved stays.
///
/// # Errors
/// The first failure of any.
///
/// # Panics
/// If there are not as many hooks as runs.
#[track_caller]
pub fn together(runs: &mut [Run<'_>], hooks: &mut [&mut dyn Hooks]) -> Result<Outcome> {
    assert_eq!(runs.len(), hooks.len(), "together: hooks of each run");
    if let ([run], [hooks]) = (&mut *runs, &mut *hooks) {
        return run.train(&mut **hooks);
    }
    let mut turns: Vec<Turn<'_, '_>> = Vec::new();
    for (run, hooks) in runs.iter_mut().zip(hooks) {
        let hooks = &mut **hooks;
        run.begin(hooks)?;
        turns.push(Turn { run, hooks, running: None, ended: None });
    }
    while turns.iter().any(|turn| turn.ended.is_none()) {
        turns.iter_mut().filter(|turn| turn.ended.is_none()).try_for_each(Turn::take)?;
    }
    let interrupted = turns.iter().any(|turn| turn.ended == Some(Outcome::Interrupted));
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Finished })
}
