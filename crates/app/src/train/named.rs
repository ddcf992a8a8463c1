//! Events of one of several adapters, marked with its name.

use crate::events::{Event, Events};
use crate::job::Job;

/// Passes on the events of a job; if it is one of several, its lines begin with the adapter's name.
pub(super) struct PrefixedEvents<'a> {
    events: &'a dyn Events,
    name: Option<String>,
}

impl Events for PrefixedEvents<'_> {
    fn on(&self, event: Event) {
        let Some(name) = &self.name else { return self.events.on(event) };
        let named = |text: &str| format!("{name}: {text}");
        match event {
            Event::Note(text) => self.events.note(&named(&text)),
            Event::Line(text) => self.events.line(&named(&text)),
            Event::Warning(text) => self.events.warn(&named(&text)),
            Event::Doing(text) => self.events.doing(&named(&text)),
            other => self.events.on(other),
        }
    }
}

impl<'a> PrefixedEvents<'a> {
    /// Wraps the listener of a job.
    pub fn of(job: &Job, events: &'a dyn Events) -> PrefixedEvents<'a> {
        PrefixedEvents { events, name: job.is_one_of_several().then(|| name(job)) }
    }
}

/// Returns an adapter's name.
pub(super) fn name(job: &Job) -> String {
    job.folder.file_name().map(|name| name.display().to_string()).unwrap_or_default()
}
