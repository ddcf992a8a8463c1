//! The loop: stages of steps, with metrics, saves and resumption.
//!
//! This file begins and ends stages; `budget` says what one may use, `steps` makes its steps, `timed` decides their number where it
//! has seconds, `more` reopens one that ended and has more of them now, `watched` looks closely at one step of each, `lanes` at who does what when in it, `saves` writes checkpoints. What
//! keeps a run of several ranks alive: `pulse` (what ranks tell each other after a step), `memory` and `local` (copies of their
//! state), `recover` (going back to one), `corrupt` and `stragglers` (ranks that compute something else, or slowly).

mod budget;
mod corrupt;
mod lanes;
mod local;
mod memory;
mod more;
mod pulse;
mod recover;
mod saves;
mod steps;
mod stragglers;
mod timed;
mod together;
mod watched;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fathom_base::metrics::{Event, MetricsWriter, events};
use fathom_model::Spec;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Device, Usage};
use fathom_text::loader::Cursor;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Base, Checkpoints, Saving};
use crate::error::{Error, Result};
use crate::fault::Faults;
use crate::offload::{self, Room};
use crate::picture::Subject;
use crate::plan::{Plan, Settled, Workload};
use crate::recipe::Recipe;
use crate::source::{Share, Source, Sources};
use crate::stage;
use crate::step::{InStep, StepResult, Trainer};
use local::Local;
use memory::Memory;
use recover::{Failed, Recovering};
use stragglers::Stragglers;
pub use together::together;

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
    fn stage(&mut self, stage: &events::Stage, settled: &Settled);
    /// Something is not as it should be, and the run goes on.
    fn warn(&mut self, text: &str);
    /// A step ended.
    ///
    /// # Errors
    /// Ends the run.
    fn step(&mut self, step: &events::Step, stage_step: u64, stage_steps: Option<u64>) -> Result<()>;
    /// Seconds of a timed run that are set aside for what follows the steps of a stage. What it takes more or less changes the steps
    /// of later stages.
    fn aside_s(&self, _index: usize) -> f64 {
        0.0
    }
    /// A stage ended after `step` updates; the model is as it is now, and saved. Called again if the run is killed before it
    /// returns.
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

/// A run in its folder.
pub struct Run<'a> {
    recipe: &'a Recipe,
    folder: PathBuf,
    trainer: Trainer,
    sources: Box<dyn Sources + 'a>,
    metrics: MetricsWriter,
    checkpoints: Checkpoints,
    progress: Progress,
    /// Seconds of each stage, for stages without steps.
    seconds: Vec<f64>,
    /// Ranks that share the disk behind this one's memory.
    disk_sharers: usize,
    /// Seconds that earlier stages of this process left over (negative: overran): a stage's first steps decide the number of its
    /// steps, and the machine's speed changes.
    unspent_s: f64,
    /// The specification before any stage.
    spec: Spec,
    stop: &'a AtomicBool,
    last_save: Instant,
    /// The step's memory timeline is short enough to record.
    recordable: bool,
    /// The save that is being written.
    saving: Option<Saving>,
    /// Why the last save failed.
    unsaved: Option<String>,
    /// What the first warnings are: of the checkpoint that the run goes on from.
    notes: Vec<String>,
    /// Makes this rank's part of the model as it was before the first step.
    anew: Option<Anew<'a>>,
    /// Failures after which the run may still go on.
    restarts: u64,
    /// Copies of ranks' states.
    memory: Memory,
    /// Copies of this rank's on its machine's own disk.
    local: Option<Local>,
    recovering: Option<Recovering>,
    stragglers: Stragglers,
    faults: Faults,
    /// What this rank's last step took without waiting for others.
    busy_s: f64,
}

/// Makes a rank's part of the model on a device as it was before the first step.
pub type Anew<'a> = &'a dyn Fn(&Device) -> Result<Trainer>;

/// What a run is made of.
pub struct Parts<'a> {
    /// Its recipe.
    pub recipe: &'a Recipe,
    /// Its folder.
    pub folder: &'a Path,
    /// The model, as initialised or imported.
    pub trainer: Trainer,
    /// Its data.
    pub sources: Box<dyn Sources + 'a>,
    /// Its log.
    pub metrics: MetricsWriter,
    /// Seconds of each stage, for stages without steps.
    pub seconds: Vec<f64>,
    /// Ranks that share the disk behind this one's memory, itself among them.
    pub disk_sharers: usize,
    /// Set from outside to save and stop.
    pub stop: &'a AtomicBool,
    /// Makes the trainer again, for ranks that fail; `None`: a failure ends the run.
    pub anew: Option<Anew<'a>>,
    /// Checkpoints have the trained part alone, over this model; `None`: the whole model.
    pub base: Option<Base>,
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
    source: Box<dyn Source>,
    steps: Option<u64>,
    times: Vec<f64>,
    /// Whether some rank wanted to stop, and the first to save, after the last step.
    agreed: [bool; 2],
    pending: Option<Pending>,
    planned: Usage,
}

impl<'a> Run<'a> {
    /// Takes up the last checkpoint of the folder, if there is one.
    ///
    /// # Errors
    /// A damaged checkpoint, by name.
    pub fn open(parts: Parts<'a>) -> Result<Run<'a>> {
        let Parts {
            recipe,
            folder,
            mut trainer,
            sources,
            mut metrics,
            seconds,
            disk_sharers,
            stop,
            anew,
            base,
        } = parts;
        let faults = stage::faults(recipe)?;
        let checkpoints = Checkpoints::new(&folder.join("checkpoints"), recipe.checkpoint.keep).over(base);
        let spec = trainer.model.spec.clone();
        let device = trainer.device.clone();
        let local = recipe.checkpoint.local.as_deref();
        let local = local.map(|local| Local::open(&device, local, folder)).transpose()?;
        let saved = checkpoints.load_latest(&mut trainer)?;
        let notes = checkpoints.note().into_iter().collect();
        let copy = match &local {
            Some(local) => local.newest(&device, saved.as_ref().map(|saved| saved.step))?,
            None => None,
        };
        let progress = match (copy, saved) {
            (Some(copy), _) => Some(copy.restore(&mut trainer)?),
            (None, saved) => saved,
        };
        trainer.round();
        let stages = recipe.stage.len();
        if let Some(Err(message)) = progress.as_ref().map(|progress| progress.check_stage(stages)) {
            return Err(Error::Checkpoint { path: folder.join("checkpoints"), message });
        }
        let progress = match progress {
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
        let last_save = Instant::now();
        let stragglers = Stragglers::new(*trainer.device.mesh.grid());
        let folder = own_folder(folder, trainer.device.mesh.rank());
        let faults = faults.remember(&folder.join("faults"));
        let mut run = Run {
            recipe,
            folder,
            trainer,
            sources,
            metrics,
            checkpoints,
            progress,
            seconds,
            disk_sharers,
            unspent_s: 0.0,
            spec,
            stop,
            last_save,
            recordable: true,
            saving: None,
            unsaved: None,
            notes,
            anew,
            restarts: recipe.mesh.restarts,
            memory: Memory::default(),
            local,
            recovering: None,
            stragglers,
            faults,
            busy_s: 0.0,
        };
        run.reopen()?;
        Ok(run)
    }

    /// Why no checkpoint could be saved, if none ever was.
    pub fn nothing_saved(&self) -> Option<&str> {
        self.unsaved.as_deref().filter(|_| self.checkpoints.latest().is_none())
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
        let spec = self.spec_after(self.progress.stage)?;
        self.trainer.set_spec(spec);
        work(&self.trainer, &mut self.metrics)
    }

    /// Runs all stages that are left.
    ///
    /// # Errors
    /// Whatever ends a run early; what was saved stays.
    pub fn train(&mut self, hooks: &mut dyn Hooks) -> Result<Outcome> {
        let outcome = self.stages_in_spite_of_failures(hooks)?;
        self.ended(outcome)
    }

    /// How the run ended, if what it was asked to save is saved.
    fn ended(&self, outcome: Outcome) -> Result<Outcome> {
        match (&self.unsaved, outcome) {
            (Some(why), Outcome::Interrupted) => {
                let step = self.progress.step;
                Err(Error::Save(format!("asked to stop after step {step}, which could not be saved: {why}")))
            }
            _ => Ok(outcome),
        }
    }

    /// Runs the stages; goes back a few steps when a rank fails, as often as the recipe allows.
    fn stages_in_spite_of_failures(&mut self, hooks: &mut dyn Hooks) -> Result<Outcome> {
        loop {
            let device = self.trainer.device.clone();
            if self.restarts == 0 || self.anew.is_none() {
                return self.stages(hooks);
            }
            // A rank that is begun anew keeps nothing of what a panic may have left half made.
            let ended = catch_unwind(AssertUnwindSafe(|| self.stages(hooks)));
            let failed = match ended {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(error)) => Failed::of(&device, error)?,
                Err(panic) => Failed::panic(&device, panic.as_ref()),
            };
            self.restarts -= 1;
            self.recover(failed, hooks)?;
        }
    }

    fn stages(&mut self, hooks: &mut dyn Hooks) -> Result<Outcome> {
        self.begin(hooks)?;
        while self.progress.stage < self.recipe.stage.len() {
            let mut running = self.enter(self.progress.stage, hooks)?;
            if self.steps(&mut running, hooks)? == Outcome::Interrupted {
                self.end_save(hooks)?;
                return Ok(Outcome::Interrupted);
            }
            self.leave(running, hooks)?;
        }
        self.end_save(hooks)?;
        Ok(Outcome::Finished)
    }

    /// What comes before the first stage.
    fn begin(&mut self, hooks: &mut dyn Hooks) -> Result<()> {
        // There may be no stage left to enter, and what is exported is the model as it is after the last.
        let spec = self.spec_after(self.progress.stage)?;
        self.trainer.set_spec(spec);
        std::mem::take(&mut self.notes).iter().for_each(|note| hooks.warn(note));
        self.section("setup", None);
        self.copy_if_first()
    }

    /// What follows the steps of a stage.
    fn leave(&mut self, running: Running, hooks: &mut dyn Hooks) -> Result<()> {
        let index = running.index;
        let given = self.seconds.get(index).copied().unwrap_or(0.0);
        self.unspent_s += given - self.progress.stage_time_s;
        let ended = Instant::now();
        drop(running);
        self.save(hooks)?;
        // Published before anybody measures, which may take longer than what asks the run to end waits.
        self.end_save(hooks)?;
        hooks.stage_done(&self.trainer, index, self.progress.step, &mut self.metrics)?;
        self.progress = self.progress.after_stage(self.recipe.run.minutes);
        self.save(hooks)?;
        self.unspent_s += hooks.aside_s(index) - ended.elapsed().as_secs_f64();
        Ok(())
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
        let spec = self.spec_after(index + 1)?;
        self.trainer.set_spec(spec);
        // The old file goes before the new one is planned. Other lengths take other times.
        self.trainer.offload = None;
        self.stragglers = Stragglers::new(*self.trainer.device.mesh.grid());
        let settled = self.settle(index)?;
        let Settled { how, plan, .. } = &settled;
        let folder = recipe.machine.spill.as_deref().unwrap_or(&self.folder);
        let room = Room::of(plan, folder, stage::chaos(recipe));
        self.trainer.offload = offload::open(&self.trainer.device, &how.places, room)?;
        let source = self.sources.open(recipe, index, self.share(index), self.progress.cursor.as_ref())?;
        let steps = match table.steps.or(self.sources.steps(recipe, index)?) {
            Some(steps) => Some(steps),
            None => self.agree_steps(self.decided(index)?),
        };
        let event = events::Stage {
            name: table.name.clone(),
            index: index as u64,
            seq_len_tokens: table.seq_tokens as u64,
            start_step: self.progress.step,
            steps: steps.unwrap_or(0),
            rope: describe_rope(&self.trainer.model.spec),
        };
        hooks.stage(&event, &settled);
        if self.progress.stage_step == 0 {
            self.metrics.write(&Event::Stage(event))?;
            self.foretell(index, how, plan)?;
        }
        let Settled { how, plan: Plan { usage: planned, .. }, .. } = settled;
        Ok(Running {
            index,
            how,
            source,
            steps,
            times: Vec::new(),
            agreed: [false; 2],
            pending: None,
            planned,
        })
    }

    /// This rank's micro batches of each step of a stage.
    fn share(&self, index: usize) -> Share {
        let mesh = &self.trainer.device.mesh;
        let all = self.recipe.stage[index].micro_batches.max(1);
        let (share, at) = (all / mesh.size(Axis::Dp), mesh.index(Axis::Dp));
        Share { all, own: at * share..(at + 1) * share }
    }

    /// The step of a stage, for plans.
    fn subject<'b>(&'b self, index: usize, how: &InStep) -> Subject<'b> {
        let (table, trainer) = (&self.recipe.stage[index], &self.trainer);
        let work = Workload {
            profile: trainer.device.machine.profile(),
            spec: Cow::Borrowed(&trainer.model.spec),
            dtype: trainer.model.dtype(&trainer.params),
            how: how.clone(),
            micro_batches: table.micro_batches.max(1),
            tokens: table.seq_tokens * table.samples_per_micro_batch.max(1),
        };
        Subject { stage: &table.name, work }
    }
}

/// What a rank has to itself: everything but the checkpoints, which ranks share.
fn own_folder(folder: &Path, rank: usize) -> PathBuf {
    if rank == 0 { folder.to_path_buf() } else { rank_folder(folder, rank) }
}

/// The folder of a rank other than the first, inside a run's.
pub fn rank_folder(folder: &Path, rank: usize) -> PathBuf {
    folder.join("ranks").join(rank.to_string())
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
