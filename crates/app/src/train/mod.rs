//! A run of a recipe: text to tokens, stages of training with measurements between them, a Hugging Face folder and a report.
//! Every phase leaves its result in the run's folder, so running again resumes.
//!
//! [`train`] names the phases in order. `first` is what the first rank does, `rank` what every rank has and the others do.

mod environment;
mod export;
mod first;
mod folder;
mod gap;
mod jail;
mod moments;
mod process;
mod rank;
mod rewards;
mod several;
mod time;
mod unit_tests;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fathom_base::human;
use fathom_base::metrics::{Event, MetricsWriter, events, read_events};
use fathom_base::ranks::Claim;
use fathom_base::recipe::Recipe as Loaded;
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::recipe::{MachineKind, Recipe};
use fathom_train::{
    Checkpoints, Draft, Outcome, Stores, check_places, check_training, distinct, needs_corpus,
};

pub use first::{Report, Trained};

use crate::budgets::budgets;
use crate::crew::{self, Crew, Word};
use crate::error::{Context, Result, caught, refuse};
use crate::events::Events;
use crate::job::Job;
use crate::judges;
use crate::plan::rollout_of;
use crate::{report, text};
use first::First;
use rank::{Shared, follow};

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

/// Runs a job to its end, or until it is asked to stop. A process that is not the first of its job takes part in the steps.
///
/// # Errors
/// What is wrong with the recipe, its text or its files; what does not fit; what ended the run. All that was saved stays valid.
pub fn train(job: &Job, order: &Order, events: &dyn Events) -> Result<Trained> {
    let run = || {
        check(&job.loaded)?;
        if let Some(why) = job.machine.why_not() {
            events.note(&format!("machine: cpu ({why})"));
        }
        let crew = Crew::assemble(&order.claim, job, events)?;
        crew.together(|| {
            if !job.recipe().adapters.is_empty() {
                several::lead(job, order, &crew, events)
            } else if crew.is_first() {
                lead(job, order, &crew, events)
            } else {
                follow_first(job, order, &crew)
            }
        })
    };
    caught(run).map_err(|error| job.placed(error))
}

/// Refuses a recipe that cannot be trained.
///
/// # Errors
/// What is wrong with it, and where that was written.
pub fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    if !loaded.value.adapters.is_empty() {
        return several::check(loaded);
    }
    check_alone(loaded)
}

/// The same of one model.
fn check_alone(loaded: &Loaded<Recipe>) -> Result<()> {
    check_training(loaded)?;
    if loaded.value.machine.kind == MachineKind::Meta {
        let message = "it has shapes and no data, and trains nothing; `fathom plan` is a run of it";
        return Err(loaded.refuse("machine.kind", message).into());
    }
    Ok(())
}

/// The part of the first of several processes, or of the only one.
fn lead(job: &Job, order: &Order, crew: &Crew, events: &dyn Events) -> Result<Trained> {
    let (begun, folder) = (Instant::now(), &job.folder);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _claimed = folder::claim(folder, events)?;
    folder::same_recipe(folder, &job.loaded)?;
    if is_done(job)? {
        page_if_missing(job)?;
        events.line(&format!(
            "{} is finished already; its report is {}",
            folder.display(),
            job.page().display()
        ));
        crew.tell(Word::NothingToDo)?;
        return Ok(Trained::without_report(Outcome::Finished));
    }
    let mut metrics = MetricsWriter::open(job.log())?;
    text::check(job)?;
    let flops = fits(job, crew)?;
    begin_log(job, &order.command, &mut metrics, events)?;
    let Some((tokenizer, corpus)) = text::corpus(job, &mut metrics, &order.stop, events)? else {
        events.line("asked to stop while the text was prepared; run the same command again to go on");
        crew.tell(Word::Interrupted)?;
        return Ok(Trained::without_report(Outcome::Interrupted));
    };
    export::check(job)?;
    text::tokenizer::same_as_teacher(job, &tokenizer)?;
    crew.tell(Word::Ready)?;
    let vocab = tokenizer.vocab_size();
    let stores = &Stores::open(job.recipe(), corpus.map(Arc::new), vocab)?;
    stores.check_tokenizer(&tokenizer)?;
    let seconds = time::stage_seconds(job.recipe(), begun);
    let shared = shared(job, crew, (stores, vocab), seconds.as_deref(), order);
    let first = First { shared: &shared, tokenizer: &tokenizer, flops: &flops, begun, events };
    if job.world() == 1 {
        return first.run(job.machine.open()?, metrics);
    }
    crew::run(job, crew, |device| first.run(device, metrics), &|device| follow(&shared, device).map(drop))
}

/// What a process that is not the first does: waits for the first to prepare the run, and takes part in its steps.
fn follow_first(job: &Job, order: &Order, crew: &Crew) -> Result<Trained> {
    match crew.hear()? {
        Word::Ready => {}
        Word::NothingToDo => return Ok(Trained::without_report(Outcome::Finished)),
        Word::Interrupted => return Ok(Trained::without_report(Outcome::Interrupted)),
    }
    let seen = || format!("{}: every machine has to see the run's folder", job.folder.display());
    let vocab = Tokenizer::from_dir(text::tokenizer_dir(&job.data())).with_context(seen)?.vocab_size();
    let store = if needs_corpus(job.recipe()) {
        Some(Arc::new(Store::open(text::store_prefix(&job.data())).with_context(seen)?))
    } else {
        None
    };
    let stores = &Stores::open(job.recipe(), store, vocab)?;
    // The first rank alone decides what takes how long.
    let shared = shared(job, crew, (stores, vocab), None, order);
    crew::run(job, crew, |device| follow(&shared, device), &|_| Ok(())).map(Trained::without_report)
}

fn shared<'a>(
    job: &'a Job,
    crew: &Crew,
    (stores, vocab): (&'a Stores, usize),
    seconds: Option<&'a [f64]>,
    order: &'a Order,
) -> Shared<'a> {
    let disk_sharers = crew.place(&job.machine, job.world()).disk;
    let (stop, allow_processes) = (&*order.stop, order.allow_processes);
    Shared { job, stores, vocab, seconds, disk_sharers, stop, allow_processes }
}

/// The report of a run that was killed between its last event and its page.
fn page_if_missing(job: &Job) -> Result<()> {
    if job.page().exists() { Ok(()) } else { report::write(&job.folder, &job.page()).map(drop) }
}

/// Whether all that the recipe asks for is done: more steps may have come to it since.
fn is_done(job: &Job) -> Result<bool> {
    let events = read_events(job.log()).unwrap_or_default();
    if !events.iter().any(|event| matches!(Event::from_value(event), Some(Event::Done(_)))) {
        return Ok(false);
    }
    // A run is done also where its checkpoints were removed to save room.
    let found = Checkpoints::new(&job.checkpoints(), 1).found().unwrap_or_default();
    Ok(!found.is_some_and(|found| found.progress().has_more(job.recipe())))
}

/// Refuses a run whose plan exceeds the memory budget, before any memory is taken. FLOPs of a step of the first rank, by stage.
fn fits(job: &Job, crew: &Crew) -> Result<Vec<f64>> {
    let (recipe, device) = (job.recipe(), job.machine.open()?);
    let profile = device.machine.profile();
    // What predictions were made with, to be read beside them.
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
fn begin_log(job: &Job, command: &str, metrics: &mut MetricsWriter, events: &dyn Events) -> Result<()> {
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
