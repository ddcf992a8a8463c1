//! Preparation of any run before its first step: options, checks, memory, and the first event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fathom_base::clock::Clock;
use fathom_base::human;
use fathom_base::metrics::{Event, MetricsWriter, events, read_events};
use fathom_base::ranks::Claim;
use fathom_base::recipe::Loaded;
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::recipe::{MachineKind, Recipe};
use fathom_train::stage::StagePlan;
use fathom_train::{
    Checkpoints, Draft, StageSettings, Stores, check_places, check_training, distinct, needs_corpus,
};

use super::folder::{create, same_recipe};
use super::functions::Functions;
use super::named::PrefixedEvents;
use super::{claims, export, moments};
use crate::budgets::budgets;
use crate::crew::Crew;
use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::job::Job;
use crate::plan::rollout_of;
use crate::{judges, report, stored, text};

/// Options of a run.
#[derive(Clone, Default)]
pub struct Order {
    /// Command line, for the log.
    pub command: String,
    /// Rank of this process among others, if no launcher sets it.
    pub claim: Claim,
    /// Set from outside to request a checkpoint and a stop.
    pub stop: Arc<AtomicBool>,
    /// Number of checkpoints asked for from outside so far: each is saved after the step in progress.
    pub save_requests: Arc<AtomicU64>,
    /// Allows rewards to start the processes that they name.
    pub allow_processes: bool,
    /// Functions of the program around the run that take part in it.
    pub functions: Functions,
    /// Clock of the run.
    pub clock: Clock,
}

/// Refuses a recipe that cannot be trained.
///
/// # Errors
/// The error, with the place of the recipe where it is.
pub(super) fn check_alone(loaded: &Loaded<Recipe>) -> Result<()> {
    check_training(loaded)?;
    if loaded.value.machine.kind == MachineKind::Meta {
        let message = "it has shapes and no data, and trains nothing; `fathom plan` is a run of it";
        return Err(loaded.refuse("machine.kind", message).into());
    }
    Ok(())
}

/// A model or adapter that is ready for its first step.
pub(super) struct Ready<'a> {
    pub job: &'a Job,
    pub events: PrefixedEvents<'a>,
    pub tokenizer: Tokenizer,
    pub stores: Stores,
    /// FLOPs of a step on the first rank, by stage.
    pub flops: Vec<f64>,
}

impl Ready<'_> {
    /// Returns the tokenizer's vocabulary size.
    pub fn vocab(&self) -> usize {
        self.tokenizer.vocab_size()
    }
}

/// Prepares a job and its log; returns `None` if the run was asked to stop.
///
/// # Errors
/// Invalid text or files; a plan that does not fit.
pub(super) fn prepare<'a>(
    job: &'a Job,
    order: &Order,
    crew: &Crew,
    events: &'a dyn Events,
) -> Result<Option<(Ready<'a>, MetricsWriter)>> {
    if job.is_one_of_several() {
        create(&job.folder)?;
        same_recipe(&job.folder, &job.loaded)?;
    }
    let events = PrefixedEvents::of(job, events);
    let mut metrics = MetricsWriter::open(job.log())?;
    let inputs = text::Inputs::of(job)?;
    let flops = fits(job, crew).map_err(|error| job.placed(error))?;
    stored::check(job)?;
    begin_log(job, &order.command, &mut metrics, &events)?;
    let Some((tokenizer, corpus)) = inputs.corpus(job, &mut metrics, &order.stop, &events)? else {
        return Ok(None);
    };
    export::check(job)?;
    let stores = Stores::open(job.recipe(), corpus.map(Arc::new), tokenizer.vocab_size())?
        .with_rule(job.recipe(), &tokenizer)?;
    stores.check_tokenizer(&tokenizer)?;
    claims::say(job, &stores, &events)?;
    say_held_out(job, &stores, &events)?;
    Ok(Some((Ready { job, events, tokenizer, stores, flops }, metrics)))
}

/// Factor by which the held-out share may differ from the requested one without a warning.
const FAR: f64 = 2.0;

/// Reports the share that is held out, with a warning if it is far from the share that the recipe asks for.
fn say_held_out(job: &Job, stores: &Stores, events: &dyn Events) -> Result<()> {
    let asked = job.recipe().data.held_out_share;
    let [documents, tokens, bytes, all] = stores.held_out_text()?;
    if asked <= 0.0 || all == 0 {
        return Ok(());
    }
    let share = tokens as f64 / all as f64;
    events.line(&format!(
        "held out: {}, {} ({}), {} of the text",
        human::counted(documents, "document"),
        human::counted(tokens, "token"),
        human::bytes(bytes),
        human::percent(share),
    ));
    if !(asked / FAR..=asked * FAR).contains(&share) {
        events.warn(&format!(
            "{} was to be held out (data.held_out_share) and documents are kept whole; more documents come nearer to it",
            human::percent(asked)
        ));
    }
    Ok(())
}

/// Returns whether all steps of the recipe are done; the recipe may have gained steps since the run ended.
pub(super) fn is_done(job: &Job) -> Result<bool> {
    let events = read_events(job.log()).unwrap_or_default();
    if !events.iter().any(|event| matches!(Event::from_value(event), Some(Event::Done(_)))) {
        return Ok(false);
    }
    // A run stays done if its checkpoints were removed to save space, but not if `LATEST` was set back.
    let found = Checkpoints::new(&job.checkpoints(), 1).found().unwrap_or_default();
    let more = found.is_some_and(|found| {
        let (at, recipe) = (found.progress(), job.recipe());
        at.stage < recipe.stage.len() || at.has_more(recipe)
    });
    Ok(!more)
}

/// Refuses a run whose plan exceeds the memory budget, before any memory is allocated. Returns the FLOPs of a step on
/// the first rank, by stage.
fn fits(job: &Job, crew: &Crew) -> Result<Vec<f64>> {
    let (recipe, device) = (job.recipe(), job.machine.open()?);
    let profile = device.machine.profile();
    // Saves the profile that the predictions are based on.
    let path = job.folder.join("machine.json");
    let sheet = format!("{:#}\n", serde_json::to_value(profile.sheet())?);
    fathom_base::files::write(&path, sheet.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let place = crew.place(&job.machine, job.world());
    let pool = device.pool.budget();
    let mut budgets = budgets(recipe, profile, pool, place);
    // Other processes may use part of the pool's memory.
    budgets.memory = budgets.memory.min(pool / place.memory as u64);
    budgets.host /= place.host as u64;
    check_places(recipe, job.specs(), profile)?;
    let mut flops = Vec::new();
    for (index, StagePlan { spec, how, .. }) in job.stages.iter().enumerate() {
        let mut of_ranks = Vec::new();
        let draft_of = |rank| Draft { profile, spec, recipe: recipe.clone(), index, budgets, rank };
        // A mesh that does not fit the model has no ranks to plan.
        draft_of(0).workload()?;
        for (rank, _) in distinct(&how.ranks, spec) {
            let draft = draft_of(rank);
            let plan = draft.check().or_else(|error| of_judges(&draft, error))?.plan;
            of_ranks.push(plan.hardware_flops as f64);
            rollout_fits(job, &draft)?;
        }
        flops.push(of_ranks.first().copied().unwrap_or(0.0));
    }
    Ok(flops)
}

/// Returns the error that a plan does not fit, extended by the share of the models that judge answers.
fn of_judges(draft: &Draft<'_>, error: fathom_train::Error) -> Result<StageSettings> {
    let judges = judges::bytes(&draft.recipe, draft.profile)?;
    if judges == 0 || !matches!(error, fathom_train::Error::DoesNotFit { .. }) {
        return Err(error.into());
    }
    refuse!(
        "{error}\nThe models of rl.reward take {} of it: take smaller ones, or a process that asks them elsewhere",
        human::bytes(judges)
    )
}

/// Refuses a run whose rollouts exceed the memory budget.
fn rollout_fits(job: &Job, draft: &Draft<'_>) -> Result<()> {
    let (stage, memory) = (&job.recipe().stage[draft.index].name, draft.budgets.memory);
    if let Some(usage) = rollout_of(job, draft)?.filter(|usage| usage.peak_reserved > memory) {
        refuse!(
            "stage `{stage}` needs {} of memory while answers are written and the budget is {}; write fewer at once (rl.sequences), or \
             shorter ones (rl.max_answer_tokens, stage.*.seq_tokens)",
            human::bytes(usage.peak_reserved),
            human::bytes(memory)
        );
    }
    Ok(())
}

/// Writes the first event of a run whose log is empty.
fn begin_log(job: &Job, command: &str, metrics: &mut MetricsWriter, events: &dyn Events) -> Result<()> {
    if let Some(short) = moments::short(job.recipe()) {
        events.line(&format!("note: {short}"));
    }
    if !read_events(job.log())?.is_empty() {
        return Ok(());
    }
    let run = report::run_event(&job.loaded, command);
    let least_tokens = moments::least_tokens(job.recipe());
    metrics.write(&Event::Run(events::Run { least_tokens, ..run }))?;
    Ok(())
}

/// Opens the data that the first process has prepared in a run's folder; returns it with the tokenizer's vocabulary
/// size.
pub(super) fn prepared(job: &Job) -> Result<(Stores, usize)> {
    let seen = || format!("{}: every machine has to see the run's folder", job.folder.display());
    let tokenizer = Tokenizer::from_dir(text::tokenizer_dir(&job.data())).with_context(seen)?;
    let vocab = tokenizer.vocab_size();
    let store = if needs_corpus(job.recipe()) {
        Some(Arc::new(Store::open(text::store_prefix(&job.data())).with_context(seen)?))
    } else {
        None
    };
    let stores = Stores::open(job.recipe(), store, vocab)?;
    Ok((stores.with_rule(job.recipe(), &tokenizer)?, vocab))
}
