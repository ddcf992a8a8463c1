//! The steps of a stage, one after the other, and what the log says of each.

use std::collections::BTreeMap;
use std::time::Instant;

use fathom_base::metrics::{Event, events};
use fathom_base::rss;
use fathom_tensor::mesh::Axis;

use super::{Hooks, Outcome, Pending, Run, Running, corrupt};
use crate::error::{Error, Result};
use crate::plan::drift;
use crate::source::Told;
use crate::stage;

impl Run<'_> {
    pub(super) fn steps(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<Outcome> {
        loop {
            if let Some(outcome) = self.turn(running, hooks)? {
                return Ok(outcome);
            }
        }
    }

    /// One step of a stage, or how the stage ended.
    pub(super) fn turn(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<Option<Outcome>> {
        if running.steps.is_some_and(|steps| self.progress.stage_step >= steps) {
            self.read(running, hooks)?;
            return Ok(Some(Outcome::Finished));
        }
        // Beyond the first step of a stage ranks agree at the end of each.
        if running.agreed[0] || (running.times.is_empty() && self.pulse()?.stop()) {
            self.read(running, hooks)?;
            self.save(hooks)?;
            return Ok(Some(Outcome::Interrupted));
        }
        self.section("step", self.recipe.mesh.step_timeout_s);
        self.step(running, hooks)?;
        if running.steps.is_none() {
            running.steps = self.decide(running)?;
        }
        let pulse = self.pulse()?;
        self.score(&pulse, hooks)?;
        self.section("checkpoint", None);
        self.look_after_save(pulse.written(), hooks)?;
        running.agreed = [pulse.stop(), pulse.save_is_due()];
        if running.steps.is_some() && self.copy_is_due() {
            self.read(running, hooks)?;
            self.copy(hooks)?;
        }
        if running.steps.is_some() && running.agreed[1] {
            self.read(running, hooks)?;
            self.save(hooks)?;
        }
        Ok(None)
    }

    fn step(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<()> {
        self.recovered()?;
        let begun = Instant::now();
        let waited = running.source.wait_s();
        let table = &self.recipe.stage[running.index];
        let micro = running.source.step(&self.trainer)?;
        let data_wait_s = running.source.wait_s() - waited;
        // Before a timed stage knows its steps it is warming up, and the rate does not depend on their number.
        let steps = running.steps.unwrap_or(u64::from(u32::MAX));
        let schedule = stage::schedule(self.recipe, running.index, steps);
        let lr = schedule.rate(self.progress.stage_step);
        running.how.adamw.lr = lr as f32;
        self.trainer.device.pool.reset_peak();
        let before = self.trainer.disk_traffic();
        let watched = self.progress.stage_step == 1;
        if watched {
            self.watch();
            self.time_passes(begun);
        }
        let profile = watched && self.recipe.run.profile;
        self.trainer.counters.reset_on(profile, &self.trainer.device.machine);
        let number = self.progress.step + 1;
        let checks = self.checks(number, false);
        let Run { trainer, saving, faults, stop, .. } = &mut *self;
        let waited_s = trainer.device.mesh.traffic().wait_s;
        trainer.poisoned = faults.before_step(&trainer.device, &trainer.params, stop, number);
        let compared = corrupt::compared(trainer);
        let result = trainer.step_with(&micro, &running.how, |device, params| {
            faults.before_update(device, number)?;
            if checks {
                corrupt::check(device, params, &compared, number)?;
            }
            // The save reads what the update is about to change.
            saving.iter_mut().try_for_each(|saving| saving.release_together(device))
        })?;
        self.trainer.move_reference(number);
        let counted = self.trainer.counters.get();
        let step_s = begun.elapsed().as_secs_f64();
        self.busy_s = (step_s - (self.trainer.device.mesh.traffic().wait_s - waited_s)).max(0.0);
        let after = self.trainer.disk_traffic();
        if self.progress.stage_step == 0
            && let Some(text) = drift(&running.planned, &self.trainer.device.pool.usage())
        {
            hooks.warn(&format!("stage {}: {text}", table.name));
        }
        if watched {
            self.timeline(running)?;
            self.collect_passes(running)?;
        }
        if let Some(spans) = &counted.spans {
            self.trace(running.index, begun, spans)?;
        }
        running.times.push(step_s);
        let metrics = self.told(running, step_s)?;
        let (mesh, progress) = (&self.trainer.device.mesh, &mut self.progress);
        (progress.step, progress.stage_step) = (progress.step + 1, progress.stage_step + 1);
        let tokens = result.tokens * (mesh.size(Axis::Dp) * mesh.size(Axis::Cp)) as u64;
        progress.tokens += tokens;
        progress.time_s += step_s;
        progress.stage_time_s += step_s;
        (progress.cursor, progress.ended) = (Some(running.source.cursor().clone()), None);
        let event = events::Step {
            metrics,
            step: progress.step,
            stage: running.index as u64,
            tokens_total: progress.tokens,
            lr,
            tokens_per_s: tokens as f64 / step_s,
            step_s,
            data_wait_s,
            stall_s: after.1 - before.1,
            spill_bytes: after.0 - before.0,
            pool_peak_bytes: self.trainer.device.pool.usage().peak_live,
            rss_bytes: rss::anonymous_bytes().unwrap_or(0),
            time_s: progress.time_s,
            ..events::Step::default()
        };
        let previous = running.pending.replace(Pending { result, event });
        self.report(running, previous, hooks)
    }

    /// What the source tells of the step that is being made: numbers for its line; answers are lines of their own.
    fn told(&mut self, running: &mut Running, step_s: f64) -> Result<BTreeMap<String, f64>> {
        let Told { mut metrics, rollout } = running.source.told();
        if let Some(rollout) = rollout {
            let step = self.progress.step + 1;
            self.metrics.write(&Event::Rollout(events::Rollout { step, ..rollout }))?;
        }
        if !metrics.is_empty() {
            metrics.insert("step_time".into(), step_s);
        }
        Ok(metrics)
    }

    /// Reads what the last step left on the device.
    fn read(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<()> {
        let last = running.pending.take();
        self.report(running, last, hooks)
    }

    /// Slots of the busiest expert over its layer's mean, of the worst layer, from the f32 counts of all layers.
    fn worst_load(&self, loads: &[u8]) -> f64 {
        let experts = self.trainer.model.spec.moe.as_ref().map_or(1, |moe| moe.experts);
        let load = |bytes: &[u8]| {
            bytes.first_chunk::<4>().map_or(0.0, |bytes| f64::from(f32::from_le_bytes(*bytes)))
        };
        let worst = |layer: &[u8]| {
            let loads: Vec<f64> = layer.chunks_exact(4).map(load).collect();
            let sum: f64 = loads.iter().sum();
            loads.iter().copied().fold(0.0, f64::max) * experts as f64 / sum.max(1.0)
        };
        loads.chunks(4 * experts).map(worst).fold(0.0, f64::max)
    }

    fn report(&mut self, running: &Running, pending: Option<Pending>, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(Pending { result, mut event }) = pending else { return Ok(()) };
        event.model_tflops = f64::from(result.model_flops.wait_f32()) / event.step_s / 1e12;
        let count = f64::from(result.count.wait_f32());
        let mean = (f64::from(result.loss.wait_f32()) / if count == 0.0 { 1.0 } else { count }) as f32;
        let (norm, skipped) = (result.norm.wait_f32(), result.skipped.wait_f32());
        (event.loss, event.loss_bits, event.grad_norm) = (f64::from(mean), mean.to_bits(), f64::from(norm));
        (event.learning_rate, event.num_tokens) = (event.lr, event.tokens_total);
        event.expert_load = result.loads.map_or(0.0, |loads| self.worst_load(&loads.wait()));
        if let Some(sums) = result.metrics {
            let objective = &running.how.goal.objective;
            let mut means = means(&running.how.goal.names(), &sums.wait());
            objective.weigh().iter().for_each(|weigh| weigh.derive(&mut means));
            event.metrics.extend(means);
        }
        event.named = event.metrics.clone();
        self.metrics.write(&Event::Step(event.clone()))?;
        // A step without a token to train on is skipped too, and finite.
        if skipped != 0.0 && !(mean.is_finite() && norm.is_finite()) {
            return Err(Error::NotFinite {
                step: event.step,
                loss: event.loss,
                norm: event.grad_norm,
                saved: self.checkpoints.latest(),
                clipped: self.recipe.optimizer.clip.is_some(),
            });
        }
        let stage_step = self.progress.stage_step - (self.progress.step - event.step);
        hooks.step(&event, stage_step, running.steps)
    }
}

/// Means by name, of the f32 [metrics, 2] sums and what they are divided by; without those of nothing.
fn means(names: &[&str], sums: &[u8]) -> BTreeMap<String, f64> {
    let float = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
    let pairs = sums.as_chunks::<8>().0.iter().map(|pair| {
        let [sum, count] = [0, 4].map(|at| pair[at..].first_chunk().map_or(0.0, float));
        sum / count
    });
    let named = names.iter().map(|name| (*name).to_string()).zip(pairs);
    named.filter(|(_, mean)| mean.is_finite()).collect()
}
