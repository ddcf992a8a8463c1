//! Events of a running job.

use std::sync::Arc;

use fathom_base::metrics::events;
use fathom_train::StageSettings;
use serde::Serialize;

use crate::figures::Figures;

/// An event of a job.
#[derive(Clone, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Information about a job's resources: a machine, a launcher, a folder.
    Note(String),
    /// Information about the work; a line that stays on screen.
    Line(String),
    /// Something is wrong, and the job continues.
    Warning(String),
    /// Current activity, until the next event.
    Doing(String),
    /// Current activity with its progress.
    Progress {
        /// Description of the activity.
        text: String,
        /// Amount done out of `all`, in any unit.
        done: u64,
        /// Total amount.
        all: u64,
    },
    /// A stage of training starts, or continues after a resume.
    Stage {
        /// Facts about the stage.
        stage: Box<events::Stage>,
        /// Settings that its steps run with; not serialized.
        #[serde(skip)]
        settings: Arc<StageSettings>,
    },
    /// A step of training ended.
    Step {
        /// Figures of the step.
        step: Box<events::Step>,
        /// Number of the step within its stage, from 1.
        of_stage: u64,
        /// Number of steps of the stage, if known.
        stage_steps: Option<u64>,
        /// Expected seconds of all work after the stage's steps.
        later_s: f64,
    },
    /// The model was measured.
    Measured {
        /// Point of the run at which it was measured.
        when: String,
        /// Results of the measurement.
        figures: Box<Figures>,
        /// Context for the needle test, in tokens.
        context_tokens: usize,
    },
    /// Progress of a curation.
    #[cfg(feature = "curate")]
    Curating(fathom_curate::pipeline::Progress),
    /// An example of the run's training data, with the text that is learned marked.
    Lesson(Box<events::Lesson>),
    /// All steps are done.
    Trained,
}

/// Receives a job's events. Ranks other than the first are silent, so calls come from one thread at a time, though not
/// always the same one.
pub trait Events: Send + Sync {
    /// Handles an event.
    fn on(&self, event: Event);

    /// Sends an [`Event::Note`].
    fn note(&self, text: &str) {
        self.on(Event::Note(text.into()));
    }

    /// Sends an [`Event::Line`].
    fn line(&self, text: &str) {
        self.on(Event::Line(text.into()));
    }

    /// Sends an [`Event::Warning`].
    fn warn(&self, text: &str) {
        self.on(Event::Warning(text.into()));
    }

    /// Sends an [`Event::Doing`].
    fn doing(&self, text: &str) {
        self.on(Event::Doing(text.into()));
    }
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Events for Silent {
    fn on(&self, _: Event) {}
}
