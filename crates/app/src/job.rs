//! A job as a value: a recipe, resolved once.

use std::path::{Path, PathBuf};

use fathom_base::recipe::Loaded;
use fathom_model::{EncoderHead, Spec, StateProjections, open_any_config, open_config};
use fathom_train::encoder::check_encoder;
use fathom_train::recipe::{LossName, MethodName, Recipe};
use fathom_train::stage::StagePlan;
use fathom_train::{HiddenLoss, adapted, new_model, stage, train_experts};

use crate::adapters::FOLDER;
use crate::error::{Error, Result, refuse};
use crate::events::Events;
use crate::library::{placed, report_fitted};
use crate::machine::Machine;
use crate::models::model_folder;

/// A recipe with everything that follows from it before anything runs. `plan`, `train` and `inspect` take one.
pub struct Job {
    /// The recipe, with the source of each of its values.
    pub loaded: Loaded<Recipe>,
    /// The stages, resolved; at least one.
    pub stages: Vec<StagePlan>,
    /// The specification after the last stage.
    pub trained: Spec,
    /// Hardware that the job runs on.
    pub machine: Machine,
    /// The run's folder.
    pub folder: PathBuf,
    /// Folder of the trained adapter, if it is outside the run's.
    pub exports: Option<PathBuf>,
}

impl Job {
    /// Resolves a recipe.
    ///
    /// # Errors
    /// A model that cannot be read, an impossible mesh, or stages that do not follow from each other, each with its
    /// place in the recipe.
    pub fn new(loaded: Loaded<Recipe>, events: &dyn Events) -> Result<Job> {
        let (stages, trained) = stages(&loaded.value).map_err(|error| placed(&loaded, error))?;
        report_fitted(&loaded, events);
        let machine = Machine::new(loaded.value.machine.clone(), events);
        let folder = loaded.value.run.out.clone();
        Ok(Job { loaded, stages, trained, machine, folder, exports: None })
    }

    /// The recipe's values.
    pub fn recipe(&self) -> &Recipe {
        &self.loaded.value
    }

    /// The specification before each stage.
    pub fn specs(&self) -> impl Iterator<Item = &Spec> + Clone {
        self.stages.iter().map(|stage| &stage.spec)
    }

    /// Returns whether the job trains one of several adapters of a run.
    pub fn is_one_of_several(&self) -> bool {
        self.exports.is_some()
    }

    /// Returns the number of ranks of the mesh, which is the same in every stage.
    pub fn world(&self) -> usize {
        self.stages[0].ranks().grid.ranks()
    }

    /// Adds the place of a value in the recipe to an error about it.
    pub fn placed(&self, error: Error) -> Error {
        placed(&self.loaded, error)
    }

    /// Path of the run's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    /// Path of the run's report.
    pub fn page(&self) -> PathBuf {
        self.folder.join("report.html")
    }

    /// Folder of the run's checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    /// Folder of the tokenized text.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Folder of the trained model.
    pub fn model(&self) -> PathBuf {
        self.folder.join("model")
    }

    /// Folder of the trained adapter.
    pub fn adapter(&self) -> PathBuf {
        self.exports.clone().unwrap_or_else(|| self.folder.join(FOLDER))
    }

    /// Returns the folder of the model that the recipe starts from, if any.
    ///
    /// # Errors
    /// No model there.
    pub fn start(&self) -> Result<Option<PathBuf>> {
        self.recipe().model.from.as_deref().map(model_folder).transpose()
    }
}

/// Returns the specification that a recipe starts from.
///
/// # Errors
/// A model that cannot be read.
pub fn first_spec(recipe: &Recipe) -> Result<Spec> {
    let mut spec = match &recipe.model.from {
        Some(folder) => open_any_config(&model_folder(folder)?)?.0,
        None => new_model(recipe)?,
    };
    train_experts(recipe, &mut spec)?;
    shaped(recipe, spec)
}

/// Adds the heads that the objective requires, and the adapter that is trained, to a specification.
///
/// # Errors
/// A model with other heads; an adapter that does not fit.
pub(crate) fn shaped(recipe: &Recipe, spec: Spec) -> Result<Spec> {
    check_encoder(recipe, &spec)?;
    let mut spec = if spec.encoder.is_some() {
        headed(recipe, spec)?
    } else {
        scoring(spec, recipe.objective.scores())?
    };
    if recipe.rl.has_values() {
        spec.scores = 1;
    }
    spec.projections = projections(recipe, &spec)?;
    Ok(adapted(recipe, spec)?)
}

/// Replaces the vocabulary head of a specification by one of `scores` scores; 0 leaves it unchanged.
///
/// # Errors
/// A model with another number of scores.
fn scoring(spec: Spec, scores: usize) -> Result<Spec> {
    match (spec.scores, scores) {
        (_, 0) => Ok(spec),
        (0, _) => Ok(spec.scoring(scores)),
        (has, _) if has == scores => Ok(spec),
        (has, _) => refuse!(
            "the model has {has} scores and the objective {scores}; start from another model (model.from)"
        ),
    }
}

/// Returns an encoder with the head that its objective trains.
fn headed(recipe: &Recipe, spec: Spec) -> Result<Spec> {
    let objective = &recipe.objective;
    let head = match (objective.method, objective.scores()) {
        (MethodName::Mlm, _) => EncoderHead::Masked,
        (MethodName::Classify, labels) if objective.loss == LossName::Tokens => EncoderHead::Tokens(labels),
        (_, 0) => EncoderHead::None,
        (_, labels) => EncoderHead::Text(labels),
    };
    let has = spec.encoder.as_ref().map_or(0, |parts| parts.head.labels());
    if has > 0 && head.labels() > 0 && has != head.labels() {
        refuse!(
            "the model has {has} labels and the objective {}; start from another model (model.from)",
            head.labels()
        );
    }
    Ok(spec.with_encoder_head(head))
}

/// Returns the projections that are trained to compare hidden states with those of a teacher of another width.
fn projections(recipe: &Recipe, spec: &Spec) -> Result<Option<StateProjections>> {
    let objective = &recipe.objective;
    let Some(teacher) = objective.runs_teacher().filter(|_| !objective.hidden_pairs.is_empty()) else {
        return Ok(None);
    };
    let columns = read_spec(teacher)?.hidden;
    // Invalid pairs are refused when the objective is made.
    let count = HiddenLoss::parse(&objective.hidden_pairs).map_or(0, |pairs| pairs.len());
    Ok((columns != spec.hidden && count > 0).then_some(StateProjections { count, columns }))
}

/// Returns the specification after the first `stages` stages.
pub(crate) fn after(recipe: &Recipe, stages: usize) -> Result<Spec> {
    let mut spec = first_spec(recipe)?;
    for (index, table) in recipe.stage.iter().enumerate().take(stages) {
        spec = stage::extend(&spec, table, index)?;
    }
    Ok(spec)
}

fn read_spec(folder: &Path) -> Result<Spec> {
    Ok(open_config(&model_folder(folder)?)?.0)
}

/// Returns the number of ranks of a recipe's mesh, without reading a model.
///
/// # Errors
/// An impossible mesh in any stage.
pub fn world(recipe: &Recipe) -> Result<usize> {
    let ranks = (0..recipe.stage.len()).map(|index| stage::ranks(recipe, index));
    let all = ranks.collect::<fathom_train::Result<Vec<_>>>()?;
    Ok(all.first().map_or(1, |ranks| ranks.grid.ranks()))
}

/// Returns the stages, and the specification after the last.
fn stages(recipe: &Recipe) -> Result<(Vec<StagePlan>, Spec)> {
    // An impossible mesh is refused before a model is read.
    world(recipe)?;
    let (stages, spec) = StagePlan::all(recipe, first_spec(recipe)?)?;
    if stages.is_empty() {
        refuse!("the recipe has no stage");
    }
    Ok((stages, spec))
}
