//! A rank of a run: its part of the model, and the work of the ranks after the first.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fathom_base::metrics::MetricsWriter;
use fathom_grad::Params;
use fathom_model::{
    Init, Model, ModelView, Spec, adapt, begin_as, initialise, initialise_induction, share_untrained,
};
use fathom_tensor::Device;
use fathom_text::Tokenizer;
use fathom_train::recipe::{AdapterName, InitName, QuantizationName, Recipe};
use fathom_train::stage::StagePlan;
use fathom_train::{
    Base, Hooks, InStep, Outcome, Rebuild, Reference, Refers, Run, RunParts, Sources, StageTime, Stores,
    Trainer, fault, frozen, open_state_disk, quantizes, rank_folder, together, train_experts,
};

use super::rewards::{Outside, rollouts};
use super::time::Timetable;
use crate::error::{Result, refuse};
use crate::events::{Events, Silent};
use crate::job::{Job, shaped};
use crate::judges::Judges;
use crate::models::{How, begin_scores, load_part, model_folder, portion};
use crate::text::tokenizer_dir;
use fathom_model::LoadedModel;

/// Inputs of every rank of a run, for one part of it: a model or an adapter.
pub struct RankInputs<'a> {
    /// Job of the part.
    pub job: &'a Job,
    /// Data of the job.
    pub stores: &'a Stores,
    /// Vocabulary size of the tokenizer.
    pub vocab: usize,
    /// Timetable of a timed run, on the process that decides how time is divided.
    pub time: Option<&'a Timetable>,
    /// Number of ranks whose files are on the same disk.
    pub disk_sharers: usize,
    /// Set to save and stop; checked by the first rank.
    pub stop: &'a Arc<AtomicBool>,
    /// Number of checkpoints asked for from outside so far.
    pub save_requests: &'a AtomicU64,
    /// Programs and functions that may take part.
    pub outside: Outside<'a>,
}

impl RankInputs<'_> {
    /// Makes a rank's trainer, sharing the base of another trainer if there is one.
    ///
    /// # Errors
    /// Those of [`trainer_of`].
    pub fn trainer(&self, device: &Device, other: Option<&Trainer>, events: &dyn Events) -> Result<Trainer> {
        match other {
            Some(other) => trainer_of_other(self.job, device, other, self.vocab),
            None => trainer_of(self.job, device, self.vocab, events),
        }
    }

    /// Makes a rank's trainer again after a failure.
    ///
    /// # Errors
    /// Those of [`trainer_of`].
    pub fn rebuilt(&self, device: &Device, other: Option<&Trainer>) -> fathom_train::Result<Trainer> {
        self.trainer(device, other, &Silent).map_err(|error| fathom_train::Error::Hook(error.into()))
    }

    /// Opens a rank's part of the run in its folder; `rebuild` makes its trainer again if a rank fails, and `judges`
    /// score answers.
    ///
    /// # Errors
    /// A damaged checkpoint.
    pub fn run<'r>(
        &'r self,
        metrics: MetricsWriter,
        trainer: Trainer,
        (rebuild, judges): (Rebuild<'r>, &Judges),
    ) -> Result<Run<'r>> {
        let rank = trainer.device.mesh.rank();
        let sources = self.sources(judges)?;
        let parts = RunParts {
            recipe: self.job.recipe(),
            folder: &self.job.folder,
            trainer,
            sources,
            metrics,
            time: self.time.map(|time| time as &dyn StageTime),
            disk_sharers: self.disk_sharers,
            stop: self.stop,
            save_requests: Some(self.save_requests),
            rebuild: Some(rebuild),
            base: self.base(rank)?,
        };
        let parts = match &self.job.recipe().machine.fault {
            None => parts,
            Some(faults) => fault::around(parts, faults, self.stop)?,
        };
        Ok(Run::open(parts)?)
    }

    /// Returns the source of micro-batches.
    fn sources(&self, judges: &Judges) -> Result<Box<dyn Sources>> {
        if self.job.recipe().rl.is_on() {
            return Ok(Box::new(rollouts(self.job, judges, &self.outside)?));
        }
        Ok(Box::new(self.stores.clone()))
    }

    /// Returns the model that checkpoints of trained weights alone refer to; the first rank hashes it.
    fn base(&self, rank: usize) -> Result<Option<Base>> {
        let recipe = self.job.recipe();
        // Quantized weights are only in the base.
        let adapts = recipe.adapter.method != AdapterName::None;
        let packs = recipe.model.quantization != QuantizationName::None;
        if !recipe.checkpoint.trained_only && !packs && !adapts {
            return Ok(None);
        }
        Ok(match self.job.start()? {
            Some(folder) if rank == 0 => Some(Base::of(&folder)?),
            Some(folder) => Some(Base::unhashed(&folder)),
            None => None,
        })
    }
}

/// Makes a rank's trainer: its part of the model that the recipe starts from, for a tokenizer of `vocab` tokens.
///
/// # Errors
/// A model that cannot be read, or whose embedding has too few rows.
fn trainer_of(job: &Job, device: &Device, vocab: usize, events: &dyn Events) -> Result<Trainer> {
    let (recipe, StagePlan { spec, how, dtype }) = (job.recipe(), &job.stages[0]);
    let spill = recipe.machine.spill.as_deref().unwrap_or(&job.folder);
    let disk = |spec: &Spec, dtype| Ok(open_state_disk(device, spec, dtype, how, spill)?);
    let (ranks, quantized) = (&how.ranks, how.goal.quantized.as_ref());
    let adapt = |spec: Spec| shaped(recipe, spec);
    let (model, mut params) = match job.start()? {
        Some(folder) => {
            let part = How { disk: &disk, ranks, quantized, adapt: &adapt };
            let LoadedModel { mut model, mut params, .. } =
                load_part(device, &folder, Some(*dtype), &part, events)?;
            train_experts(recipe, &mut model.spec)?;
            follow_width(recipe, &mut model, &mut params);
            (model, params)
        }
        None => {
            let spec = Spec { vocab: vocab.next_multiple_of(64), ..spec.clone() };
            let portion = portion(device, &spec, ranks)?;
            quantizes(quantized, &spec, &portion)?;
            let disk = disk(&spec, *dtype)?;
            let (mut model, mut params) =
                Model::declare_quantized(device, &spec, *dtype, disk, (portion, quantized));
            follow_width(recipe, &mut model, &mut params);
            let init = Init { deviation: recipe.model.init_std, seed: recipe.run.seed };
            match recipe.model.init {
                InitName::Normal => initialise(device, &model, &mut params, init),
                InitName::Induction => initialise_induction(device, &model, &mut params, init),
            }
            (model, params)
        }
    };
    has_rows(&model, vocab)?;
    begin_adapter(job, device, &model, &mut params)?;
    let mut trainer = trained_by(how, device, (model, params))?;
    trainer.round_to(how.round_to)?;
    if let Some(reference) = reference(job, &trainer)? {
        trainer.refer_to(reference);
    }
    trainer.teacher = teacher(job, device)?.map(Rc::new);
    trainer.make_sums(how);
    Ok(trainer)
}

/// Follows muP if the recipe has its width.
fn follow_width(recipe: &Recipe, model: &mut Model, params: &mut Params) {
    if let Some(width) = recipe.model.mup_width {
        model.follow_width(params, model.spec.hidden as f64 / width as f64);
    }
}

/// A trainer of a model's part, by the settings of the first stage.
fn trained_by(how: &InStep, device: &Device, (mut model, mut params): (Model, Params)) -> Result<Trainer> {
    frozen(&mut model, &mut params, &how.goal.trained)?;
    let mut trainer = Trainer::sharded(device, model, params, how.ranks.sharding, how.adamw.moments);
    trainer.narrow(how.narrow.as_ref())?;
    Ok(trainer)
}

/// [`trainer_of`], for another adapter over the base of an existing trainer, with the reference and teacher of that
/// trainer.
///
/// # Errors
/// A model whose embedding has too few rows.
fn trainer_of_other(job: &Job, device: &Device, other: &Trainer, vocab: usize) -> Result<Trainer> {
    let StagePlan { spec, how, .. } = &job.stages[0];
    let (model, mut params) =
        share_untrained(ModelView { device, model: &other.model, params: &other.params }, spec);
    has_rows(&model, vocab)?;
    if let Some(folder) = job.start()? {
        begin_scores(device, &folder, &model, &params)?;
    }
    begin_adapter(job, device, &model, &mut params)?;
    let mut trainer = trained_by(how, device, (model, params))?;
    trainer.ask_whom(other);
    trainer.make_sums(how);
    Ok(trainer)
}

/// Refuses a model whose embedding has fewer rows than there are tokens.
fn has_rows(model: &Model, vocab: usize) -> Result<()> {
    let have = model.spec.vocab;
    if have < vocab {
        refuse!(
            "the tokenizer has {vocab} tokens and the model's embedding {have} rows; give data.tokenizer the model's own"
        );
    }
    Ok(())
}

/// Returns the reference that steps compare with, if it is in memory: a rank's part of the model that the run starts
/// from, or the policy with its adapter switched off.
fn reference(job: &Job, trainer: &Trainer) -> Result<Option<Reference>> {
    let (recipe, StagePlan { how, dtype, .. }) = (job.recipe(), &job.stages[0]);
    let (refers, mut start) = (how.goal.refers, job.start()?);
    if let Some(given) = recipe.rl.reference.as_ref().filter(|_| recipe.rl.has_reference()) {
        start = Some(model_folder(given)?);
    }
    Ok(match (refers, start) {
        (Refers::Not, _) => None,
        (Refers::AdapterOff, _) => Some(Reference::adapter_off(&trainer.model)),
        (Refers::Copy, None) => {
            refuse!("the run compares with a copy of a model, and there is none; give model.from=DIR")
        }
        (Refers::Copy, Some(folder)) => {
            let disk = |_: &Spec, _| Ok(trainer.params.disk().cloned());
            let part = How { disk: &disk, ranks: &how.ranks, quantized: None, adapt: &Ok };
            let loaded = load_part(&trainer.device, &folder, Some(*dtype), &part, &Silent)?;
            let LoadedModel { mut model, mut params, .. } = loaded;
            if recipe.sync().is_some() {
                // Checkpoints hold the same weights of the reference as of the policy.
                frozen(&mut model, &mut params, &how.goal.trained)?;
            }
            Some(Reference::copy(model, params, recipe.sync()))
        }
    })
}

/// Loads a rank's part of a teacher that runs in every step.
fn teacher(job: &Job, device: &Device) -> Result<Option<LoadedModel>> {
    let stage = &job.stages[0];
    let Some(folder) = job.recipe().objective.runs_teacher() else { return Ok(None) };
    let part = How { disk: &|_, _| Ok(None), ranks: stage.ranks(), quantized: None, adapt: &Ok };
    load_part(device, &model_folder(folder)?, Some(stage.dtype), &part, &Silent).map(Some)
}

/// Initializes the weights of an adapter and sets their learning rates.
fn begin_adapter(job: &Job, device: &Device, model: &Model, params: &mut Params) -> Result<()> {
    let recipe = job.recipe();
    let refuse = |message| fathom_train::Error::Recipe { key: "adapter.method".into(), message };
    adapt(device, model, params, recipe.run.seed).map_err(refuse)?;
    if let Some(text) = recipe.adapter.prompt_text.as_ref().filter(|_| device.machine.has_data()) {
        // Encoded as by Transformers' tokenizers, which PEFT uses.
        let ids = Tokenizer::from_dir(tokenizer_dir(&job.data()))?.encode_prompt(text)?;
        if ids.is_empty() || ids.iter().any(|id| *id as usize >= model.spec.vocab) {
            let message = "has no token that the model has an embedding of".to_string();
            return Err(fathom_train::Error::Recipe { key: "adapter.prompt_text".into(), message }.into());
        }
        begin_as(device, model, params, &ids);
    }
    if let Some(ratio) = recipe.adapter.lr_ratio {
        model.scale_rates(params, ratio as f32);
    }
    if let Some(ratio) = recipe.adapter.embedding_lr_ratio {
        model.scale_embedding_rates(params, ratio as f32);
    }
    Ok(())
}

/// Opens a rank's part of all parts of a run, over one base, each with its log. `made` gets each trainer, by its index,
/// and its log before its run opens.
///
/// # Errors
/// Those of [`trainer_of`] and [`RankInputs::run`], and of `made`.
pub fn open_runs<'r>(
    parts: &[&'r RankInputs<'r>],
    rebuilds: &'r [impl Fn(&Device, Option<&Trainer>) -> fathom_train::Result<Trainer>],
    (device, logs): (&Device, Vec<MetricsWriter>),
    events: &dyn Events,
    made: &mut dyn FnMut(usize, &Trainer, &mut MetricsWriter) -> Result<()>,
) -> Result<Vec<Run<'r>>> {
    let mut trainers: Vec<Trainer> = Vec::new();
    for part in parts {
        let trainer = part.trainer(device, trainers.first(), events)?;
        trainers.push(trainer);
    }
    // The runs keep those that they use.
    let judges = Judges::on(device);
    let mut runs = Vec::new();
    let ready = parts.iter().zip(trainers).zip(rebuilds).zip(logs);
    for (index, (((part, trainer), rebuild), mut log)) in ready.enumerate() {
        made(index, &trainer, &mut log)?;
        runs.push(part.run(log, trainer, (rebuild, &judges))?);
    }
    Ok(runs)
}

/// Returns the functions that make the trainers of all parts of a run again.
pub fn rebuilds<'a>(
    parts: &[&'a RankInputs<'a>],
) -> Vec<impl Fn(&Device, Option<&Trainer>) -> fathom_train::Result<Trainer> + use<'a>> {
    parts
        .iter()
        .copied()
        .map(|shared| move |device: &Device, other: Option<&Trainer>| shared.rebuilt(device, other))
        .collect()
}

/// Runs the part of a rank other than the first: the steps, and its share of checkpoints. Each rank writes a log into
/// its own folder.
///
/// Those of the rank.
pub fn follow(parts: &[RankInputs<'_>], device: Device) -> Result<Outcome> {
    let parts: Vec<&RankInputs<'_>> = parts.iter().collect();
    let rebuilds = rebuilds(&parts);
    let log = |part: &&RankInputs<'_>| -> Result<MetricsWriter> {
        let own = rank_folder(&part.job.folder, device.mesh.rank());
        std::fs::create_dir_all(&own)?;
        Ok(MetricsWriter::open(own.join("metrics.jsonl"))?)
    };
    let logs = parts.iter().map(log).collect::<Result<_>>()?;
    let mut runs = open_runs(&parts, &rebuilds, (&device, logs), &Silent, &mut |_, _, _| Ok(()))?;
    let mut unwatched: Vec<NoHooks> = runs.iter().map(|_| NoHooks).collect();
    let mut hooks: Vec<&mut dyn Hooks> = unwatched.iter_mut().map(|one| one as &mut dyn Hooks).collect();
    let outcome = together(&mut runs, &mut hooks)?;
    if outcome == Outcome::Finished {
        runs.into_iter().try_for_each(|run| run.finish().1.sync())?;
    }
    Ok(outcome)
}

/// Hooks that do nothing.
struct NoHooks;

impl Hooks for NoHooks {}
