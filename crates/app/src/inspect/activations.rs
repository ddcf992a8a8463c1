//! Activations of a job's stages: name, shape, bytes and place of each.

use fathom_train::activations::Segment;
use fathom_train::{Draft, Workload};

use crate::budgets::{budgets, sharing};
use crate::error::{Result, caught};
use crate::job::Job;
use crate::resources;

/// Activations of a stage.
pub struct Activations {
    /// Name of the stage.
    pub stage: String,
    /// Tokens per micro-batch.
    pub tokens: usize,
    /// Number of ranks and description of the mesh, if it has more than one rank.
    pub mesh: Option<(usize, String)>,
    /// Segments of the stage.
    pub segments: Vec<Segment>,
}

/// Returns the activations of each stage of a job.
///
/// # Errors
/// An invalid recipe, with the place where it is wrong.
pub fn activations(job: &Job) -> Result<Vec<Activations>> {
    caught(|| (0..job.stages.len()).map(|index| of_stage(job, index)).collect())
        .map_err(|error| job.placed(error))
}

fn of_stage(job: &Job, index: usize) -> Result<Activations> {
    let (profile, recipe) = (&job.machine.profile()?, job.recipe());
    let budgets =
        budgets(recipe, profile, resources::default_budget(), sharing(recipe, profile, job.world()));
    let draft =
        Draft { profile, spec: &job.stages[index].spec, recipe: recipe.clone(), index, budgets, rank: 0 };
    let work = Workload { how: draft.settle()?.how, ..draft.workload()? };
    let grid = work.how.ranks.grid;
    let mesh = (grid.ranks() > 1).then(|| (grid.ranks(), grid.to_string()));
    let (stage, tokens) = (recipe.stage[index].name.clone(), work.tokens);
    Ok(Activations { stage, tokens, mesh, segments: work.activations() })
}
