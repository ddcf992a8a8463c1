//! A stage of a recipe that can be planned, changed and planned again.

use std::borrow::Cow;

use fathom_grad::Sharding;
use fathom_model::Spec;
use fathom_tensor::{Label, Profile, live_at_peak};

use super::budgets::Budgets;
use super::figures::{Plan, Record};
use super::fullest::fullest;
use super::{Solution, Workload};
use crate::error::{Error, Result};
use crate::hidden::check_hidden;
use crate::in_step::InStep;
use crate::parallel::Ranks;
use crate::recipe::{Memory, Recipe};
use crate::stage;
use crate::weights::check_weights;

/// A stage on a machine.
#[derive(Clone)]
pub struct Draft<'a> {
    /// The machine.
    pub profile: &'a Profile,
    /// The specification before the stage.
    pub spec: &'a Spec,
    /// The recipe, as changed so far.
    pub recipe: Recipe,
    /// Index of the stage.
    pub index: usize,
    /// Budgets of each rank.
    pub budgets: Budgets,
    /// The rank that is planned.
    pub rank: usize,
}

/// A stage's settings, with their plan.
#[derive(Clone, Debug)]
pub struct StageSettings {
    /// Settings of its steps.
    pub how: InStep,
    /// The plan of a step.
    pub plan: Plan,
    /// The solver's choice, with `activations.memory = "auto"`.
    pub solution: Option<Solution>,
}

/// The rank that needs most in the same pipeline stage: it has the largest share of the vocabulary and most optimizer
/// state.
fn asked(work: &Workload<'_>) -> usize {
    let Ranks { grid, rank, .. } = work.how.ranks;
    let block = grid.tp * grid.cp * grid.dp;
    let last = rank / block * block + grid.tp - 1;
    last + grid.tp * fullest(&work.how.ranks, &work.spec, last)
}

/// Refuses offloaded weights whose state is sharded over ranks; experts have replicas of their own.
fn check_whole(spec: &Spec, how: &InStep) -> Result<()> {
    let Ranks { grid, sharding, .. } = how.ranks;
    let replicas = if spec.moe.is_some() { grid.edp() } else { 1 }.max(grid.cp * grid.dp);
    if !how.on_disk.weights || sharding == Sharding::NoShard || replicas == 1 {
        return Ok(());
    }
    let message = "weights on disk are whole on every rank: mesh.sharding must be \"no_shard\" with machine.offload_weights, or the weights in memory";
    Err(Error::Recipe { key: "mesh.sharding".into(), message: message.into() })
}

/// Refuses a teacher that the mesh cannot hold, or whose vocabulary is distributed differently.
fn check_teacher(spec: &Spec, how: &InStep) -> Result<()> {
    let Some(teacher) = how.goal.teacher.as_deref() else { return Ok(()) };
    how.ranks.check(teacher)?;
    check_hidden(spec, teacher, how)?;
    if how.ranks.grid.tp == 1 || teacher.vocab == spec.vocab {
        return Ok(());
    }
    let message = format!(
        "has {} rows of its vocabulary and the student {}, which lie otherwise on tensor parallel ranks; give mesh.tp=1, or have \
         its best tokens found beforehand (objective.top_k=64)",
        teacher.vocab, spec.vocab
    );
    Err(Error::Recipe { key: "objective.teacher".into(), message })
}

impl<'a> Draft<'a> {
    /// The work of its steps, with the places of the recipe.
    ///
    /// # Errors
    /// Those of [`stage::extend`] and [`stage::in_step`].
    pub fn workload(&self) -> Result<Workload<'a>> {
        let table = &self.recipe.stage[self.index];
        let spec = Cow::Owned(stage::extend(self.spec, table, self.index)?);
        let mut how = stage::in_step_among(&self.recipe, self.index, self.spec)?;
        how.ranks.rank = self.rank;
        how.ranks.check(&spec)?;
        check_whole(&spec, &how)?;
        check_teacher(&spec, &how)?;
        check_weights(self.profile, &spec, &how)?;
        let dtype = self.recipe.model.precision.dtype();
        let tokens = table.seq_tokens * table.samples_per_micro_batch.max(1);
        let micro_batches = table.micro_batches.max(1);
        Ok(Workload { profile: self.profile, spec, dtype, how, micro_batches, tokens })
    }

    /// The stage's settings, whether it fits or not; they are the solver's choice if the recipe asks for it and one
    /// fits.
    ///
    /// # Errors
    /// Those of [`Draft::workload`].
    pub fn settle(&self) -> Result<StageSettings> {
        let mut work = self.workload()?;
        if self.recipe.activations.memory == Memory::Auto {
            // Ranks of a stage communicate during recomputation, so all of them solve for the same rank.
            let own = work.how.ranks.rank;
            work.how.ranks.rank = asked(&work);
            let solution = work.solve(&self.budgets)?;
            let same = work.how.ranks.rank == own;
            work.how.ranks.rank = own;
            if let Some(solution) = solution {
                work.how.places = solution.places.clone();
                let plan = if same { solution.plan.clone() } else { work.plan()? };
                return Ok(StageSettings { how: work.how, plan, solution: Some(solution) });
            }
        }
        let plan = work.plan()?;
        Ok(StageSettings { how: work.how, plan, solution: None })
    }

    /// The plan of a step.
    ///
    /// # Errors
    /// Those of [`Draft::workload`].
    pub fn plan(&self) -> Result<Plan> {
        Ok(self.settle()?.plan)
    }

    /// The buffers that are live at the peak of a step with these settings, largest first.
    ///
    /// # Errors
    /// Those of [`Draft::workload`].
    pub fn at_peak(&self, how: &InStep) -> Result<Vec<(Label, u64)>> {
        let mut work = self.workload()?;
        work.how = how.clone();
        Ok(live_at_peak(&work.run(Record::Peak)?.1))
    }

    /// The same stage with sequences of another length.
    pub fn with_tokens(&self, seq_tokens: usize) -> Self {
        let mut draft = self.clone();
        draft.recipe.stage[self.index].seq_tokens = seq_tokens;
        draft
    }
}
