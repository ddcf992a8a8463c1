//! Curation of a run's text before it is tokenized (`data.curate`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fathom_base::human;
use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{Outcome, Progress, Recipe, RunOptions};
use fathom_curate::{CorpusSpec, Curation, Error as CurateError, curation as pipeline_of};
use fathom_train::recipe::Data;

use crate::curate::{Engines, page, remote};
use crate::error::{Context, Result, refuse};
use crate::events::{Event, Events};
use crate::job::Job;
use crate::library::CURATE;

/// Interval between progress reports of a curation.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the name of the recipe that curates a run's text, if any.
pub fn name(data: &Data) -> Option<&str> {
    match data.curate.as_str() {
        "none" => None,
        "auto" if !data.is_gathered() => None,
        "auto" => Some("code"),
        recipe => Some(recipe),
    }
}

/// Returns the curation of the recipe that `data.curate` names.
///
/// # Errors
/// A recipe that cannot be loaded.
pub fn curation(data: &Data) -> Result<Option<Curation>> {
    let Some(name) = name(data) else { return Ok(None) };
    Ok(Some(Curation::of(Loaded::<Recipe>::load(layers(name)).context("data.curate")?)?))
}

fn layers(name: &str) -> Layers<'static> {
    Layers::with_library(CURATE).recipe(name)
}

/// Runs the text through the stages of `data.curate`; returns false if the run was asked to stop.
///
/// # Errors
/// Those of the curation.
pub fn run(job: &Job, spec: &CorpusSpec, stop: &Arc<AtomicBool>, events: &dyn Events) -> Result<bool> {
    let Some(name) = name(&job.recipe().data) else { return Ok(true) };
    let machine = &job.recipe().machine;
    let pipeline = pipeline_of(spec, layers(name), machine.memory_bytes, remote())?;
    let (latest, said, asked) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())), stop.clone());
    let (tell, say) = (latest.clone(), said.clone());
    let options = RunOptions {
        threads: machine.threads,
        stop: Some(Arc::new(move |_: &str| asked.load(Ordering::Relaxed))),
        progress: Some(Arc::new(move |progress: &Progress| {
            *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress.clone());
        })),
        say: Some(Arc::new(move |line: &str| {
            say.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        })),
        models: Some(Arc::new(Engines(Arc::new(Lines(said.clone()))))),
        ..RunOptions::default()
    };
    let pass_on = || {
        let lines: Vec<String> = said.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        lines.iter().for_each(|line| events.line(&format!("curating: {line}")));
    };
    let ran = thread::scope(|scope| {
        let running = scope.spawn(|| pipeline.run(&options));
        while !running.is_finished() {
            thread::sleep(LOOK);
            pass_on();
            if let Some(progress) = latest.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let (done, all) = (progress.parts_done as u64, progress.parts as u64);
                events.on(Event::Progress { text: words(&progress), done, all });
            }
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    pass_on();
    let stats = match ran {
        Err(CurateError::Interrupted { .. }) => return Ok(false),
        Ok(Outcome::Done(stats)) => stats,
        Ok(Outcome::Waiting { missing, .. }) => refuse!("the curation lacks {}", missing.join(", ")),
        Err(error) => return Err(error.into()),
    };
    page(pipeline.out(), &stats)?;
    events.line(&format!(
        "curated: {} of {} kept; {}",
        human::grouped(stats.documents_kept()),
        human::counted(stats.documents_read(), "document"),
        pipeline.out().join("report.html").display()
    ));
    Ok(true)
}

/// Collects notes and warnings for the single thread that reports them.
struct Lines(Arc<Mutex<Vec<String>>>);

impl Events for Lines {
    fn on(&self, event: Event) {
        if let Event::Note(text) | Event::Warning(text) = event {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }
}

/// Describes the progress of a curation.
fn words(progress: &Progress) -> String {
    let Progress { segment, parts_done, parts, text_bytes, .. } = progress;
    format!("curating, {segment}: {parts_done} of {parts} parts, {}", human::bytes(*text_bytes))
}
