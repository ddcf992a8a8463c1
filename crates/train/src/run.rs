//! The loop: stages of steps, with metrics, saves and resumption.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fathom_base::metrics::{Event, MetricsWriter, events};
use fathom_base::rss;
use fathom_grad::Offload;
use fathom_model::Spec;
use fathom_report::trace::{self, TraceWriter};
use fathom_tensor::spill::{Options, Spill};
use fathom_tensor::{Category, Mark};
use fathom_text::loader::Cursor;
use serde::{Deserialize, Serialize};

use crate::blend::Stores;
use crate::checkpoint::{Checkpoints, Saving};
use crate::error::{Error, Result};
use crate::plan::{Plan, plan};
use crate::recipe::Recipe;
use crate::source::{Samples, Source};
use crate::stage;
use crate::step::{InStep, MicroBatch, StepResult, Trainer};

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
    /// Position in the stage's data; `None` at its beginning.
    pub cursor: Option<Cursor>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All stages are done.
    Finished,
    /// Asked to stop; a checkpoint was saved.
    Interrupted,
}

/// What the program around a run sees of it.
pub trait Hooks {
    /// A stage begins, or goes on after a resume.
    fn stage(&mut self, stage: &events::Stage, plan: &Plan);
    /// A step ended.
    ///
    /// # Errors
    /// Ends the run.
    fn step(&mut self, step: &events::Step, stage_step: u64, stage_steps: Option<u64>) -> Result<()>;
    /// A stage ended after `step` updates; the model is as it is now, and being saved. Called again if the run is killed
    /// before it returns.
    ///
    /// # Errors
    /// Ends the run.
    fn stage_done(
        &mut self,
        trainer: &Trainer,
        index: usize,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> Result<()>;
}

/// Steps measured before the number of a timed stage's steps is decided; fewer if they already took
/// [`PROBE_SHARE`] of its time.
const PROBE_STEPS: usize = 4;
/// See [`PROBE_STEPS`].
const PROBE_SHARE: f64 = 0.3;
/// A timed stage gets this share of its seconds at least, however late the run is.
const LEAST_SHARE: f64 = 0.5;
/// Points of a memory timeline.
const TIMELINE_POINTS: usize = 600;

/// A run in its folder.
pub struct Run<'a> {
    recipe: &'a Recipe,
    folder: PathBuf,
    trainer: Trainer,
    stores: Stores,
    metrics: MetricsWriter,
    checkpoints: Checkpoints,
    progress: Progress,
    /// Seconds of each stage, for stages without steps.
    seconds: Vec<f64>,
    /// What earlier stages of this process left of their seconds, or took from later ones: the number of steps is
    /// decided by a stage's first steps, and a machine's speed changes.
    unspent_s: f64,
    /// The specification before any stage.
    spec: Spec,
    stop: &'a AtomicBool,
    last_save: Instant,
    /// The save that is being written.
    saving: Option<Saving>,
}

/// What a run is made of.
pub struct Parts<'a> {
    /// Its recipe.
    pub recipe: &'a Recipe,
    /// Its folder.
    pub folder: &'a Path,
    /// The model, as initialised or imported.
    pub trainer: Trainer,
    /// Its data.
    pub stores: Stores,
    /// Its log.
    pub metrics: MetricsWriter,
    /// Seconds of each stage, for stages without steps.
    pub seconds: Vec<f64>,
    /// Set from outside to save and stop.
    pub stop: &'a AtomicBool,
}

/// A step whose results have not been read yet.
struct Pending {
    result: StepResult,
    event: events::Step,
}

/// What a stage holds while it runs.
struct Running {
    index: usize,
    how: InStep,
    source: Samples,
    steps: Option<u64>,
    times: Vec<f64>,
    pending: Option<Pending>,
    planned_peak: u64,
}

impl<'a> Run<'a> {
    /// Takes up the last checkpoint of the folder, if there is one.
    ///
    /// # Errors
    /// A damaged checkpoint, by name.
    pub fn open(parts: Parts<'a>) -> Result<Run<'a>> {
        let Parts { recipe, folder, mut trainer, stores, mut metrics, seconds, stop } = parts;
        let checkpoints = Checkpoints::new(&folder.join("checkpoints"), recipe.checkpoint.keep);
        let spec = trainer.model.spec.clone();
        let progress = match checkpoints.load_latest(&mut trainer)? {
            Some(progress) => {
                metrics.truncate_after_step(progress.step)?;
                let unix_s = unix_s();
                metrics.write(&Event::Resume(events::Resume { step: progress.step, unix_s }))?;
                progress
            }
            None => {
                metrics.truncate_after_step(0)?;
                Progress::default()
            }
        };
        let (folder, last_save) = (folder.to_path_buf(), Instant::now());
        Ok(Run {
            recipe,
            folder,
            trainer,
            stores,
            metrics,
            checkpoints,
            progress,
            seconds,
            unspent_s: 0.0,
            spec,
            stop,
            last_save,
            saving: None,
        })
    }

    /// How far the run is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Lets `work` look at the model before the first step.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn before(&mut self, work: &mut dyn FnMut(&Trainer, &mut MetricsWriter) -> Result<()>) -> Result<()> {
        self.trainer.model.spec = self.spec_after(self.progress.stage)?;
        work(&self.trainer, &mut self.metrics)
    }

    /// Runs all stages that are left.
    ///
    /// # Errors
    /// Whatever ends a run early; what was saved stays.
    pub fn train(&mut self, hooks: &mut dyn Hooks) -> Result<Outcome> {
        let outcome = self.stages(hooks)?;
        self.end_save()?;
        Ok(outcome)
    }

    fn stages(&mut self, hooks: &mut dyn Hooks) -> Result<Outcome> {
        while self.progress.stage < self.recipe.stage.len() {
            let index = self.progress.stage;
            let mut running = self.enter(index, hooks)?;
            if self.steps(&mut running, hooks)? == Outcome::Interrupted {
                return Ok(Outcome::Interrupted);
            }
            let given = self.seconds.get(index).copied().unwrap_or(0.0);
            self.unspent_s += given - running.times.iter().sum::<f64>();
            drop(running);
            self.save()?;
            hooks.stage_done(&self.trainer, index, self.progress.step, &mut self.metrics)?;
            self.progress =
                Progress { stage: index + 1, stage_step: 0, cursor: None, ..self.progress.clone() };
            self.save()?;
        }
        Ok(Outcome::Finished)
    }

    /// The trained model and the log, after the last stage.
    pub fn finish(self) -> (Trainer, MetricsWriter) {
        (self.trainer, self.metrics)
    }

    /// The specification at the end of `stages` stages.
    fn spec_after(&self, stages: usize) -> Result<Spec> {
        (0..stages)
            .try_fold(self.spec.clone(), |spec, index| stage::extend(&spec, &self.recipe.stage[index], index))
    }

    fn enter(&mut self, index: usize, hooks: &mut dyn Hooks) -> Result<Running> {
        let recipe = self.recipe;
        let table = &recipe.stage[index];
        self.trainer.model.spec = self.spec_after(index + 1)?;
        let how = stage::in_step(recipe, index)?;
        let plan = self.plan(index, &how);
        let budget_bytes = self.trainer.device.pool.budget();
        if plan.usage.peak_reserved > budget_bytes {
            let (stage, needed_bytes) = (table.name.clone(), plan.usage.peak_reserved);
            return Err(Error::DoesNotFit { stage, needed_bytes, budget_bytes, peak_op: plan.usage.peak_op });
        }
        self.trainer.offload = None;
        if how.places.uses_disk() {
            let folder = recipe.machine.spill.as_deref().unwrap_or(&self.folder);
            let options = Options::new(folder, plan.disk_peak_bytes);
            self.trainer.offload = Some(Offload::plain(Spill::open(&self.trainer.device, &options)?));
        }
        let loader = self.stores.loader(recipe, index, self.progress.cursor.as_ref())?;
        let source = Samples::new(loader, table.samples_per_micro_batch);
        let steps = match table.steps {
            Some(steps) => Some(steps),
            None => self.decided(index)?,
        };
        let event = events::Stage {
            name: table.name.clone(),
            index: index as u64,
            seq_len_tokens: table.seq_tokens as u64,
            start_step: self.progress.step,
            steps: steps.unwrap_or(0),
            rope: describe_rope(&self.trainer.model.spec),
        };
        hooks.stage(&event, &plan);
        if self.progress.stage_step == 0 {
            self.metrics.write(&Event::Stage(event))?;
            self.metrics.write(&Event::Plan(plan_event(&table.name, &plan)))?;
        }
        let planned_peak = plan.usage.peak_live;
        Ok(Running { index, how, source, steps, times: Vec::new(), pending: None, planned_peak })
    }

    fn plan(&self, index: usize, how: &InStep) -> Plan {
        let (table, trainer) = (&self.recipe.stage[index], &self.trainer);
        let dtype = trainer.params.tensor(trainer.model.embed).dtype();
        let tokens = table.seq_tokens * table.samples_per_micro_batch.max(1);
        plan(
            trainer.device.machine.profile(),
            &trainer.model.spec,
            dtype,
            how,
            table.micro_batches.max(1),
            tokens,
        )
    }

    fn steps(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<Outcome> {
        loop {
            if running.steps.is_some_and(|steps| self.progress.stage_step >= steps) {
                self.read(running, hooks)?;
                return Ok(Outcome::Finished);
            }
            if self.stop.load(Ordering::Relaxed) {
                self.read(running, hooks)?;
                self.save()?;
                return Ok(Outcome::Interrupted);
            }
            self.step(running, hooks)?;
            if self.saving.as_ref().is_some_and(Saving::is_over) {
                self.end_save()?;
            }
            if running.steps.is_none() {
                running.steps = self.decide(running)?;
            }
            if running.steps.is_some() && self.save_is_due() {
                self.read(running, hooks)?;
                self.save()?;
            }
        }
    }

    fn step(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<()> {
        let begun = Instant::now();
        let waited = running.source.wait_s();
        let table = &self.recipe.stage[running.index];
        let micro: Vec<MicroBatch> =
            (0..table.micro_batches.max(1)).map(|_| running.source.next()).collect::<Result<_>>()?;
        let data_wait_s = running.source.wait_s() - waited;
        // Before a timed stage knows its steps it is warming up, and the rate does not depend on their number.
        let schedule =
            stage::schedule(self.recipe, running.index, running.steps.unwrap_or(u64::from(u32::MAX)));
        let lr = schedule.rate(self.progress.stage_step);
        running.how.adamw.lr = lr as f32;

        let pool = &self.trainer.device.pool;
        pool.reset_peak();
        let watched = self.progress.stage_step == 1;
        if watched {
            pool.record();
        }
        self.trainer.counters.reset(watched && self.recipe.run.profile);
        let saving = &mut self.saving;
        let result = self.trainer.step_with(&micro, &running.how, || {
            // The save reads what the update is about to change.
            saving.iter_mut().for_each(Saving::release);
        })?;
        let counted = self.trainer.counters.get();
        if watched {
            self.timeline(running)?;
        }
        if let Some(spans) = &counted.spans {
            self.trace(running.index, begun, spans)?;
        }

        let step_s = begun.elapsed().as_secs_f64();
        running.times.push(step_s);
        let progress = &mut self.progress;
        progress.step += 1;
        progress.stage_step += 1;
        progress.tokens += result.tokens;
        progress.time_s += step_s;
        progress.cursor = serde_json::from_value(running.source.cursor()).ok();
        let event = events::Step {
            step: progress.step,
            stage: running.index as u64,
            tokens_total: progress.tokens,
            lr,
            tokens_per_s: result.tokens as f64 / step_s,
            model_tflops: counted.model_flops as f64 / step_s / 1e12,
            step_s,
            data_wait_s,
            pool_peak_bytes: self.trainer.device.pool.usage().peak_live,
            rss_bytes: rss::anonymous_bytes().unwrap_or(0),
            time_s: progress.time_s,
            ..events::Step::default()
        };
        let previous = running.pending.replace(Pending { result, event });
        self.report(running, previous, hooks)
    }

    /// Reads what the last step left on the device.
    fn read(&mut self, running: &mut Running, hooks: &mut dyn Hooks) -> Result<()> {
        let last = running.pending.take();
        self.report(running, last, hooks)
    }

    fn report(&mut self, running: &Running, pending: Option<Pending>, hooks: &mut dyn Hooks) -> Result<()> {
        let Some(Pending { result, mut event }) = pending else { return Ok(()) };
        let valid = result.valid.max(1) as f64;
        let mean = (f64::from(result.loss.wait_f32()) / valid) as f32;
        let (norm, skipped) = (result.norm.wait_f32(), result.skipped.wait_f32());
        (event.loss, event.loss_bits, event.grad_norm) = (f64::from(mean), mean.to_bits(), f64::from(norm));
        self.metrics.write(&Event::Step(event.clone()))?;
        // A step without a token to train on is skipped too, and finite.
        if skipped != 0.0 && !(mean.is_finite() && norm.is_finite()) {
            return Err(Error::NotFinite { step: event.step, loss: event.loss, norm: event.grad_norm });
        }
        let stage_step = self.progress.stage_step - (self.progress.step - event.step);
        hooks.step(&event, stage_step, running.steps)
    }

    /// The number of a timed stage's steps, if it was decided before. Kept in the folder so that a resumed run has the
    /// same schedule.
    fn decided(&self, index: usize) -> Result<Option<u64>> {
        let path = self.folder.join("steps.json");
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        let decided: Vec<u64> = serde_json::from_str(&text)
            .map_err(|error| Error::Checkpoint { path, message: error.to_string() })?;
        Ok(decided.get(index).copied())
    }

    /// Decides it from the steps so far, if they are enough.
    fn decide(&self, running: &Running) -> Result<Option<u64>> {
        let given = self.seconds.get(running.index).copied().unwrap_or(60.0);
        let seconds = (given + self.unspent_s).max(LEAST_SHARE * given);
        let spent: f64 = running.times.iter().sum();
        if running.times.len() < PROBE_STEPS && spent < PROBE_SHARE * seconds {
            return Ok(None);
        }
        // The first step touches fresh memory and is slower than the rest.
        let mut times = running.times[usize::from(running.times.len() > 1)..].to_vec();
        times.sort_by(f64::total_cmp);
        let more = ((seconds - spent).max(0.0) / times[times.len() / 2]) as u64;
        let steps = self.progress.stage_step + more;
        let mut decided: Vec<u64> =
            (0..running.index).map(|index| Ok(self.decided(index)?.unwrap_or(0))).collect::<Result<_>>()?;
        decided.push(steps);
        let path = self.folder.join("steps.json");
        crate::checkpoint::publish(&path, serde_json::json!(decided).to_string().as_bytes())?;
        Ok(Some(steps))
    }

    fn save_is_due(&self) -> bool {
        let table = &self.recipe.checkpoint;
        table.every_s.is_some_and(|every| self.last_save.elapsed().as_secs_f64() >= every)
            || table.every_steps.is_some_and(|every| self.progress.step.is_multiple_of(every.max(1)))
    }

    /// Begins a save; an earlier one ends first.
    fn save(&mut self) -> Result<()> {
        self.end_save()?;
        let begun = Instant::now();
        // What the checkpoint counts as done must be in the log before the checkpoint is there.
        self.metrics.sync()?;
        if !self.checkpoints.advance(&self.progress)? {
            let mut saving = self.checkpoints.begin(&self.trainer, &self.progress)?;
            saving.add_stall(begun.elapsed().as_secs_f64());
            self.saving = Some(saving);
        }
        self.last_save = Instant::now();
        Ok(())
    }

    /// Waits for the save that is being written, if there is one.
    fn end_save(&mut self) -> Result<()> {
        let Some(mut saving) = self.saving.take() else { return Ok(()) };
        let saved = saving.finish()?;
        let (step, stall_s) = (saving.step(), saving.stall_s());
        let event = events::Checkpoint { step, seconds: saved.seconds, stall_s, bytes: saved.bytes };
        Ok(self.metrics.write(&Event::Checkpoint(event))?)
    }

    fn timeline(&mut self, running: &Running) -> Result<()> {
        let marks = thin(self.trainer.device.pool.recorded(), TIMELINE_POINTS);
        let label = |mark: &Mark| match mark.layer {
            -1 => mark.op.to_string(),
            layer => format!("layer {layer} {}", mark.op),
        };
        let event = events::MemoryTimeline {
            step: self.progress.step + 1,
            stage: self.recipe.stage[running.index].name.clone(),
            categories: Category::ALL.iter().map(|category| category.name().to_string()).collect(),
            labels: marks.iter().map(label).collect(),
            live_bytes: (0..10)
                .map(|category| marks.iter().map(|mark| mark.by_category[category]).collect())
                .collect(),
            planned_peak_bytes: running.planned_peak,
        };
        Ok(self.metrics.write(&Event::MemoryTimeline(event))?)
    }

    fn trace(&self, index: usize, begun: Instant, spans: &[fathom_grad::Span]) -> Result<()> {
        let path = self.folder.join(format!("trace-{}.json", self.recipe.stage[index].name));
        let mut trace = TraceWriter::create(&path)?;
        for span in spans {
            let start_us = span.start.saturating_duration_since(begun).as_secs_f64() * 1e6;
            let (name, duration_us) = (span.name.clone(), span.seconds * 1e6);
            let args = vec![("layer".to_string(), span.layer.into())];
            trace.span(&trace::Span { name, start_us, duration_us, args, ..trace::Span::default() })?;
        }
        trace.finish()?;
        Ok(())
    }
}

/// At most about `points` marks: of each run of neighbours the one with the most live bytes, so that peaks survive.
fn thin(marks: Vec<Mark>, points: usize) -> Vec<Mark> {
    let width = marks.len().div_ceil(points).max(1);
    let live = |mark: &&Mark| mark.by_category.iter().sum::<u64>();
    marks.chunks(width).filter_map(|chunk| chunk.iter().max_by_key(live).cloned()).collect()
}

fn plan_event(stage: &str, plan: &Plan) -> events::Plan {
    let by_category =
        Category::ALL.iter().zip(plan.usage.peak_by_category).map(|(c, bytes)| (c.name().to_string(), bytes));
    events::Plan {
        stage: stage.to_string(),
        peak_live_bytes: plan.usage.peak_live,
        peak_reserved_bytes: plan.usage.peak_reserved,
        by_category: by_category.collect(),
        step_flops: plan.model_flops as f64,
    }
}

/// A rotary setting in words, e.g. `yarn, base 500000, up to 32768 tokens`.
fn describe_rope(spec: &Spec) -> String {
    let Some(rope) = spec.ropes.first() else { return "none".into() };
    let kind = serde_json::to_value(&rope.scaling)
        .ok()
        .and_then(|value| Some(value.get("rope_type")?.as_str()?.to_string()));
    format!("{}, base {}, up to {} tokens", kind.unwrap_or_default(), rope.theta, spec.max_positions)
}

pub(crate) fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
