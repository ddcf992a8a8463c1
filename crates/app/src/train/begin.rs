//! What comes before the first step of any run: how it is asked for, what is refused, what fits, the first event.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_base::human;
use fathom_base::metrics::{Event, MetricsWriter, events, read_events};
use fathom_base::ranks::Claim;
use fathom_base::recipe::Recipe as Loaded;
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::recipe::{MachineKind, Recipe};
use fathom_train::{Checkpoints, Draft, Stores, check_places, check_training, distinct, needs_corpus};

use super::moments;
use super::rank::Shared;
use crate::budgets::budgets;
use crate::crew::Crew;
use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::job::Job;
use crate::judges;
use crate::plan::rollout_of;
use crate::{report, text};

/// How a run is asked for.
#[derive(Clone, Default)]
pub struct Order {
    /// In words, for its log.
    pub command: String,
    /// Who this process is among others, where no launcher says so.
    pub claim: Claim,
    /// Set from outside to save and stop.
    pub stop: Arc<AtomicBool>,
    /// Rewards may start the processes that they name.
    pub allow_processes: bool,
}

/// Refuses a recipe of one model that cannot be trained.
///
/// # Errors
/// What is wrong with it, and where that was written.
pub(super) fn check_alone(loaded: &Loaded<Recipe>) -> Result<()> {
    check_training(loaded)?;
    if loaded.value.machine.kind == MachineKind::Meta {
        let message = "it has shapes and no data, and trains nothing; `fathom plan` is a run of it";
        return Err(loaded.refuse("machine.kind", message).into());
    }
    Ok(())
}

/// What all ranks of a run have.
pub(super) fn shared<'a>(
    job: &'a Job,
    crew: &Crew,
    (stores, vocab): (&'a Stores, usize),
    seconds: Option<&'a [f64]>,
    order: &'a Order,
) -> Shared<'a> {
    let disk_sharers = crew.place(&job.machine, job.world()).disk;
    let (stop, allow_processes) = (&order.stop, order.allow_processes);
    Shared { job, stores, vocab, seconds, disk_sharers, stop, allow_processes }
}

/// Whether all that the recipe asks for is done: more steps may have come to it since.
///
/// # Errors
/// Its checkpoints cannot be read.
pub(super) fn is_done(job: &Job) -> Result<bool> {
    let events = read_events(job.log()).unwrap_or_default();
    if !events.iter().any(|event| matches!(Event::from_value(event), Some(Event::Done(_)))) {
        return Ok(false);
    }
    // A run is done also where its checkpoints were removed to save room.
    let found = Checkpoints::new(&job.checkpoints(), 1).found().unwrap_or_default();
    Ok(!found.is_some_and(|found| found.progress().has_more(job.recipe())))
}

/// Refuses a run whose plan exceeds the memory budget, before any memory is taken. FLOPs of a step of the first rank, by stage.
pub(super) fn fits(job: &Job, crew: &Crew) -> Result<Vec<f64>> {
    let (recipe, device) = (job.recipe(), job.machine.open()?);
    let profile = device.machine.profile();
    // What predictions were made with, to be read with them.
    let path = job.folder.join("machine.json");
    let sheet = format!("{:#}\n", serde_json::to_value(profile.sheet())?);
    fathom_base::files::write(&path, sheet.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let place = crew.place(&job.machine, job.world());
    let pool = device.pool.budget();
    let mut budgets = budgets(recipe, profile, pool, place);
    // Of what a pool may use others may have taken some.
    budgets.memory = budgets.memory.min(pool / place.memory as u64);
    budgets.host /= place.host as u64;
    check_places(recipe, &job.specs, profile)?;
    let mut flops = Vec::new();
    for (index, (spec, ranks)) in job.specs.iter().zip(&job.ranks).enumerate() {
        let mut of_ranks = Vec::new();
        for (rank, _) in distinct(ranks, spec) {
            let draft = Draft { profile, spec, recipe: recipe.clone(), index, budgets, rank };
            let plan = draft.check()?.plan;
            of_ranks.push(plan.hardware_flops as f64);
            rollout_fits(job, &draft, plan.usage.peak_reserved)?;
        }
        flops.push(of_ranks.first().copied().unwrap_or(0.0));
    }
    Ok(flops)
}

/// Refuses a run whose rollouts exceed the memory budget.
fn rollout_fits(job: &Job, draft: &Draft<'_>, step_bytes: u64) -> Result<()> {
    let judges = judges::bytes(&draft.recipe, draft.profile)?;
    let (stage, memory) = (&job.recipe().stage[draft.index].name, draft.budgets.memory);
    if let Some(usage) = rollout_of(job, draft)?.filter(|usage| usage.peak_reserved > memory) {
        refuse!(
            "stage `{stage}` needs {} of memory while answers are written and the budget is {}; write fewer at once (rl.sequences), or \
             shorter ones (rl.max_answer_tokens, stage.*.seq_tokens)",
            human::bytes(usage.peak_reserved),
            human::bytes(memory)
        );
    }
    if judges > 0 && step_bytes + judges > memory {
        refuse!(
            "stage `{stage}` needs {} of memory in a step and the models of rl.reward {}, and the budget is {}; take smaller judges, or a \
             process that asks them elsewhere",
            human::bytes(step_bytes),
            human::bytes(judges),
            human::bytes(memory)
        );
    }
    Ok(())
}

/// The first event of a run that has none.
pub(super) fn begin_log(
    job: &Job,
    command: &str,
    metrics: &mut MetricsWriter,
    events: &dyn Events,
) -> Result<()> {
    let short = moments::short(job.recipe()).unwrap_or_default();
    if !short.is_empty() {
        events.line(&format!("note: {short}"));
    }
    if !read_events(job.log())?.is_empty() {
        return Ok(());
    }
    let run = report::run_event(&job.loaded, command);
    metrics.write(&Event::Run(events::Run { short, ..run }))?;
    Ok(())
}

/// The data that the first process has prepared in a run's folder, and the tokens of its tokenizer.
pub(super) fn prepared(job: &Job) -> Result<(Stores, usize)> {
    let seen = || format!("{}: every machine has to see the run's folder", job.folder.display());
    let vocab = Tokenizer::from_dir(text::tokenizer_dir(&job.data())).with_context(seen)?.vocab_size();
    let store = if needs_corpus(job.recipe()) {
        Some(Arc::new(Store::open(text::store_prefix(&job.data())).with_context(seen)?))
    } else {
        None
    };
    Ok((Stores::open(job.recipe(), store, vocab)?, vocab))
}
