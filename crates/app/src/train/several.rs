//! A run of several adapters over one base: the base is read once on each rank, and a step of each is made in turns.

use std::sync::Arc;
use std::time::Instant;

use fathom_base::metrics::MetricsWriter;
use fathom_base::recipe::Recipe as Loaded;
use fathom_tensor::Device;
use fathom_text::Tokenizer;
use fathom_train::recipe::Recipe;
use fathom_train::{Hooks, Outcome, Run, Stores, Trainer, rank_folder, together};

use super::begin::{Order, begin_log, check_alone, fits, is_done, prepared, shared};
use super::first::{First, Trained};
use super::rank::{Shared, Unwatched, trainer_of, trainer_of_other};
use super::watch::{BEFORE, Watch};
use super::{export, folder, moments};
use crate::crew::{self, Crew, Word};
use crate::error::{Context, Result};
use crate::events::{Event, Events, Silent};
use crate::job::Job;
use crate::several::{jobs, recipe_of};
use crate::text;

/// One of several, before the first step.
struct Ready<'a> {
    job: &'a Job,
    tokenizer: Tokenizer,
    stores: Stores,
    flops: Vec<f64>,
}

/// What is heard of one of several: its lines begin with its name.
struct Named<'a> {
    events: &'a dyn Events,
    name: String,
}

impl Events for Named<'_> {
    fn on(&self, event: Event<'_>) {
        let named = |text: &str| format!("{}: {text}", self.name);
        match event {
            Event::Note(text) => self.events.note(&named(text)),
            Event::Line(text) => self.events.line(&named(text)),
            Event::Warning(text) => self.events.warn(&named(text)),
            Event::Doing(text) => self.events.doing(&named(text)),
            other => self.events.on(other),
        }
    }
}

impl<'a> Named<'a> {
    fn of(job: &Job, events: &'a dyn Events) -> Named<'a> {
        Named { events, name: name(job) }
    }
}

/// What an adapter is called.
fn name(job: &Job) -> String {
    job.folder.file_name().map(|name| name.display().to_string()).unwrap_or_default()
}

/// Refuses a run of several of which one cannot be trained.
///
/// # Errors
/// The first that cannot, by name.
pub(super) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    for (index, one) in loaded.value.adapters.iter().enumerate() {
        let named = || format!("adapter \"{}\"", one.name);
        check_alone(&recipe_of(loaded, index).with_context(named)?).with_context(named)?;
    }
    Ok(())
}

/// Runs those that are not finished to their end, or until they are asked to stop.
///
/// # Errors
/// As [`super::train`], of each.
pub(super) fn lead(whole: &Job, order: &Order, crew: &Crew, events: &dyn Events) -> Result<Trained> {
    let started = Instant::now();
    std::fs::create_dir_all(&whole.folder)
        .with_context(|| format!("cannot create {}", whole.folder.display()))?;
    let _claimed = folder::claim(&whole.folder, events)?;
    folder::same_recipe(&whole.folder, &whole.loaded)?;
    let all = unfinished(whole, events)?;
    if all.is_empty() {
        crew.tell(Word::NothingToDo)?;
        return Ok(Trained::without_report(Outcome::Finished));
    }
    let (mut ready, mut logs): (Vec<Ready<'_>>, Vec<MetricsWriter>) = (Vec::new(), Vec::new());
    for job in &all {
        let Some((one, log)) = prepare(job, order, crew, events)? else {
            events.line("asked to stop while the text was prepared; run the same command again to go on");
            crew.tell(Word::Interrupted)?;
            return Ok(Trained::without_report(Outcome::Interrupted));
        };
        ready.push(one);
        logs.push(log);
    }
    crew.tell(Word::Ready)?;
    let mut parts: Vec<Shared<'_>> = Vec::new();
    for one in &ready {
        parts.push(shared(one.job, crew, (&one.stores, one.tokenizer.vocab_size()), None, order));
    }
    let steps = |device: Device| steps((&ready, &parts, logs), device, started, events);
    if whole.world() == 1 {
        return steps(whole.machine.open()?);
    }
    crew::run(whole, crew, steps, &|device| follow(&parts, device).map(drop))
}

/// The jobs of the adapters that are not finished.
fn unfinished(whole: &Job, events: &dyn Events) -> Result<Vec<Job>> {
    let mut left = Vec::new();
    let which: Vec<usize> = (0..whole.recipe().adapters.len()).collect();
    for (index, job) in jobs(&whole.loaded, &which, events)?.iter().enumerate() {
        if is_done(job)? {
            events.line(&format!("{}: finished already; it is {}", name(job), job.adapter().display()));
        } else {
            left.push(index);
        }
    }
    jobs(&whole.loaded, &left, events)
}

/// What a process that is not the first does: waits for the first to prepare all, and takes part in their steps.
///
/// # Errors
/// As [`super::train`], of each.
pub(super) fn follow_first(whole: &Job, order: &Order, crew: &Crew) -> Result<Trained> {
    match crew.hear()? {
        Word::Ready => {}
        Word::NothingToDo => return Ok(Trained::without_report(Outcome::Finished)),
        Word::Interrupted => return Ok(Trained::without_report(Outcome::Interrupted)),
    }
    let all = unfinished(whole, &Silent)?;
    let ready = all.iter().map(|job| Ok((job, prepared(job)?))).collect::<Result<Vec<_>>>()?;
    let parts: Vec<Shared<'_>> =
        ready.iter().map(|(job, (stores, vocab))| shared(job, crew, (stores, *vocab), None, order)).collect();
    crew::run(whole, crew, |device| follow(&parts, device), &|_| Ok(())).map(Trained::without_report)
}

/// What the ranks after the first do: the steps of each, and their share of what is saved.
fn follow(parts: &[Shared<'_>], device: Device) -> Result<Outcome> {
    let mut runs = Vec::new();
    for (shared, trainer) in parts.iter().zip(trainers(parts, &device, &Silent)?) {
        let own = rank_folder(&shared.job.folder, device.mesh.rank());
        std::fs::create_dir_all(&own)?;
        runs.push(shared.run(MetricsWriter::open(own.join("metrics.jsonl"))?, trainer, None)?);
    }
    let mut unwatched: Vec<Unwatched> = runs.iter().map(|_| Unwatched).collect();
    let mut hooks: Vec<&mut dyn Hooks> = unwatched.iter_mut().map(|one| one as &mut dyn Hooks).collect();
    let outcome = together(&mut runs, &mut hooks)?;
    if outcome == Outcome::Finished {
        runs.into_iter().try_for_each(|run| run.finish().1.sync())?;
    }
    Ok(outcome)
}

/// A rank's trainers, over one base.
fn trainers(parts: &[Shared<'_>], device: &Device, events: &dyn Events) -> Result<Vec<Trainer>> {
    let mut trainers: Vec<Trainer> = Vec::new();
    for Shared { job, vocab, .. } in parts {
        trainers.push(match trainers.first() {
            Some(other) => trainer_of_other(job, other, *vocab)?,
            None => trainer_of(job, device, *vocab, events)?,
        });
    }
    Ok(trainers)
}

/// What comes before the first step of one, and its log; nothing if it was asked to stop.
fn prepare<'a>(
    job: &'a Job,
    order: &Order,
    crew: &Crew,
    events: &dyn Events,
) -> Result<Option<(Ready<'a>, MetricsWriter)>> {
    let named = Named::of(job, events);
    std::fs::create_dir_all(&job.folder)
        .with_context(|| format!("cannot create {}", job.folder.display()))?;
    folder::same_recipe(&job.folder, &job.loaded)?;
    let mut metrics = MetricsWriter::open(job.log())?;
    text::check(job)?;
    let flops = fits(job, crew).map_err(|error| job.placed(error))?;
    begin_log(job, &order.command, &mut metrics, &named)?;
    let Some((tokenizer, corpus)) = text::corpus(job, &mut metrics, &order.stop, &named)? else {
        return Ok(None);
    };
    export::check(job)?;
    let stores = Stores::open(job.recipe(), corpus.map(Arc::new), tokenizer.vocab_size())?;
    stores.check_tokenizer(&tokenizer)?;
    Ok(Some((Ready { job, tokenizer, stores, flops }, metrics)))
}

/// The steps of all on the first rank, and what each leaves.
fn steps(
    (ready, parts, logs): (&[Ready<'_>], &[Shared<'_>], Vec<MetricsWriter>),
    device: Device,
    started: Instant,
    events: &dyn Events,
) -> Result<Trained> {
    let alone = device.mesh.grid().ranks() == 1;
    let trainers = trainers(parts, &device, events)?;
    let named: Vec<Named<'_>> = ready.iter().map(|one| Named::of(one.job, events)).collect();
    let firsts: Vec<First<'_>> = (parts.iter().zip(ready).zip(&named))
        .map(|((shared, one), named)| First {
            shared,
            tokenizer: &one.tokenizer,
            flops: &one.flops,
            started,
            events: named,
        })
        .collect();
    let (mut runs, mut boards): (Vec<Run<'_>>, Vec<_>) = (Vec::new(), Vec::new());
    for ((one, trainer), mut metrics) in firsts.iter().zip(trainers).zip(logs) {
        one.say_model(&trainer, &mut metrics)?;
        let run = one.shared.run(metrics, trainer, None)?;
        boards.push(one.board(one.say_resumed(&run))?);
        runs.push(run);
    }
    let mut watches: Vec<Watch<'_>> =
        firsts.iter().zip(&mut boards).map(|(one, board)| one.watch(alone, board)).collect();
    for (run, watch) in runs.iter_mut().zip(&mut watches) {
        if alone && run.progress().step == 0 && moments::before(watch.recipe) == Some(0) {
            run.before(&mut |trainer, metrics| watch.measure(trainer.into(), BEFORE, 0, metrics))?;
        }
    }
    let mut hooks: Vec<&mut dyn Hooks> = watches.iter_mut().map(|watch| watch as &mut dyn Hooks).collect();
    let outcome = together(&mut runs, &mut hooks)?;
    drop(watches);
    events.on(Event::Trained);
    if outcome == Outcome::Interrupted {
        events.line("saved; run the same command again to go on");
        return Ok(Trained::without_report(outcome));
    }
    let mut unsaved = None;
    for ((one, run), board) in firsts.iter().zip(runs).zip(&mut boards) {
        let progress = run.progress().clone();
        unsaved = unsaved.or_else(|| run.nothing_saved().map(str::to_owned));
        let (trainer, metrics) = run.finish();
        let report = one.finish(trainer, metrics, board, &progress)?;
        let adapter = one.shared.job.adapter();
        one.events.line(&format!(
            "{} steps; the adapter is {}, its report {}",
            progress.step,
            adapter.display(),
            report.page.display()
        ));
    }
    Ok(Trained { outcome, report: None, unsaved })
}
