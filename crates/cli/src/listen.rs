//! Prints a job's messages where no progress is shown.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use fathom_app::{Event, Events};

use crate::console;

/// Prints notes once each, and warnings.
#[derive(Default)]
pub struct Plain {
    noted: Mutex<BTreeSet<String>>,
}

impl Plain {
    fn is_new(&self, note: &str) -> bool {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).insert(note.to_owned())
    }
}

impl Events for Plain {
    fn on(&self, event: Event) {
        match event {
            Event::Note(text) if self.is_new(&text) => console::note(&text),
            Event::Line(text) => console::note(&text),
            Event::Warning(text) => console::warn(&text),
            _ => {}
        }
    }
}
