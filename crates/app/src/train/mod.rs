//! Training of a recipe: text to tokens, stages of training with measurements between them, a Hugging Face folder and a
//! report. Every phase leaves its result in the run's folder, so that running again resumes.
//!
//! [`train`] runs the phases in order, for one model or several adapters over one. `begin` is the preparation before
//! the first step, `first` the work of the first rank, `rank` the state of every rank and the work of the others.

mod begin;
mod claims;
mod environment;
mod export;
mod first;
mod folder;
mod functions;
mod gap;
pub(crate) mod jail;
mod moments;
mod named;
mod neighbours;
mod process;
mod rank;
mod rewards;
mod several;
mod sinks;
mod time;
mod unit_tests;
mod watch;

use std::slice;

use fathom_base::metrics::MetricsWriter;
use fathom_base::recipe::Loaded;
use fathom_tensor::Device;
use fathom_train::recipe::Recipe;
use fathom_train::{Outcome, Stores};

pub use begin::Order;
pub use first::{Report, RunOutcome};
pub use functions::{Functions, MakeEnvironment, MakeReward};
pub use time::spent_s;

use crate::crew::{self, Crew, Word};
use crate::error::{Result, caught};
use crate::events::{Events, Silent};
use crate::job::Job;
use crate::report;
use begin::{Ready, check_alone, is_done, prepare, prepared};
use first::{First, first};
use rank::{RankInputs, follow};
use rewards::Outside;
use time::{Timetable, Turns};

/// Runs a job to its end, or until asked to stop. A process that is not the first of its job takes part in the steps.
///
/// # Errors
/// An invalid recipe, text or file; a plan that does not fit; the error that ended the run. Everything saved stays
/// valid.
pub fn train(job: &Job, order: &Order, events: &dyn Events) -> Result<RunOutcome> {
    let run = || {
        check(&job.loaded)?;
        if let Some(why) = job.machine.why_not() {
            events.note(&format!("machine: cpu ({why})"));
        }
        let crew = Crew::assemble(&order.claim, job, events)?;
        crew.together(|| {
            if crew.is_first() { lead(job, order, &crew, events) } else { follow_first(job, order, &crew) }
        })
    };
    caught(run).map_err(|error| job.placed(error))
}

/// Refuses a recipe that cannot be trained.
///
/// # Errors
/// The error, with the place of the recipe where it is.
pub fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    if loaded.value.adapters.is_empty() { check_alone(loaded) } else { several::check(loaded) }
}

/// Runs the part of the first process, or of the only one.
fn lead(whole: &Job, order: &Order, crew: &Crew, events: &dyn Events) -> Result<RunOutcome> {
    let (began_s, folder) = (order.clock.now_s(), &whole.folder);
    folder::create(folder)?;
    let _claimed = folder::claim(folder, events)?;
    folder::same_recipe(folder, &whole.loaded)?;
    let left = UnfinishedJobs::of(whole, events)?;
    if left.jobs().is_empty() {
        crew.tell(Word::NothingToDo)?;
        return Ok(RunOutcome::without_report(Outcome::Finished));
    }
    let (mut ready, mut logs): (Vec<Ready<'_>>, Vec<MetricsWriter>) = (Vec::new(), Vec::new());
    for job in left.jobs() {
        let Some((one, log)) = prepare(job, order, crew, events)? else {
            events.line("asked to stop while the text was prepared; run the same command again to go on");
            crew.tell(Word::Interrupted)?;
            return Ok(RunOutcome::without_report(Outcome::Interrupted));
        };
        ready.push(one);
        logs.push(log);
    }
    crew.tell(Word::Ready)?;
    let measures = whole.recipe().eval.enabled;
    let time_of = |one: &Ready<'_>| {
        let past = (began_s, spent_s(&one.job.log()));
        Timetable::of(whole.recipe(), (&one.flops, measures), &order.clock, past)
    };
    let times: Vec<Option<Timetable>> = ready.iter().map(time_of).collect();
    let parts: Vec<RankInputs<'_>> = (ready.iter().zip(&times))
        .map(|(one, time)| {
            let shared = inputs((one.job, &one.stores, one.vocab()), crew, order);
            RankInputs { time: time.as_ref(), ..shared }
        })
        .collect();
    let turns = &Turns::of(parts.len());
    let firsts: Vec<First<'_>> = (parts.iter().zip(&ready).enumerate())
        .map(|(index, (shared, one))| First {
            shared,
            tokenizer: &one.tokenizer,
            flops: &one.flops,
            clock: (&order.clock, began_s),
            events: &one.events,
            turns: (index, turns),
        })
        .collect();
    let steps = |device: Device| first(&firsts, device, logs, events);
    if whole.world() == 1 {
        return steps(whole.machine.open()?);
    }
    crew::run(whole, crew, steps, &|device| follow(&parts, device).map(drop))
}

/// Runs the part of any other process: waits until the first has prepared the run, and takes part in its steps.
fn follow_first(whole: &Job, order: &Order, crew: &Crew) -> Result<RunOutcome> {
    match crew.hear()? {
        Word::Ready => {}
        Word::NothingToDo => return Ok(RunOutcome::without_report(Outcome::Finished)),
        Word::Interrupted => return Ok(RunOutcome::without_report(Outcome::Interrupted)),
    }
    let left = UnfinishedJobs::of(whole, &Silent)?;
    let data = left.jobs().iter().map(prepared).collect::<Result<Vec<_>>>()?;
    // Only the first rank decides how time is divided.
    let parts: Vec<RankInputs<'_>> = (left.jobs().iter().zip(&data))
        .map(|(job, (stores, vocab))| inputs((job, stores, *vocab), crew, order))
        .collect();
    crew::run(whole, crew, |device| follow(&parts, device), &|_| Ok(())).map(RunOutcome::without_report)
}

/// Returns the inputs of every rank for a job, its data and its tokenizer's vocabulary size.
fn inputs<'a>(
    (job, stores, vocab): (&'a Job, &'a Stores, usize),
    crew: &Crew,
    order: &'a Order,
) -> RankInputs<'a> {
    RankInputs {
        job,
        stores,
        vocab,
        time: None,
        disk_sharers: crew.place(&job.machine, job.world()).disk,
        stop: &order.stop,
        save_requests: &order.save_requests,
        outside: Outside { allow_processes: order.allow_processes, functions: &order.functions },
    }
}

/// Unfinished jobs of a run: the run itself, or those of its adapters.
enum UnfinishedJobs<'a> {
    Itself(&'a Job),
    Adapters(Vec<Job>),
    Nothing,
}

impl<'a> UnfinishedJobs<'a> {
    fn of(whole: &'a Job, events: &dyn Events) -> Result<UnfinishedJobs<'a>> {
        if !whole.recipe().adapters.is_empty() {
            return several::unfinished(whole, events).map(UnfinishedJobs::Adapters);
        }
        if !is_done(whole)? {
            return Ok(UnfinishedJobs::Itself(whole));
        }
        let (folder, page) = (&whole.folder, whole.page());
        if !page.exists() {
            // The run was killed between its last event and its report.
            report::write(folder, &page)?;
        }
        let line = format!("{} is finished already; its report is {}", folder.display(), page.display());
        events.line(&line);
        Ok(UnfinishedJobs::Nothing)
    }

    fn jobs(&self) -> &[Job] {
        match self {
            UnfinishedJobs::Itself(job) => slice::from_ref(*job),
            UnfinishedJobs::Adapters(jobs) => jobs,
            UnfinishedJobs::Nothing => &[],
        }
    }
}
