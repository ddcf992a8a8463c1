//! Events of a running job.

use fathom_base::metrics::events;
use fathom_train::StageSettings;

use crate::figures::Figures;

/// An event of a job.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Information about a job's resources: a machine, a launcher, a folder.
    Note(&'a str),
    /// Information about the work; a line that stays on screen.
    Line(&'a str),
    /// Something is wrong, and the job continues.
    Warning(&'a str),
    /// Current activity, until the next event.
    Doing(&'a str),
    /// Current activity with its progress.
    Progress {
        /// Description of the activity.
        text: &'a str,
        /// Amount done out of `all`, in any unit.
        done: u64,
        /// Total amount.
        all: u64,
    },
    /// A stage of training starts, or continues after a resume.
    Stage {
        /// Facts about the stage.
        stage: &'a events::Stage,
        /// Settings that its steps run with.
        settled: &'a StageSettings,
    },
    /// A step of training ended.
    Step {
        /// Figures of the step.
        step: &'a events::Step,
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
        when: &'a str,
        /// Results of the measurement.
        figures: &'a Figures,
        /// Context for the needle test, in tokens.
        context_tokens: usize,
    },
    /// Progress of a curation.
    #[cfg(feature = "curate")]
    Curating(&'a fathom_curate::pipeline::Progress),
    /// An example of the run's training data, with the text that is learned marked.
    Lesson(&'a events::Lesson),
    /// All steps are done.
    Trained,
}

/// Receives a job's events. Ranks other than the first are silent, so calls come from one thread at a time, though not
/// always the same one.
pub trait Events: Send + Sync {
    /// Handles an event.
    fn on(&self, event: Event<'_>);

    /// Sends an [`Event::Note`].
    fn note(&self, text: &str) {
        self.on(Event::Note(text));
    }

    /// Sends an [`Event::Line`].
    fn line(&self, text: &str) {
        self.on(Event::Line(text));
    }

    /// Sends an [`Event::Warning`].
    fn warn(&self, text: &str) {
        self.on(Event::Warning(text));
    }

    /// Sends an [`Event::Doing`].
    fn doing(&self, text: &str) {
        self.on(Event::Doing(text));
    }
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Events for Silent {
    fn on(&self, _: Event<'_>) {}
}
