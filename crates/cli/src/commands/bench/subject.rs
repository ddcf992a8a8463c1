//! Subject of the training benchmarks: a stage of a recipe, with random weights and tokens.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail};
use fathom_app::budgets::{budgets, sharing};
use fathom_app::library::{LIBRARY, layers, load};
use fathom_app::{Job, models};
use fathom_base::recipe::Layers;
use fathom_model::{Init, LoadedModel, Model, Spec, adapt, initialise};
use fathom_tensor::{Category, Device, Profile};
use fathom_text::pack::Facts;
use fathom_train::offload::{self, Room};
use fathom_train::recipe::{MachineKind, Memory, Recipe};
use fathom_train::{
    Budgets, Draft, InStep, MicroBatch, Plan, SourceTokens, StageSettings, Trainer, Workload, check_places,
    frozen, open_state_disk,
};

use super::peaks::scored;
use super::random::Random;
use crate::args::bench::Scores;
use crate::listen::Plain;
use crate::{choices, console};

/// Default recipe.
const MODEL: &str = include_str!("model.toml");

/// Builds the job from command-line words; the first is a recipe unless it is a setting.
///
/// # Errors
/// Those of recipes, and settings of tables that the benchmark ignores.
pub fn job(words: &[String], tables: &[&str]) -> Result<Job> {
    let (layers, settings) = match words.split_first() {
        Some((name, settings)) if !name.contains('=') => (layers(name, settings), settings),
        _ => (Layers::with_library(LIBRARY).text("bench", MODEL).sets(words), words),
    };
    let table =
        |setting: &String| setting.split(['.', '=']).next().is_some_and(|table| tables.contains(&table));
    if let Some(setting) = settings.iter().find(|setting| setting.contains('=') && !table(setting)) {
        bail!("{setting}: this benchmark looks at {} alone", tables.join(", "));
    }
    Ok(Job::new(load(layers)?, &Plain::default())?)
}

/// Opens a recipe's machine for one rank.
pub fn open(job: &Job) -> Result<Device> {
    if job.machine.asked.kind == MachineKind::Meta {
        bail!(
            "machine.kind=meta: there is nothing to measure on a machine without data but `fathom bench step`"
        );
    }
    Ok(job.machine.open()?)
}

/// A stage as a rank would run it within its share of `memory` bytes, unless the recipe sets a limit. The solver uses
/// files only if the recipe gives a place for them.
pub fn draft<'a>(
    (profile, memory): (&'a Profile, u64),
    spec: &'a fathom_model::Spec,
    job: &Job,
    index: usize,
    rank: usize,
) -> Draft<'a> {
    let recipe = job.recipe();
    let budgets = budgets(recipe, profile, memory, sharing(recipe, profile, job.world()));
    let machine = &recipe.machine;
    let files = machine.spill.is_some()
        || machine.disk_bytes.is_some()
        || recipe.activations.memory == Memory::Manual;
    let budgets = Budgets { disk: if files { budgets.disk } else { 0 }, ..budgets };
    Draft { profile, spec, recipe: recipe.clone(), index, budgets, rank }
}

/// A rank's part of a stage's step.
pub struct Subject {
    /// The trainer.
    pub trainer: Trainer,
    /// The plan of a step.
    pub plan: Plan,
    /// FLOPs of the last step over all ranks.
    pub model_flops: f64,
    how: InStep,
    batch: Vec<MicroBatch>,
    failed: Option<fathom_train::Error>,
}

impl Subject {
    /// Prepares everything that a step needs.
    ///
    /// # Errors
    /// A stage that does not fit the machine, and files that cannot be created.
    pub fn new(device: &Device, job: &Job, index: usize) -> Result<Subject> {
        Subject::warmed(device, job, (index, Scores::Flat), |_| Ok(()))
    }

    /// Like [`Subject::new`] with such scores, calling `first` with the workload before anything is allocated.
    pub fn warmed(
        device: &Device,
        job: &Job,
        (index, scores): (usize, Scores),
        first: impl FnOnce(&Workload<'_>) -> Result<()>,
    ) -> Result<Subject> {
        let (profile, recipe) = (device.machine.profile(), job.recipe());
        check_places(recipe, job.specs(), profile)?;
        let (memory, rank) = (device.pool.budget(), device.mesh.rank());
        let spec = scored(&job.stages[index].spec, scores, recipe.model.init_std);
        let mut draft = draft((profile, memory), &spec, job, index, rank);
        // The pool has this rank's share of the recipe's limit.
        draft.budgets.memory = memory;
        let StageSettings { how, plan, solution } = draft.check()?;
        if let Some(solution) = solution.filter(|_| rank == 0) {
            console::line(&choices::table(&solution));
        }
        let mut work = draft.workload()?;
        if how.ranks.grid.ranks() != device.mesh.grid().ranks() {
            bail!("mesh: this benchmark runs on one rank, the recipe on {}", how.ranks.grid.ranks());
        }
        work.how = how;
        // Plans have no learning rate.
        work.how.adamw.lr = recipe.optimizer.lr as f32;
        first(&work)?;
        Subject::of(device, recipe, &work, plan)
    }

    /// A rank's part of a workload with a known plan.
    pub fn of(device: &Device, recipe: &Recipe, work: &Workload<'_>, plan: Plan) -> Result<Subject> {
        let Workload { spec, how, tokens, .. } = work;
        let folder = recipe.machine.spill.as_deref().unwrap_or(Path::new("."));
        let (ranks, moments) = (&how.ranks, how.adamw.moments);
        device.pool.prepare(plan.usage.peak_reserved);
        let disk = open_state_disk(device, spec, work.dtype, how, folder)?;
        let portion = models::portion(device, spec, ranks)?;
        let part = (portion, how.goal.quantized.as_ref());
        let (mut model, mut params) = Model::declare_quantized(device, spec, work.dtype, disk, part);
        initialise(device, &model, &mut params, Init { deviation: recipe.model.init_std, seed: 1 });
        adapt(device, &model, &mut params, 1).map_err(anyhow::Error::msg)?;
        frozen(&mut model, &mut params, &how.goal.trained)?;
        let mut trainer = Trainer::sharded(device, model, params, ranks.sharding, moments);
        trainer.narrow(how.narrow.as_ref())?;
        trainer.offload = offload::open(device, &how.places, Room::of(&plan, folder, None))?;
        let teacher = how.goal.teacher.as_deref().map(|spec| teacher(device, spec, work)).transpose()?;
        trainer.teacher = teacher.map(Rc::new);
        let mut micro = random_batch(how.shape(*tokens), spec.vocab);
        if let Some(weigh) = how.goal.objective.weigh().filter(|weigh| weigh.compares().is_some()) {
            // Documents that are compared are rows, each of as many.
            let rows = micro.docs.len() / weigh.group();
            if rows < 2 {
                bail!(
                    "`samples_per_micro_batch`: documents of {} tokens are {}, which are not two rows of {} to compare; \
                     give shorter stages (stages=128) and more samples",
                    how.caps.seq_tokens,
                    micro.docs.len(),
                    weigh.group()
                );
            }
            micro.facts = Facts { width: 1, values: vec![0.0; rows * weigh.group()] };
        }
        if let Some(rows) = how.goal.objective.chosen(*tokens, how.caps.docs) {
            // The head's number of labels.
            let (every, labels) = (tokens.div_ceil(rows), micro.labels.iter_mut().enumerate());
            labels.filter(|(at, _)| !at.is_multiple_of(every)).for_each(|(_, label)| *label = -100);
        }
        let batch = vec![micro; work.micro_batches / ranks.grid.dp];
        Ok(Subject { trainer, plan, model_flops: 0.0, how: how.clone(), batch, failed: None })
    }

    /// Runs and awaits one step; other ranks join by [`Subject::follow`]. After a failure, reported by
    /// [`Subject::check`], it does nothing.
    pub fn step(&mut self) {
        self.begins(true);
        self.run();
    }

    /// Runs all steps of a rank other than 0.
    ///
    /// # Errors
    /// The first failure.
    pub fn follow(&mut self) -> Result<()> {
        while self.begins(false) && self.failed.is_none() {
            self.trainer.counters.reset(false);
            self.run();
        }
        self.check()
    }

    /// Announces that there are no more steps.
    ///
    /// # Errors
    /// The first failure of the steps.
    pub fn end(mut self) -> Result<()> {
        self.check()?;
        self.begins(false);
        Ok(())
    }

    /// # Errors
    /// The first failure of the steps so far.
    pub fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The parts of a step, for running it other than by [`Subject::step`].
    pub fn parts(&mut self) -> (&mut Trainer, &[MicroBatch], &InStep) {
        (&mut self.trainer, &self.batch, &self.how)
    }

    /// Share of the tokens that have labels.
    pub fn labelled(&self) -> f64 {
        let all: usize = self.batch.iter().map(|micro| micro.ids.len()).sum();
        self.batch.iter().map(MicroBatch::valid).sum::<u64>() as f64 / all as f64
    }

    fn run(&mut self) {
        if self.failed.is_some() {
            return;
        }
        match self.trainer.step(&self.batch, &self.how) {
            Ok(result) => {
                result.loss.wait_f32();
                self.model_flops = f64::from(result.model_flops.wait_f32());
            }
            Err(error) => self.failed = Some(error),
        }
    }

    /// Returns whether there is another step, as rank 0 decides.
    fn begins(&self, more: bool) -> bool {
        let device = &self.trainer.device;
        if device.mesh.grid().ranks() == 1 {
            return more;
        }
        let said = device.from_i32(&[i32::from(more)], Category::Data);
        device.mesh.everybody().broadcast(device, 0, &said);
        device.machine.read(&said).wait().first().is_some_and(|byte| *byte != 0)
    }
}

/// Random tokens in the shape of a micro-batch.
fn random_batch(shape: MicroBatch, vocab: usize) -> MicroBatch {
    let mut random = Random::new(shape.ids.len() as u64);
    let mut tokens = |ids: &[i32]| -> Vec<i32> { ids.iter().map(|_| random.below(vocab) as i32).collect() };
    let places = |docs: &[Range<usize>]| docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    let (ids, positions) = (tokens(&shape.ids), places(&shape.docs));
    let labels = ids[1..].iter().copied().chain([-100]).collect();
    let source = shape.source.map(|source| SourceTokens {
        ids: tokens(&source.ids),
        positions: places(&source.docs),
        docs: source.docs,
    });
    MicroBatch { ids, labels, positions, source, docs: shape.docs, ..MicroBatch::default() }
}

/// A teacher of this architecture with random weights.
fn teacher(device: &Device, spec: &Spec, work: &Workload<'_>) -> Result<LoadedModel> {
    let portion = models::portion(device, spec, &work.how.ranks)?;
    let (model, mut params) = Model::declare_part(device, spec, work.dtype, None, portion);
    initialise(device, &model, &mut params, Init::new(2));
    Ok(LoadedModel { device: device.clone(), model, params })
}
