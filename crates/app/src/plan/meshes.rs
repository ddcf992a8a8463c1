//! Search for the best meshes of a given number of ranks, compared with the recipe's own mesh.

use fathom_train::{Candidate, Draft, MeshPlan, MeshSolution};

use super::stages::Plans;
use crate::error::{Context, Result, caught};
use crate::events::Events;

/// Result of the mesh search for one stage.
pub struct Meshes {
    /// Number of ranks.
    pub ranks: usize,
    /// The recipe's own mesh, if it has the same number of ranks.
    pub own: Option<Mesh>,
    /// The best meshes, in order.
    pub best: Vec<Mesh>,
    /// Full solution of the search.
    pub solution: MeshSolution,
}

/// A planned mesh.
pub struct Mesh {
    /// Description of its axes.
    pub mesh: String,
    /// Description of its activations' places.
    pub places: String,
    /// Set if a run on it computes other values than on the recipe's mesh.
    pub changes_numbers: bool,
    /// Peak memory of the rank that needs most.
    pub peak_bytes: u64,
    /// Time of a whole step.
    pub step_s: f64,
    /// Plan of the mesh.
    pub plan: MeshPlan,
    /// Settings of the recipe that it changes.
    pub settings: Vec<String>,
}

impl Mesh {
    /// Returns the longest time that any rank waits for messages.
    pub fn wait_s(&self) -> f64 {
        let waits = self.plan.kinds.iter().map(|kind| kind.plan.waits.values().sum::<f64>());
        waits.fold(0.0, f64::max)
    }

    fn of(candidate: &Candidate) -> Option<Mesh> {
        let plan = candidate.plan.clone()?;
        Some(Mesh {
            mesh: in_words(&plan),
            places: candidate.words(),
            changes_numbers: candidate.state.changes_numbers,
            peak_bytes: candidate.peak_bytes,
            step_s: candidate.step_s,
            plan,
            settings: candidate.settings.clone(),
        })
    }
}

impl Plans<'_> {
    /// Finds the best meshes for a stage; without `ranks`, for as many ranks as the recipe's own mesh has.
    ///
    /// # Errors
    /// No number of ranks; those of the solver.
    pub fn meshes(&self, index: usize, ranks: Option<usize>, events: &dyn Events) -> Result<Meshes> {
        let draft = self.draft(index);
        let name = self.stage_name(index);
        events.doing(&format!("{name}: meshes"));
        caught(|| solve(&draft, ranks, events)).map_err(|error| self.job.placed(error))
    }
}

fn solve(draft: &Draft<'_>, ranks: Option<usize>, events: &dyn Events) -> Result<Meshes> {
    let own = own(draft)?;
    let of = |mesh: &Mesh| mesh.plan.ranks.grid.ranks();
    let given = ranks.or_else(|| own.as_ref().map(of).filter(|ranks| *ranks > 1));
    let ranks = given.context("--solve mesh needs the number of ranks: --gpus N")?;
    let own = own.filter(|mesh| of(mesh) == ranks);
    let solution = draft.solve_mesh(ranks, &|text| events.doing(text))?;
    let best = solution.best.iter().filter_map(Mesh::of).collect();
    Ok(Meshes { ranks, own, best, solution })
}

/// Plans the mesh of the recipe.
fn own(draft: &Draft<'_>) -> Result<Option<Mesh>> {
    let plan = draft.mesh()?;
    let (Some(step_s), Some(most)) = (plan.step_s(), plan.most()) else { return Ok(None) };
    let table = &draft.recipe.stage[draft.index];
    let places = table.recompute_granularity.unwrap_or(draft.recipe.activations.recompute_granularity);
    let peak_bytes = most.plan.usage.peak_reserved;
    Ok(Some(Mesh {
        mesh: in_words(&plan),
        places: places.to_string(),
        changes_numbers: false,
        peak_bytes,
        step_s,
        plan,
        settings: Vec::new(),
    }))
}

fn in_words(plan: &MeshPlan) -> String {
    let stages = plan.ranks.virtual_stages;
    let own = plan.ranks.grid.to_string();
    if stages > 1 { format!("{own} vp={stages}") } else { own }
}
