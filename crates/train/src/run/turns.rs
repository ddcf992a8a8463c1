//! The loop: the stages of a run, or of several in one process that take turns step by step: adapters over one base. Each
//! behaves as it would alone, with its own data, optimizer, log and checkpoints, so it can be resumed alone too, wherever
//! it was.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use fathom_base::Flow;
use fathom_base::metrics::{Event, events};
use fathom_tensor::mesh::Axis;

use super::recover::{RankFailure, recover};
use super::stepper::InStage;
use super::watcher::{CompletedStep, Pending, StepFigures, Watcher};
use super::{Hooks, Outcome, Run};
use crate::error::{Error, Result};
use crate::offload::OpenEngines;

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
                // A run that had ended has entered no stage, and the model of the last one is exported.
                run.stepper.set_stages(run.progress.stage)?;
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

/// A running stage.
struct RunningStage {
    stage: InStage,
    /// Whether, after the last step, some rank wanted to stop, and the first to save.
    agreed: [bool; 2],
}

impl Run<'_> {
    /// Setup before the first stage.
    fn begin(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        self.keeper.notes().iter().for_each(|note| hooks.warn(note));
        self.stepper.section("setup", None);
        self.keeper.copy_if_first(self.stepper.trainer(), &self.progress)
    }

    /// Setup before the steps of a stage.
    fn enter(&mut self, index: usize, hooks: &mut dyn Hooks) -> Result<RunningStage> {
        let Run { stepper, watcher, progress, .. } = self;
        watcher.enter(&stepper.device().mesh);
        let (stage, settled) = stepper.enter(index, progress)?;
        let event = watcher.stage_event(index, progress.step, stage.steps(), &stepper.trainer().model.spec);
        let event = events::Stage { drill_share: stepper.drill_share(index)?, ..event };
        hooks.stage(&event, &settled);
        if stage.steps() == Some(0) {
            hooks.warn(&format!(
                "stage {}: the time that is left holds no step of it, so the model is not trained on {} tokens",
                event.name, event.seq_len_tokens
            ));
        }
        if progress.stage_step == 0 {
            watcher.log().write(&Event::Stage(event))?;
            let budget = stepper.device().pool.budget();
            watcher.foretell(index, &stepper.subject(&stage), &settled.plan, progress.step, budget)?;
        }
        watcher.expect(&settled.plan);
        Ok(RunningStage { stage, agreed: [false; 2] })
    }

    /// One step of a stage, or the stage's outcome.
    fn turn(&mut self, running: &mut RunningStage, hooks: &mut dyn Hooks) -> Result<Option<Outcome>> {
        if running.stage.is_done(&self.progress) {
            self.read(running, hooks)?;
            return Ok(Some(Outcome::Finished));
        }
        // After the first step of a stage, ranks agree at the end of each step.
        if running.agreed[0] || (running.stage.is_fresh() && self.pulse()?.stop()) {
            self.read(running, hooks)?;
            self.save(hooks)?;
            return Ok(Some(Outcome::Interrupted));
        }
        self.stepper.section("step", self.recipe.mesh.step_timeout_s);
        self.step(running, hooks)?;
        self.stepper.decide(&mut running.stage, &self.progress)?;
        let pulse = self.pulse()?;
        let tokens = pulse.tokens(self.stepper.device().mesh.size(Axis::Dp));
        self.progress.tokens += tokens;
        self.watcher.counted(tokens, self.progress.tokens);
        self.watcher.score(&self.stepper.device().mesh, self.progress.step, &pulse.busy_s(), hooks)?;
        self.stepper.section("checkpoint", None);
        let saved = self.keeper.look_after_save(self.stepper.device(), pulse.written(), hooks)?;
        self.watcher.saved(saved)?;
        running.agreed = [pulse.stop(), pulse.save_is_due()];
        if running.stage.steps().is_some() && self.keeper.copy_is_due(self.progress.step) {
            self.read(running, hooks)?;
            self.copy(hooks)?;
        }
        if running.stage.steps().is_some() && running.agreed[1] {
            self.read(running, hooks)?;
            self.save(hooks)?;
        }
        Ok(None)
    }

    /// Computes the next step, and logs the previous one.
    fn step(&mut self, running: &mut RunningStage, hooks: &mut dyn Hooks) -> Result<()> {
        let (Run { stepper, keeper, watcher, progress, .. }, RunningStage { stage, .. }) =
            (&mut *self, &mut *running);
        watcher.recovered(progress)?;
        let started = Instant::now();
        let fed = stepper.feed(stage, progress)?;
        let look = watcher.begin_step(stepper.trainer(), &fed, started, progress);
        let number = progress.step + 1;
        let compared = watcher.compared(stepper.trainer(), number);
        let result = stepper.step(stage, &fed, look.since(), |device, params| {
            if let Some(compared) = &compared {
                Watcher::compare(device, params, compared, number)?;
            }
            keeper.release(device)
        })?;
        let seen = CompletedStep { trainer: stepper.trainer(), stage: stage.index(), how: stage.how() };
        let took = watcher.end_step(&look, seen, progress, hooks)?;
        let reported = stage.end_step(stepper.lap_s(), progress);
        let metrics = watcher.reported(reported, number, took.step_s)?;
        progress.add_step(took.step_s, stage.cursor().clone());
        let made =
            StepFigures { stage: stage.index(), lr: fed.lr, data_wait_s: fed.data_wait_s, metrics, took };
        let before = watcher.note(result, made, stepper.device(), progress);
        self.report(running, before, hooks)
    }

    /// Reads the last step's results from the device.
    fn read(&mut self, running: &RunningStage, hooks: &mut dyn Hooks) -> Result<()> {
        let last = self.watcher.last();
        self.report(running, last, hooks)
    }

    /// Logs a step; ends the run if its loss or gradient is not finite.
    fn report(&mut self, running: &RunningStage, step: Option<Pending>, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(step) = step else { return Ok(()) };
        let (event, is_finite) = self.watcher.read(step, running.stage.how(), self.stepper.trainer())?;
        if !is_finite {
            return Err(Error::NotFinite {
                step: event.step,
                loss: event.loss,
                norm: event.grad_norm,
                saved: self.keeper.latest(),
                clipped: self.recipe.optimizer.clip.is_some(),
            });
        }
        let stage_step = self.progress.stage_step - (self.progress.step - event.step);
        hooks.step(&event, stage_step, running.stage.steps())
    }

    /// Ends a stage after its steps; returns the outcome if the run stops there. The end of the stage is saved, so that
    /// the run can return to it.
    fn leave(&mut self, running: RunningStage, hooks: &mut dyn Hooks) -> Result<Option<Outcome>> {
        let index = running.stage.index();
        drop(running);
        self.save(hooks)?;
        // The checkpoint is published before any measurement, which may take longer than the grace period of a request
        // to stop.
        self.end_save(hooks)?;
        let (trainer, log) = (self.stepper.trainer(), self.watcher.log());
        if hooks.stage_done(trainer, index, self.progress.step, log)? == Flow::Stop {
            return Ok(Some(Outcome::Interrupted));
        }
        self.progress = self.progress.after_stage(self.recipe.run.minutes);
        self.save(hooks)?;
        Ok(None)
    }

    /// The outcome of the run, or an error if a requested save failed.
    fn ended(&self, outcome: Outcome) -> Result<Outcome> {
        match (self.keeper.unsaved(), outcome) {
            (Some(why), Outcome::Interrupted) => {
                let step = self.progress.step;
                Err(Error::Save(format!("asked to stop after step {step}, which could not be saved: {why}")))
            }
            _ => Ok(outcome),
        }
    }
}
