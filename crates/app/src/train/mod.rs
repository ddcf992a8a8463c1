//! A run of a recipe: text to tokens, stages of training with measurements between them, a Hugging Face folder and a report.
//! Every phase leaves its result in the run's folder, so running again resumes.
//!
//! [`train`] names the phases in order. `first` is what the first rank does, `rank` what every rank has and the others do.

mod begin;
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
use std::time::Instant;

use fathom_base::metrics::MetricsWriter;
use fathom_base::recipe::Recipe as Loaded;
use fathom_train::recipe::Recipe;
use fathom_train::{Outcome, Stores};

pub use begin::Order;
pub use first::{Report, Trained};

use crate::crew::{self, Crew, Word};
use crate::error::{Context, Result, caught};
use crate::events::Events;
use crate::job::Job;
use crate::{report, text};
use begin::{begin_log, check_alone, fits, is_done, prepared, shared};
use first::First;
use rank::follow;

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
                if crew.is_first() {
                    several::lead(job, order, &crew, events)
                } else {
                    several::follow_first(job, order, &crew)
                }
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

/// The part of the first of several processes, or of the only one.
fn lead(job: &Job, order: &Order, crew: &Crew, events: &dyn Events) -> Result<Trained> {
    let (started, folder) = (Instant::now(), &job.folder);
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
    let seconds = time::stage_seconds(job.recipe(), started);
    let shared = shared(job, crew, (stores, vocab), seconds.as_deref(), order);
    let first = First { shared: &shared, tokenizer: &tokenizer, flops: &flops, started, events };
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
    let (stores, vocab) = prepared(job)?;
    // The first rank alone decides what takes how long.
    let shared = shared(job, crew, (&stores, vocab), None, order);
    crew::run(job, crew, |device| follow(&shared, device), &|_| Ok(())).map(Trained::without_report)
}

/// The report of a run that was killed between its last event and its page.
fn page_if_missing(job: &Job) -> Result<()> {
    if job.page().exists() { Ok(()) } else { report::write(&job.folder, &job.page()).map(drop) }
}
