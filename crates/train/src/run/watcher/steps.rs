//! Log entries and measurements of steps; results are read one step late.

use std::collections::BTreeMap;
use std::time::Instant;

use fathom_base::metrics::{Event, events};
use fathom_base::rss;
use fathom_tensor::Device;
use fathom_tensor::Hardware;

use super::Watcher;
use crate::error::Result;
use crate::in_step::InStep;
use crate::plan::drift;
use crate::run::stepper::StepInput;
use crate::run::{Hooks, Progress};
use crate::source::SourceReport;
use crate::step::{StepResult, Trainer};

/// A step whose results have not been read yet.
pub(in crate::run) struct Pending {
    result: StepResult,
    event: events::Step,
}

/// Measurements at the beginning of a step.
pub(in crate::run) struct Look {
    started: Instant,
    /// Disk traffic so far, and the seconds spent waiting for it.
    traffic: (u64, f64),
    /// Seconds spent waiting for other ranks so far.
    waited_s: f64,
    /// True if this is the recorded step of its stage.
    closely: bool,
    /// Start of the timing of its passes, if they are timed.
    since: Option<Instant>,
    /// True if it has all tokens of its plan.
    full: bool,
}

impl Look {
    /// Start of the timing of its passes, if they are timed.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }
}

#[derive(Clone, Copy)]
pub(in crate::run) struct CompletedStep<'a> {
    /// Its trainer.
    pub trainer: &'a Trainer,
    /// Index of its stage.
    pub stage: usize,
    /// Its settings.
    pub how: &'a InStep,
}

/// Resources used by a step.
pub(in crate::run) struct Took {
    pub step_s: f64,
    stall_s: f64,
    spill_bytes: u64,
}

/// Everything known of a step before its results are read.
pub(in crate::run) struct StepFigures {
    /// Index of its stage.
    pub stage: usize,
    /// Its learning rate.
    pub lr: f64,
    /// Seconds spent waiting for data.
    pub data_wait_s: f64,
    /// Metrics of its source, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Resources that it used.
    pub took: Took,
}

impl Watcher<'_> {
    /// Starts to measure a step that has its data; `started` is when that was requested.
    pub fn begin_step(
        &self,
        trainer: &Trainer,
        fed: &StepInput,
        started: Instant,
        progress: &Progress,
    ) -> Look {
        trainer.device.pool.reset_peak();
        let traffic = trainer.disk_traffic();
        let closely = progress.stage_step == 1;
        if closely {
            self.record(trainer);
        }
        let since = (closely && are_timed(&trainer.device)).then_some(started);
        let profile = closely && self.recipe.run.profile;
        trainer.counters.reset_on(profile, &trainer.device.machine);
        let waited_s = trainer.device.mesh.traffic().wait_s;
        Look { started, traffic, waited_s, closely, since, full: fed.full }
    }

    /// Ends the measurement of a step: logs the recorded step, warns if it differs from the plan, and returns the
    /// resources that it used.
    pub fn end_step(
        &mut self,
        look: &Look,
        seen: CompletedStep<'_>,
        progress: &Progress,
        hooks: &mut dyn Hooks,
    ) -> Result<Took> {
        let CompletedStep { trainer, stage: index, .. } = seen;
        let counted = trainer.counters.get();
        let step_s = look.started.elapsed().as_secs_f64();
        self.busy_s = (step_s - (trainer.device.mesh.traffic().wait_s - look.waited_s)).max(0.0);
        let after = trainer.disk_traffic();
        let number = progress.step + 1;
        if progress.stage_step == 0
            && let Some(text) = drift(&self.planned, &trainer.device.pool.usage(), look.full)
        {
            hooks.warn(&format!("stage {}: {text}", self.recipe.stage[index].name));
        }
        if look.closely {
            self.timeline(trainer, index, number)?;
            self.collect_passes(look, seen, number)?;
        }
        if let Some(spans) = &counted.spans {
            self.trace(trainer, index, look.started, spans)?;
        }
        Ok(Took { step_s, stall_s: after.1 - look.traffic.1, spill_bytes: after.0 - look.traffic.0 })
    }

    /// The source's report on the current step: returns its metrics, and logs its rollout.
    pub fn reported(
        &mut self,
        reported: SourceReport,
        step: u64,
        step_s: f64,
    ) -> Result<BTreeMap<String, f64>> {
        let SourceReport { mut metrics, rollout } = reported;
        if let Some(rollout) = rollout {
            self.metrics.write(&Event::Rollout(events::Rollout { step, ..rollout }))?;
        }
        if !metrics.is_empty() {
            metrics.insert("step_time".into(), step_s);
        }
        Ok(metrics)
    }

    /// Stores the completed step, with the `progress` after it; returns the previous one, whose results can be read
    /// now.
    pub fn note(
        &mut self,
        result: StepResult,
        made: StepFigures,
        device: &Device,
        progress: &Progress,
    ) -> Option<Pending> {
        let StepFigures { stage, lr, data_wait_s, metrics, took } = made;
        let event = events::Step {
            metrics,
            step: progress.step,
            stage: stage as u64,
            lr,
            step_s: took.step_s,
            data_wait_s,
            stall_s: took.stall_s,
            spill_bytes: took.spill_bytes,
            pool_peak_bytes: device.pool.usage().peak_live,
            rss_bytes: rss::anonymous_bytes().unwrap_or(0),
            time_s: progress.time_s,
            ..events::Step::default()
        };
        self.pending.replace(Pending { result, event })
    }

    /// Tokens of the last step's stream; 0 if its results have been read.
    pub fn tokens(&self) -> u64 {
        self.pending.as_ref().map_or(0, |pending| pending.result.tokens)
    }

    /// Sets the last step's tokens over all ranks, and the total of all steps.
    pub fn counted(&mut self, tokens: u64, total: u64) {
        if let Some(Pending { event, .. }) = &mut self.pending {
            event.tokens_total = total;
            event.tokens_per_s = tokens as f64 / event.step_s;
        }
    }

    /// The last step, if its results have not been read.
    pub fn last(&mut self) -> Option<Pending> {
        self.pending.take()
    }

    /// Reads a step's results and logs them; returns the event, and whether loss and gradient were finite.
    pub fn read(
        &mut self,
        pending: Pending,
        how: &InStep,
        trainer: &Trainer,
    ) -> Result<(events::Step, bool)> {
        let Pending { result, mut event } = pending;
        event.model_tflops = f64::from(result.model_flops.wait_f32()) / event.step_s / 1e12;
        let count = f64::from(result.count.wait_f32());
        let mean = (f64::from(result.loss.wait_f32()) / if count == 0.0 { 1.0 } else { count }) as f32;
        let (norm, skipped) = (result.norm.wait_f32(), result.skipped.wait_f32());
        (event.loss, event.loss_bits, event.grad_norm) = (f64::from(mean), mean.to_bits(), f64::from(norm));
        (event.learning_rate, event.num_tokens) = (event.lr, event.tokens_total);
        let experts = trainer.model.spec.moe.as_ref().map_or(1, |moe| moe.experts);
        event.expert_load = result.loads.map_or(0.0, |loads| worst_load(&loads.wait(), experts));
        if let Some(sums) = result.metrics {
            let objective = &how.goal.objective;
            let mut means = means(&how.goal.names(), &sums.wait());
            objective.weigh().iter().for_each(|weigh| weigh.derive(&mut means));
            event.metrics.extend(means);
        }
        event.named = event.metrics.clone();
        self.metrics.write(&Event::Step(event.clone()))?;
        // A step without a token to train on is skipped too, and finite.
        Ok((event, skipped == 0.0 || (mean.is_finite() && norm.is_finite())))
    }
}

/// Ratio of the busiest expert's slots to the mean of its layer, for the worst layer, from the f32 counts of all
/// layers.
fn worst_load(loads: &[u8], experts: usize) -> f64 {
    let load =
        |bytes: &[u8]| bytes.first_chunk::<4>().map_or(0.0, |bytes| f64::from(f32::from_le_bytes(*bytes)));
    let worst = |layer: &[u8]| {
        let loads: Vec<f64> = layer.chunks_exact(4).map(load).collect();
        let sum: f64 = loads.iter().sum();
        loads.iter().copied().fold(0.0, f64::max) * experts as f64 / sum.max(1.0)
    };
    loads.chunks(4 * experts).map(worst).fold(0.0, f64::max)
}

/// Means by name, from the f32 [metrics, 2] sums and divisors; metrics with divisor 0 are omitted.
fn means(names: &[&str], sums: &[u8]) -> BTreeMap<String, f64> {
    let float = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
    let pairs = sums.as_chunks::<8>().0.iter().map(|pair| {
        let [sum, count] = [0, 4].map(|at| pair[at..].first_chunk().map_or(0.0, float));
        sum / count
    });
    let named = names.iter().map(|name| (*name).to_string()).zip(pairs);
    named.filter(|(_, mean)| mean.is_finite()).collect()
}

/// True if passes are timed: only with several ranks, and not on a graphics processor, where calls return before their
/// work is done.
pub(super) fn are_timed(device: &Device) -> bool {
    device.mesh.grid().ranks() > 1 && device.machine.profile().hardware == Hardware::Processor
}
