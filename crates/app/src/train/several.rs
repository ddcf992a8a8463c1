//! Several adapters over one base in one run: each is a job of its own.

use fathom_base::recipe::Recipe as Loaded;
use fathom_train::recipe::Recipe;

use super::begin::{check_alone, is_done};
use crate::error::{Context, Result};
use crate::events::{Event, Events};
use crate::job::Job;
use crate::several::{jobs, recipe_of};

/// What is heard of a job: the lines of one of several begin with its name.
pub(super) struct Named<'a> {
    events: &'a dyn Events,
    name: Option<String>,
}

impl Events for Named<'_> {
    fn on(&self, event: Event<'_>) {
        let Some(name) = &self.name else { return self.events.on(event) };
        let named = |text: &str| format!("{name}: {text}");
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
    /// An adapter's name, if it is one of several.
    pub fn of(job: &Job, events: &'a dyn Events) -> Named<'a> {
        Named { events, name: job.is_one_of_several().then(|| name(job)) }
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

/// The jobs of the adapters that are not finished, each in a folder of its own.
///
/// # Errors
/// What is wrong with the recipe of one, which is named.
pub(super) fn unfinished(whole: &Job, events: &dyn Events) -> Result<Vec<Job>> {
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
