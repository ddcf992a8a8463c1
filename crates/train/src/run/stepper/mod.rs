//! The stepper: the model with its optimizer, its data, and the settings of a stage's steps. It computes the next step,
//! and knows nothing of checkpoints and logs. `budget` computes what a stage may use, and `timed` the number of steps
//! of a stage with a time limit, from the durations in `pace`.

mod budget;
mod pace;
mod timed;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fathom_grad::{Params, Places};
use fathom_model::{LlamaSizes, Model, Spec};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{DType, Device, Meta};
use fathom_text::loader::Cursor;

use super::{Progress, Rebuild, StageTime};
use crate::error::{Error, Result};
use crate::in_step::InStep;
use crate::micro_batch::MicroBatch;
use crate::offload::{self, OpenEngines, Room};
use crate::picture::Subject;
use crate::plan::{StageSettings, Workload};
use crate::recipe::Recipe;
use crate::schedule::RateSchedule;
use crate::source::{Shape, Source, SourceReport, Sources, StepShare};
use crate::stage;
use crate::step::{StepResult, Trainer};
use pace::TimedStep;
use timed::{Length, TimeLimits};

/// Computes steps; see the module.
pub(super) struct Stepper<'a> {
    recipe: &'a Recipe,
    /// This rank's own folder, for offloaded values unless the recipe names another one.
    folder: PathBuf,
    trainer: Trainer,
    sources: Box<dyn Sources + 'a>,
    /// The specification before any stage.
    spec: Spec,
    /// Recreates this rank's part of the model in its state before the first step.
    rebuild: Option<Rebuild<'a>>,
    /// Capacity of the open offload engines: see [`OpenEngines`].
    opened: [Option<u64>; 2],
    /// Number of ranks that share this rank's disk.
    disk_sharers: usize,
    timed: TimeLimits<'a>,
}

/// Parts of a stepper other than its model.
pub(super) struct Supplies<'a> {
    /// Source of micro-batches.
    pub sources: Box<dyn Sources + 'a>,
    /// See [`super::RunParts::rebuild`].
    pub rebuild: Option<Rebuild<'a>>,
    /// See [`super::RunParts::disk_sharers`].
    pub disk_sharers: usize,
    /// See [`super::RunParts::time`].
    pub time: Option<&'a dyn StageTime>,
}

/// A stage in progress.
pub(super) struct InStage {
    index: usize,
    how: InStep,
    /// Bytes of its offloaded activations on the host and on disk.
    offloaded: [u64; 2],
    source: Box<dyn Source>,
    /// Number of its steps; initially unknown if the stage is timed.
    length: Length,
    /// The stage has a time limit, which determines the number of steps.
    is_timed: bool,
    /// Number of steps that share a rollout.
    round: u64,
    /// Steps taken by this process.
    made: Vec<TimedStep>,
}

/// Input of the next step.
pub(super) struct StepInput {
    micro_batches: Vec<MicroBatch>,
    /// Its learning rate.
    pub lr: f64,
    /// Seconds spent waiting for data.
    pub data_wait_s: f64,
    /// True if it has all micro-batches and tokens of the plan.
    pub full: bool,
}

impl InStage {
    /// Index of the stage.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Settings of its steps.
    pub fn how(&self) -> &InStep {
        &self.how
    }

    /// Number of steps, if decided.
    pub fn steps(&self) -> Option<u64> {
        match self.length {
            Length::Decided(steps) => Some(steps),
            Length::Likely(_) | Length::Unknown => None,
        }
    }

    /// Number of steps for computing learning rates.
    fn likely(&self) -> u64 {
        match self.length {
            Length::Decided(steps) | Length::Likely(steps) => steps,
            // An upper bound; warm-up given as a share of it is still at its very start.
            Length::Unknown => u64::from(u32::MAX),
        }
    }

    /// True if this process has not taken a step in the stage.
    pub fn is_fresh(&self) -> bool {
        self.made.is_empty()
    }

    /// True if all its steps are taken.
    pub fn is_done(&self, progress: &Progress) -> bool {
        self.steps().is_some_and(|steps| progress.stage_step >= steps)
    }

    /// Position in its data after the last step.
    pub fn cursor(&self) -> &Cursor {
        self.source.cursor()
    }

    /// Ends a step of `step_s` seconds that began at `progress`; returns the source's report.
    pub fn end_step(&mut self, step_s: f64, progress: &Progress) -> SourceReport {
        self.made.push(TimedStep { step_s, opens: progress.stage_step.is_multiple_of(self.round) });
        self.source.reported()
    }
}

impl<'a> Stepper<'a> {
    /// A stepper for a model in its current state; `folder` is this rank's own.
    pub fn new(recipe: &'a Recipe, folder: PathBuf, trainer: Trainer, supplies: Supplies<'a>) -> Stepper<'a> {
        let Supplies { sources, rebuild, disk_sharers, time } = supplies;
        let (spec, timed) = (trainer.model.spec.clone(), TimeLimits::new(&folder, time));
        let opened = [None; 2];
        Stepper { recipe, folder, trainer, sources, spec, rebuild, opened, disk_sharers, timed }
    }

    /// The model and its optimizer.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// The model and its optimizer, for loading another state.
    pub fn trainer_mut(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// Waits for exchanges of weights in flight.
    pub fn await_weights(&self) {
        self.trainer.params.settle(&self.trainer.device);
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.trainer.device
    }

    /// The trained model, after the last stage.
    pub fn into_trainer(self) -> Trainer {
        self.trainer
    }

    /// Sets the model's architecture to that at the end of `stages` stages.
    pub fn set_stages(&mut self, stages: usize) -> Result<()> {
        let spec = self.spec_after(stages)?;
        self.trainer.set_spec(spec);
        Ok(())
    }

    /// The specification at the end of `stages` stages.
    fn spec_after(&self, stages: usize) -> Result<Spec> {
        (0..stages)
            .try_fold(self.spec.clone(), |spec, index| stage::extend(&spec, &self.recipe.stage[index], index))
    }

    /// Names the current section of the run, and sets the deadline for other ranks in it.
    pub fn section(&self, name: &'static str, deadline_s: Option<f64>) {
        let deadline = deadline_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if let Some(link) = self.device().mesh.link() {
            link.section(name, deadline);
        }
    }

    /// Begins or continues a stage; returns the settings of its steps. All ranks call this together.
    pub fn enter(&mut self, index: usize, progress: &Progress) -> Result<(InStage, StageSettings)> {
        let recipe = self.recipe;
        self.set_stages(index + 1)?;
        // The old file is removed before the new one is planned.
        drop(self.pass_on());
        let settled = self.settle(index)?;
        let Room { host_bytes, disk_bytes, .. } = Room::of(&settled.plan, &self.folder, None);
        let offloaded = [host_bytes, disk_bytes];
        self.open(&settled.how.places, offloaded)?;
        let source = self.sources.open(recipe, index, self.share(index), progress.cursor.as_ref())?;
        let steps = recipe.stage[index].steps.or(self.sources.steps(recipe, index)?);
        let length = match steps {
            Some(steps) => Length::Decided(steps),
            None => {
                let known = match self.device().mesh.rank() {
                    0 => self.timed.enter(index, progress)?,
                    _ => Length::Unknown,
                };
                timed::agree(self.device(), known)
            }
        };
        let is_timed = steps.is_none();
        self.trainer.make_sums(&settled.how);
        let (how, round, made) = (settled.how.clone(), self.sources.round(recipe), Vec::new());
        let stage = InStage { index, how, offloaded, source, length, is_timed, round, made };
        Ok((stage, settled))
    }

    /// Share of a stage's tokens that are synthetic look-up drills.
    pub fn drill_share(&self, index: usize) -> Result<f64> {
        self.sources.drill_share(self.recipe, index)
    }

    /// Opens the offload engines.
    fn open(&mut self, places: &Places, [host_bytes, disk_bytes]: [u64; 2]) -> Result<()> {
        let recipe = self.recipe;
        let folder = recipe.machine.spill.as_deref().unwrap_or(&self.folder);
        let room = Room { folder, host_bytes, disk_bytes, chaos: stage::chaos(recipe) };
        self.opened = room.wanted(places);
        self.trainer.offload = offload::open(&self.trainer.device, places, room)?;
        Ok(())
    }

    /// Hands over the open offload engines, for the next run's turn.
    pub fn pass_on(&mut self) -> OpenEngines {
        OpenEngines { offload: self.trainer.offload.take(), bytes: std::mem::take(&mut self.opened) }
    }

    /// Takes the engines of the previous run; a stage that needs larger ones opens its own.
    pub fn take_over(&mut self, passed: OpenEngines, stage: Option<&InStage>) -> Result<()> {
        let Some(InStage { how, offloaded: [host_bytes, disk_bytes], .. }) = stage else { return Ok(()) };
        let room = Room { host_bytes: *host_bytes, disk_bytes: *disk_bytes, ..Room::endless() };
        if passed.serves(room.wanted(&how.places)) {
            (self.trainer.offload, self.opened) = (passed.offload, passed.bytes);
            return Ok(());
        }
        drop(passed);
        self.open(&how.places, [*host_bytes, *disk_bytes])
    }

    /// Takes the next step's micro-batches from the source, and its learning rate from the schedule.
    pub fn feed(&mut self, stage: &mut InStage, progress: &Progress) -> Result<StepInput> {
        self.trainer.number = progress.step + 1;
        let waited_s = stage.source.wait_s();
        let micro_batches = stage.source.step(&self.trainer)?;
        let data_wait_s = stage.source.wait_s() - waited_s;
        let lr = RateSchedule::new(self.recipe, stage.index, stage.likely()).rate(progress.stage_step);
        stage.how.adamw.lr = lr as f32;
        let full = self.is_full(stage.index, &micro_batches);
        Ok(StepInput { micro_batches, lr, data_wait_s, full })
    }

    /// True if a step has all micro-batches, with their maximum number of tokens.
    fn is_full(&self, index: usize, micro_batches: &[MicroBatch]) -> bool {
        let Shape { samples, seq_tokens, .. } = Shape::new(self.recipe, index);
        let has_all = |micro: &MicroBatch| micro.ids.len() >= samples * seq_tokens;
        micro_batches.len() >= self.share(index).own.len() && micro_batches.iter().all(has_all)
    }

    /// Computes a step, timing its passes from `since`; `before_update` is called after its gradients are complete and
    /// before anything is updated.
    pub fn step(
        &mut self,
        stage: &InStage,
        fed: &StepInput,
        since: Option<Instant>,
        before_update: impl FnOnce(&Device, &Params) -> Result<()>,
    ) -> Result<StepResult> {
        self.trainer.watch = since;
        let result = self.trainer.step_with(&fed.micro_batches, &stage.how, before_update)?;
        self.trainer.move_reference(self.trainer.number);
        Ok(result)
    }

    /// Decides the number of steps of a timed stage once enough were taken, and again after each, since the machine's
    /// speed changes. All ranks call this together.
    pub fn decide(&self, stage: &mut InStage, progress: &Progress) -> Result<()> {
        if stage.is_timed {
            let known = match self.device().mesh.rank() {
                0 => self.timed.decide(stage.index, (&stage.made, stage.round), progress, stage.length)?,
                _ => Length::Unknown,
            };
            stage.length = timed::agree(self.device(), known);
        }
        Ok(())
    }

    /// Seconds since the previous step ended, or the stage was entered.
    pub fn lap_s(&mut self) -> f64 {
        self.timed.lap_s()
    }

    /// Reopens a stage that had ended: a timed one decides its number of steps again.
    pub fn reopen(&mut self, progress: &Progress) -> Result<()> {
        match self.recipe.stage[progress.stage].steps {
            Some(_) => Ok(()),
            None => self.timed.reopen(progress),
        }
    }

    /// True if a failed rank can be rebuilt.
    pub fn can_rebuild(&self) -> bool {
        self.rebuild.is_some()
    }

    /// Abandons the operations of a failed step.
    pub fn abandon(&mut self, why: &Error) {
        if let Error::NotFinite { .. } = why {
            // All ranks are alive, so operations in flight complete; a link between processes cannot cancel them.
            self.trainer.params.settle(&self.trainer.device);
        }
        self.trainer.abandon();
        drop(self.pass_on());
    }

    /// Drops the model and its state before others are created in their memory; returns the device.
    pub fn vacate(&mut self) -> Device {
        let device = self.trainer.device.clone();
        self.trainer = placeholder(&device);
        device
    }

    /// Recreates the model in its state at the start of the run, over the base of `other` if that shares it.
    pub fn rebuild(&mut self, device: &Device, other: Option<&Trainer>) -> Result<()> {
        let Some(rebuild) = self.rebuild else {
            return Err(Error::Save("this run cannot restart a rank".into()));
        };
        self.trainer = rebuild(device, other)?;
        Ok(())
    }

    /// This rank's micro-batches of each step of a stage.
    fn share(&self, index: usize) -> StepShare {
        let mesh = &self.trainer.device.mesh;
        let all = self.recipe.stage[index].micro_batches.max(1);
        let (share, at) = (all / mesh.size(Axis::Dp), mesh.index(Axis::Dp));
        StepShare { all, own: at * share..(at + 1) * share }
    }

    /// The stage's step, for plans.
    pub fn subject<'b>(&'b self, stage: &InStage) -> Subject<'b> {
        let (table, trainer) = (&self.recipe.stage[stage.index], &self.trainer);
        let work = Workload {
            profile: trainer.device.machine.profile(),
            spec: Cow::Borrowed(&trainer.model.spec),
            dtype: trainer.model.dtype(&trainer.params),
            how: stage.how.clone(),
            micro_batches: table.micro_batches.max(1),
            tokens: table.seq_tokens * table.samples_per_micro_batch.max(1),
        };
        Subject { stage: &table.name, work }
    }
}

/// A tiny trainer on a machine without data, which stands in while a rank is rebuilt.
fn placeholder(device: &Device) -> Trainer {
    let meta = Device::new(Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX);
    let sizes = LlamaSizes {
        hidden: 2,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        ffn: 2,
        vocab: 2,
        rope_theta: 1e4,
        max_positions: 2,
        tied: true,
    };
    let (model, params) = Model::declare(&meta, &Spec::llama(sizes), DType::F32);
    Trainer::new(&meta, model, params)
}
