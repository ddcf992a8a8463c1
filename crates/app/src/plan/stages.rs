//! The stages of a job, each planned when it is asked for.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use fathom_model::Spec;
use fathom_tensor::{Device, Profile, Usage};
use fathom_text::Tokenizer;
use fathom_train::policy::reward::WeightedReward;
use fathom_train::recipe::Stage;
use fathom_train::{Budgets, Draft, Growth, Longest, MeshPlan, Settled, Why, check_places, distinct, policy};

use crate::budgets::{budgets, sharing};
use crate::error::{Result, caught};
use crate::events::Events;
use crate::host;
use crate::job::Job;
use crate::judges::Judges;
use crate::text::tokenizer;
use crate::writer::writer;

/// What is asked of every stage besides its step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The longest sequence under the best table of places.
    pub longest_of_all: bool,
    /// The peak, and the change that lowers it most.
    pub why: bool,
}

/// A job that is planned, stage by stage.
pub struct Plans<'a> {
    /// The job.
    pub job: &'a Job,
    /// What a rank has of the machine.
    pub profile: Profile,
    /// What it may use of that.
    pub budgets: Budgets,
}

/// A stage, planned.
pub struct Planned<'a> {
    /// The stage.
    pub draft: Draft<'a>,
    /// What is known of it; stages that need the same share it.
    pub figures: Rc<Figures>,
}

/// What is known of a stage.
pub struct Figures {
    /// How its steps run, and what they need.
    pub settled: Settled,
    /// What a token adds; of one rank alone, as `longest`.
    pub growth: Option<Growth>,
    /// The longest sequence that fits.
    pub longest: Option<usize>,
    /// The longest under the best table of places, if that was asked for.
    pub of_all: Option<Option<Longest>>,
    /// The same with weights and optimizer state offloaded: settings, and the longest with them.
    pub offloaded: Vec<(String, usize)>,
    /// The peak, if that was asked for.
    pub why: Option<Why>,
    /// Of more than one rank.
    pub mesh: Option<MeshPlan>,
    /// Of runs that learn from rewards: the pool's peaks while answers are written.
    pub rollout: Option<Usage>,
}

/// Plans a job for its own mesh, or for so many ranks.
///
/// # Errors
/// A machine profile that cannot be read, places that the machine does not have.
pub fn plan(job: &Job, ranks: Option<usize>) -> Result<Plans<'_>> {
    let ranks = ranks.unwrap_or_else(|| job.world());
    let plans = || {
        let profile = job.machine.profile_of_rank(ranks)?;
        let sharing = sharing(job.recipe(), &profile, ranks);
        // All of the memory that there is, not what happens to be free: a plan says the same twice.
        let budgets = budgets(job.recipe(), &profile, host::whole_budget(), sharing);
        check_places(job.recipe(), &job.specs, &profile)?;
        Ok(Plans { job, profile, budgets })
    };
    plans().map_err(|error| job.placed(error))
}

impl Plans<'_> {
    /// A stage, to be planned.
    pub fn draft(&self, index: usize) -> Draft<'_> {
        let Plans { job, profile, budgets } = self;
        let (spec, recipe) = (&job.specs[index], job.recipe().clone());
        Draft { profile, spec, recipe, index, budgets: *budgets, rank: 0 }
    }

    /// The stages in order, each planned when it is asked for.
    ///
    /// # Errors
    /// Of each stage, what is wrong with it.
    pub fn stages<'b>(
        &'b self,
        asked: Asked,
        events: &'b dyn Events,
    ) -> impl Iterator<Item = Result<Planned<'b>>> {
        let mut known: Vec<(usize, Rc<Figures>)> = Vec::new();
        (0..self.job.specs.len()).map(move |index| {
            let draft = self.draft(index);
            let alike = known.iter().find(|(index, _)| is_alike(&draft, &self.job.specs, *index));
            if let Some((_, figures)) = alike {
                return Ok(Planned { draft, figures: figures.clone() });
            }
            let name = self.stage_name(index);
            let figures =
                caught(|| self.figures(&draft, asked, &|at| events.doing(&format!("{name}: {at}"))));
            let figures = Rc::new(figures.map_err(|error| self.job.placed(error))?);
            known.push((index, figures.clone()));
            Ok(Planned { draft, figures })
        })
    }

    /// What a stage is called while it is planned.
    pub(super) fn stage_name(&self, index: usize) -> String {
        let stages = &self.job.recipe().stage;
        format!("stage {} of {}, {}", index + 1, stages.len(), stages[index].name)
    }

    /// All that is asked for; `say` hears what is at hand.
    fn figures(&self, draft: &Draft<'_>, asked: Asked, say: &dyn Fn(&str)) -> Result<Figures> {
        say("a step");
        let settled = draft.settle()?;
        let mesh = self.mesh_of(draft)?;
        let alone = mesh.is_none();
        let growth = alone.then(|| draft.growth(&settled.how)).transpose()?;
        say("the longest sequence that fits");
        let longest = if alone { draft.longest()? } else { None };
        let of_all = asked.longest_of_all.then(|| draft.longest_of_all()).transpose()?;
        let offloaded = if asked.longest_of_all { draft.longest_with_state_offloaded()? } else { Vec::new() };
        say("changes that lower the peak");
        let why = asked.why.then(|| draft.why()).transpose()?;
        let rollout = self.rollout(draft)?;
        Ok(Figures { settled, growth, longest, of_all, offloaded, why, mesh, rollout })
    }

    /// What a stage's rollouts need of the rank that needs most.
    pub(crate) fn rollout(&self, draft: &Draft<'_>) -> Result<Option<Usage>> {
        let mut most: Option<Usage> = None;
        for (rank, _) in distinct(&self.job.ranks[draft.index], draft.spec) {
            let of_rank = rollout_of(self.job, &Draft { rank, ..draft.clone() })?;
            let more =
                |found: &Usage| most.as_ref().is_none_or(|most| found.peak_reserved > most.peak_reserved);
            most = of_rank.filter(more).or(most);
        }
        Ok(most)
    }

    /// The mesh of a stage: one plan of each kind of rank, and the step that all stages of the pipeline make together. Nothing for
    /// one rank alone.
    pub(super) fn mesh_of(&self, draft: &Draft<'_>) -> Result<Option<MeshPlan>> {
        let alone = self.job.ranks[draft.index].grid.ranks() == 1;
        Ok(if alone { None } else { Some(draft.mesh()?) })
    }
}

/// Files by which a folder has a tokenizer.
const TOKENIZERS: [&str; 4] = ["tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"];

/// What a rollout of the stage needs of memory; nothing of runs that do not learn from rewards.
///
/// # Errors
/// No tokenizer, and those of the rollout.
pub(crate) fn rollout_of(job: &Job, draft: &Draft<'_>) -> Result<Option<Usage>> {
    let rl = &draft.recipe.rl;
    if !rl.is_on() {
        return Ok(None);
    }
    let room = draft.recipe.stage[draft.index].seq_tokens;
    // A plan of a model of random weights, or of a configuration alone, has no tokenizer: bytes take the place of its words.
    let has_one = |folder: &PathBuf| TOKENIZERS.iter().any(|name| folder.join(name).is_file());
    let start = job.start()?.filter(|start| !start.is_dir() || has_one(start));
    let is_given = draft.recipe.data.tokenizer.is_some() || start.is_some();
    let tokenizer =
        if is_given { tokenizer::given(job)? } else { Tokenizer::train_bpe(std::iter::empty(), 256, &[])? };
    let writer = writer(Rc::new(tokenizer), rl.sequences);
    // Those of other adapters over the same base are in memory too.
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

/// Whether the stage of a draft needs what an earlier one needs: it differs in what a plan does not depend on.
fn is_alike(draft: &Draft<'_>, specs: &[Spec], earlier: usize) -> bool {
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
    *draft.spec == specs[earlier] && plain(&stages[draft.index]) == plain(&stages[earlier])
}
