//! A stage of a recipe that can be planned, changed and planned again.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use fathom_base::human;
use fathom_grad::Sharding;
use fathom_model::Spec;
use fathom_tensor::{DType, Label, Profile, live_at_peak, spill};

use super::mesh::fullest;
use super::{Change, Plan, Record, Solution, Workload};
use crate::error::{Error, Result};
use crate::hidden::check_hidden;
use crate::parallel::Ranks;
use crate::recipe::{Memory, Precision, Recipe};
use crate::stage;
use crate::state::check_weights;
use crate::step::InStep;

/// Budgets of a stage, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// The machine's memory.
    pub memory: u64,
    /// The host's memory, for machines with a separate one.
    pub host: u64,
    /// Files of activations, weights and optimizer state.
    pub disk: u64,
}

/// A resource with a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The machine's memory.
    Memory,
    /// The host's memory.
    Host,
    /// Disk.
    Disk,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Memory => "memory",
            Resource::Host => "the host's memory",
            Resource::Disk => "disk",
        })
    }
}

impl Budgets {
    /// `memory` as given, the profile's host memory, and for each of `sharers` ranks an equal share of the recipe's
    /// disk limit or, without one, of 95 % of the free space behind `folder`.
    pub fn new(memory: u64, profile: &Profile, recipe: &Recipe, folder: &Path, sharers: usize) -> Budgets {
        let folder = recipe.machine.spill.as_deref().unwrap_or(folder);
        let free = || spill::free_bytes(folder).map_or(u64::MAX, |free| free / 20 * 19);
        let host = profile.host_bytes.unwrap_or(u64::MAX);
        let disk = recipe.machine.disk_bytes.unwrap_or_else(free) / sharers.max(1) as u64;
        Budgets { memory, host, disk }
    }

    /// True if a step stays within the budgets.
    pub fn hold(&self, plan: &Plan) -> bool {
        self.excess(plan) == 0
    }

    /// Bytes by which a step exceeds its budgets, for the resource with the largest excess.
    pub fn excess(&self, plan: &Plan) -> u64 {
        let over = self.uses(plan).map(|(_, used, budget)| used.saturating_sub(budget));
        over.into_iter().max().unwrap_or(0)
    }

    /// The first resource that a step exceeds, with the bytes needed and the budget.
    pub fn lack(&self, plan: &Plan) -> Option<(Resource, u64, u64)> {
        self.uses(plan).into_iter().find(|(_, used, budget)| used > budget)
    }

    /// Budgets reduced by a step's excess of each resource.
    pub(super) fn without_excess(&self, plan: &Plan) -> Budgets {
        let [memory, host, disk] =
            self.uses(plan).map(|(_, used, budget)| budget.saturating_sub(used.saturating_sub(budget)));
        Budgets { memory, host, disk }
    }

    fn uses(&self, plan: &Plan) -> [(Resource, u64, u64); 3] {
        [
            (Resource::Memory, plan.usage.peak_reserved, self.memory),
            (Resource::Host, plan.host_peak_bytes, self.host),
            (Resource::Disk, plan.disk_peak_bytes, self.disk),
        ]
    }
}

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
        let dtype = match self.recipe.model.precision {
            Precision::Bf16 => DType::Bf16,
            Precision::F32 => DType::F32,
        };
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

    /// [`Draft::settle`] for a stage that must stay within its budgets.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] with the cheapest changes that would make it fit, and those of [`Draft::workload`].
    pub fn check(&self) -> Result<StageSettings> {
        let settled = self.settle()?;
        let Some((of, needed_bytes, budget_bytes)) = self.budgets.lack(&settled.plan) else {
            return Ok(settled);
        };
        Err(Error::DoesNotFit {
            stage: self.recipe.stage[self.index].name.clone(),
            of,
            needed_bytes,
            budget_bytes,
            peak_op: (of == Resource::Memory).then_some(settled.plan.usage.peak_op),
            remedy: remedy(&self.rescues(RESCUES)?),
        })
    }

    /// The same stage with sequences of another length.
    pub fn with_tokens(&self, seq_tokens: usize) -> Self {
        let mut draft = self.clone();
        draft.recipe.stage[self.index].seq_tokens = seq_tokens;
        draft
    }
}

/// Number of changes that a refusal names.
const RESCUES: usize = 3;

fn remedy(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "No change of places, tiles, precision or length makes it fit; raise machine.memory_bytes (of disk, \
                machine.disk_bytes) or take a smaller model"
            .into();
    }
    let line = |change: &Change| {
        let bytes = human::bytes(change.plan.usage.peak_reserved);
        let time = change.plan.step_s().map_or(String::new(), |s| format!(", {} a step", human::seconds(s)));
        format!("\n  {}  ({bytes}{time})", change.settings.join(" "))
    };
    let lines: String = changes.iter().map(line).collect();
    format!("It would fit with any of these, the fastest first:{lines}")
}
