//! A job as a value: what a recipe comes to, resolved once.

use std::path::{Path, PathBuf};

use fathom_base::recipe::Loaded;
use fathom_model::{Spec, StateProjections, open_config};
use fathom_train::parallel::Ranks;
use fathom_train::recipe::Recipe;
use fathom_train::{Hidden, adapted, new_model, stage, train_experts};

use crate::adapters::FOLDER;
use crate::error::{Error, Result, refuse};
use crate::events::Events;
use crate::library::placed;
use crate::machine::Machine;
use crate::models::{model_folder, scoring};

/// A recipe with all that follows from it before anything runs. `plan`, `train` and `inspect` work on one.
pub struct Job {
    /// The recipe, and where each of its values was written.
    pub loaded: Loaded<Recipe>,
    /// The specification before each stage.
    pub specs: Vec<Spec>,
    /// The specification after the last one.
    pub trained: Spec,
    /// The mesh of each stage.
    pub ranks: Vec<Ranks>,
    /// What computes.
    pub machine: Machine,
    /// The run's folder.
    pub folder: PathBuf,
    /// Where its adapter is written, if not in that.
    pub exports: Option<PathBuf>,
}

impl Job {
    /// Resolves a recipe.
    ///
    /// # Errors
    /// A model that cannot be read, a mesh that cannot be, and stages that do not follow from each other, each with the place
    /// where that was written.
    pub fn new(loaded: Loaded<Recipe>, events: &dyn Events) -> Result<Job> {
        let resolve = || Ok((ranks(&loaded.value)?, specs(&loaded.value)?));
        let (ranks, (specs, trained)) = resolve().map_err(|error| placed(&loaded, error))?;
        let machine = Machine::new(loaded.value.machine.clone(), events);
        let folder = loaded.value.run.out.clone();
        Ok(Job { loaded, specs, trained, ranks, machine, folder, exports: None })
    }

    /// The recipe's values.
    pub fn recipe(&self) -> &Recipe {
        &self.loaded.value
    }

    /// Whether it is of one of several adapters in one run.
    pub fn is_one_of_several(&self) -> bool {
        self.exports.is_some()
    }

    /// Ranks of the whole mesh, the same in every stage.
    pub fn world(&self) -> usize {
        self.ranks[0].grid.ranks()
    }

    /// An error about a recipe's value, with the place where that was written.
    pub fn placed(&self, error: Error) -> Error {
        placed(&self.loaded, error)
    }

    /// The run's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    /// The run's page.
    pub fn page(&self) -> PathBuf {
        self.folder.join("report.html")
    }

    /// The folder of the run's checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    /// The folder of the text as tokens.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The folder of the trained model.
    pub fn model(&self) -> PathBuf {
        self.folder.join("model")
    }

    /// The folder of the trained adapter.
    pub fn adapter(&self) -> PathBuf {
        self.exports.clone().unwrap_or_else(|| self.folder.join(FOLDER))
    }

    /// The folder of the model that the recipe starts from, if it does from one.
    ///
    /// # Errors
    /// No model there.
    pub fn start(&self) -> Result<Option<PathBuf>> {
        self.recipe().model.from.as_deref().map(model_folder).transpose()
    }
}

/// The mesh of each stage.
///
/// # Errors
/// A mesh that cannot be.
pub fn ranks(recipe: &Recipe) -> Result<Vec<Ranks>> {
    Ok((0..recipe.stage.len())
        .map(|index| stage::ranks(recipe, index))
        .collect::<fathom_train::Result<_>>()?)
}

/// The specification that a recipe starts from.
///
/// # Errors
/// A model that cannot be read.
pub fn first_spec(recipe: &Recipe) -> Result<Spec> {
    let mut spec = match &recipe.model.from {
        Some(folder) => read_spec(folder)?,
        None => new_model(recipe)?,
    };
    train_experts(recipe, &mut spec)?;
    shaped(recipe, spec)
}

/// A model with the heads that its objective asks, and with the adapter that is trained.
///
/// # Errors
/// The model has other heads; an adapter that does not fit.
pub(crate) fn shaped(recipe: &Recipe, spec: Spec) -> Result<Spec> {
    let mut spec = scoring(spec, recipe.objective.scores())?;
    if recipe.rl.has_values() {
        spec.scores = 1;
    }
    spec.projections = projections(recipe, &spec)?;
    Ok(adapted(recipe, spec)?)
}

/// What is trained besides to compare hidden states with those of a teacher of another width.
fn projections(recipe: &Recipe, spec: &Spec) -> Result<Option<StateProjections>> {
    let objective = &recipe.objective;
    let Some(teacher) = objective.runs_teacher().filter(|_| !objective.hidden_pairs.is_empty()) else {
        return Ok(None);
    };
    let columns = read_spec(teacher)?.hidden;
    // Pairs that are none are refused where the objective is made.
    let count = Hidden::parse(&objective.hidden_pairs).map_or(0, |pairs| pairs.len());
    Ok((columns != spec.hidden && count > 0).then_some(StateProjections { count, columns }))
}

/// The specification after the first `stages` stages.
///
/// # Errors
/// As [`first_spec`], and stages that do not follow from each other.
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

/// The specification before each stage, and that after the last.
fn specs(recipe: &Recipe) -> Result<(Vec<Spec>, Spec)> {
    let mut spec = first_spec(recipe)?;
    let mut specs = Vec::new();
    for (index, table) in recipe.stage.iter().enumerate() {
        specs.push(spec.clone());
        spec = stage::extend(&spec, table, index)?;
    }
    if specs.is_empty() {
        refuse!("the recipe has no stage");
    }
    Ok((specs, spec))
}
