//! Stages of a job, each planned on demand.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use fathom_tensor::{Device, PoolUsage, Profile};
use fathom_text::Tokenizer;
use fathom_train::policy::reward::WeightedReward;
use fathom_train::recipe::Stage;
use fathom_train::stage::StagePlan;
use fathom_train::{
    Budgets, Draft, Growth, Longest, MeshPlan, StageSettings, Why, check_places, distinct, policy,
};

use crate::budgets::{budgets, sharing};
use crate::error::{Result, caught};
use crate::events::Events;
use crate::job::Job;
use crate::judges::Judges;
use crate::resources;
use crate::text::tokenizer;
use crate::writer::writer;

/// Optional parts of a stage's plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanOptions {
    /// Find the longest sequence under the best table of places.
    pub longest_of_all: bool,
    /// Explain the peak, and find the change that lowers it most.
    pub why: bool,
}

/// A job to plan, stage by stage.
pub struct Plans<'a> {
    /// Job to plan.
    pub job: &'a Job,
    /// Profile of a rank's share of the machine.
    pub profile: Profile,
    /// Budgets of a rank.
    pub budgets: Budgets,
}

/// A planned stage.
pub struct PlannedStage<'a> {
    /// Draft of the stage.
    pub draft: Draft<'a>,
    /// Figures of the stage, shared by stages with equal needs.
    pub figures: Rc<Figures>,
}

/// Figures of a stage.
pub struct Figures {
    /// Settings of its steps, and the resources they need.
    pub settled: StageSettings,
    /// Memory that each further token needs; like `longest`, only for a single rank.
    pub growth: Option<Growth>,
    /// Longest sequence that fits.
    pub longest: Option<usize>,
    /// Longest sequence under the best table of places, if asked for.
    pub of_all: Option<Option<Longest>>,
    /// Longest sequences with weights and optimizer state offloaded, with the settings for each.
    pub offloaded: Vec<(String, usize)>,
    /// Explanation of the peak, if asked for.
    pub why: Option<Why>,
    /// Plan of the mesh, for more than one rank.
    pub mesh: Option<MeshPlan>,
    /// The pool's peaks while answers are generated, for training on rewards.
    pub rollout: Option<PoolUsage>,
}

/// Plans a job for its own mesh, or for a given number of ranks.
///
/// # Errors
/// A machine profile that cannot be read; places that the machine does not have.
pub fn plan(job: &Job, ranks: Option<usize>) -> Result<Plans<'_>> {
    let ranks = ranks.unwrap_or_else(|| job.world());
    let plans = || {
        let profile = job.machine.profile_of_rank(ranks)?;
        let sharing = sharing(job.recipe(), &profile, ranks);
        // Uses all memory, not the memory that is free now, so that plans are reproducible.
        let budgets = budgets(job.recipe(), &profile, resources::whole_budget(), sharing);
        check_places(job.recipe(), job.specs(), &profile)?;
        Ok(Plans { job, profile, budgets })
    };
    plans().map_err(|error| job.placed(error))
}

impl Plans<'_> {
    /// Returns the draft of a stage.
    pub fn draft(&self, index: usize) -> Draft<'_> {
        let Plans { job, profile, budgets } = self;
        let (spec, recipe) = (&job.stages[index].spec, job.recipe().clone());
        Draft { profile, spec, recipe, index, budgets: *budgets, rank: 0 }
    }

    /// Returns the stages in order, each planned on demand.
    ///
    /// # Errors
    /// An invalid stage.
    pub fn stages<'b>(
        &'b self,
        asked: PlanOptions,
        events: &'b dyn Events,
    ) -> impl Iterator<Item = Result<PlannedStage<'b>>> {
        let mut known: Vec<(usize, Rc<Figures>)> = Vec::new();
        (0..self.job.stages.len()).map(move |index| {
            let draft = self.draft(index);
            let alike = known.iter().find(|(index, _)| is_alike(&draft, &self.job.stages, *index));
            if let Some((_, figures)) = alike {
                return Ok(PlannedStage { draft, figures: figures.clone() });
            }
            let name = self.stage_name(index);
            let figures =
                caught(|| self.figures(&draft, asked, &|at| events.doing(&format!("{name}: {at}"))));
            let figures = Rc::new(figures.map_err(|error| self.job.placed(error))?);
            known.push((index, figures.clone()));
            Ok(PlannedStage { draft, figures })
        })
    }

    /// Returns the name of a stage in progress messages.
    pub(super) fn stage_name(&self, index: usize) -> String {
        let stages = &self.job.recipe().stage;
        format!("stage {} of {}, {}", index + 1, stages.len(), stages[index].name)
    }

    /// Plans a stage with the parts asked for; `say` receives the current activity.
    fn figures(&self, draft: &Draft<'_>, asked: PlanOptions, say: &dyn Fn(&str)) -> Result<Figures> {
        say("a step");
        let settled = draft.settle()?;
        let mesh = self.mesh_of(draft)?;
        let alone = mesh.is_none();
        let growth = alone.then(|| draft.growth(&settled.how)).transpose()?;
        say("the longest sequence that fits");
        let longest = if alone { draft.longest()? } else { None };
        let of_all = asked.longest_of_all.then(|| draft.longest_of_all()).transpose()?;
        let mut offloaded =
            if asked.longest_of_all { draft.longest_with_state_offloaded()? } else { Vec::new() };
        // Where a disk has little room, state on it takes the place of activations.
        let mut longest_so_far = of_all.as_ref().and_then(Option::as_ref).map_or(0, |(tokens, _)| *tokens);
        offloaded.retain(|(_, tokens)| {
            let is_longer = *tokens > longest_so_far;
            longest_so_far = longest_so_far.max(*tokens);
            is_longer
        });
        say("changes that lower the peak");
        let why = asked.why.then(|| draft.why()).transpose()?;
        let rollout = self.rollout(draft)?;
        Ok(Figures { settled, growth, longest, of_all, offloaded, why, mesh, rollout })
    }

    /// Plans a stage's rollouts on the rank that needs most memory.
    pub(crate) fn rollout(&self, draft: &Draft<'_>) -> Result<Option<PoolUsage>> {
        let mut most: Option<PoolUsage> = None;
        for (rank, _) in distinct(self.job.stages[draft.index].ranks(), draft.spec) {
            let of_rank = rollout_of(self.job, &Draft { rank, ..draft.clone() })?;
            let more =
                |found: &PoolUsage| most.as_ref().is_none_or(|most| found.peak_reserved > most.peak_reserved);
            most = of_rank.filter(more).or(most);
        }
        Ok(most)
    }

    /// Plans the mesh of a stage: one plan for each kind of rank, and the step that all stages of the pipeline make
    /// together. `None` for a single rank.
    pub(super) fn mesh_of(&self, draft: &Draft<'_>) -> Result<Option<MeshPlan>> {
        let alone = self.job.stages[draft.index].ranks().grid.ranks() == 1;
        Ok(if alone { None } else { Some(draft.mesh()?) })
    }
}

/// Files that indicate a tokenizer in a folder.
const TOKENIZERS: [&str; 4] = ["tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"];

/// Plans the memory of a stage's rollouts; `None` without training on rewards.
///
/// # Errors
/// No tokenizer; those of the rollout.
pub(crate) fn rollout_of(job: &Job, draft: &Draft<'_>) -> Result<Option<PoolUsage>> {
    let rl = &draft.recipe.rl;
    if !rl.is_on() {
        return Ok(None);
    }
    let room = draft.recipe.stage[draft.index].seq_tokens;
    // The plan of a model with random weights, or of a configuration alone, has no tokenizer; a tokenizer of bytes
    // replaces it.
    let has_one = |folder: &PathBuf| TOKENIZERS.iter().any(|name| folder.join(name).is_file());
    let start = job.start()?.filter(|start| !start.is_dir() || has_one(start));
    let is_given = draft.recipe.data.tokenizer.is_some() || start.is_some();
    let tokenizer =
        if is_given { tokenizer::given(job)? } else { Tokenizer::train_bpe(std::iter::empty(), 256, &[])? };
    let writer = writer(Rc::new(tokenizer), rl.sequences);
    // Judges of other adapters over the same base are in memory too.
    let silent = RefCell::new(Vec::new());
    let judges = |device: &Device| {
        let made = || -> Result<Vec<WeightedReward>> {
            let judges = Judges::on(device);
            let own = judges.parts(&draft.recipe)?;
            silent.borrow_mut().extend(judges.parts_of_others(&draft.recipe)?);
            Ok(own)
        };
        made().map_err(|error| fathom_train::Error::Hook(error.into()))
    };
    Ok(Some(policy::planned(&draft.workload()?, rl, room, &writer, &judges)?))
}

/// Returns whether a draft's stage needs the same as an earlier one, because they differ only in fields that a plan
/// does not depend on.
fn is_alike(draft: &Draft<'_>, resolved: &[StagePlan], earlier: usize) -> bool {
    let plain = |stage: &Stage| Stage {
        name: String::new(),
        steps: None,
        minutes_share: 0.0,
        lr_scale: 0.0,
        warmup_steps: None,
        blend: Vec::new(),
        length_weights: Vec::new(),
        ..stage.clone()
    };
    let stages = &draft.recipe.stage;
    *draft.spec == resolved[earlier].spec && plain(&stages[draft.index]) == plain(&stages[earlier])
}
