//! What a program hears while a job goes on.

use fathom_base::metrics::events;
use fathom_train::Settled;

use crate::figures::Figures;

/// Something that happened.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// About what the job uses: a machine, a launcher, a folder.
    Note(&'a str),
    /// About the work: a line that stays.
    Line(&'a str),
    /// Something is not as it should be, and the job goes on.
    Warning(&'a str),
    /// What is at hand, until the next event says otherwise.
    Doing(&'a str),
    /// What is at hand, and how much of it is done.
    Progress {
        /// In words.
        text: &'a str,
        /// Of `all`, in any unit.
        done: u64,
        /// The whole.
        all: u64,
    },
    /// A stage of training begins, or goes on after a resume.
    Stage {
        /// Its facts.
        stage: &'a events::Stage,
        /// What its steps run with.
        settled: &'a Settled,
    },
    /// A step of training ended.
    Step {
        /// Its figures.
        step: &'a events::Step,
        /// Which step of its stage it was, from 1.
        of_stage: u64,
        /// Steps of the stage, where they are known.
        stage_steps: Option<u64>,
        /// Expected seconds of all that follows the steps of the stage.
        later_s: f64,
    },
    /// The model was measured.
    Measured {
        /// When in the run.
        when: &'a str,
        /// What was found.
        figures: &'a Figures,
        /// Tokens of the context that needles are judged by.
        context_tokens: usize,
    },
    /// How far a curation is.
    #[cfg(feature = "curate")]
    Curating(&'a fathom_curate::pipeline::Progress),
    /// What a lesson of the run is: which of its text is learned.
    Lesson(&'a events::Lesson),
    /// There are no more steps.
    Trained,
}

/// Whoever listens. Ranks after the first are silent, so calls come from one thread at a time, though not always from the same.
pub trait Events: Send + Sync {
    /// Something happened.
    fn on(&self, event: Event<'_>);

    /// As [`Event::Note`].
    fn note(&self, text: &str) {
        self.on(Event::Note(text));
    }

    /// As [`Event::Line`].
    fn line(&self, text: &str) {
        self.on(Event::Line(text));
    }

    /// As [`Event::Warning`].
    fn warn(&self, text: &str) {
        self.on(Event::Warning(text));
    }

    /// As [`Event::Doing`].
    fn doing(&self, text: &str) {
        self.on(Event::Doing(text));
    }
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Events for Silent {
    fn on(&self, _: Event<'_>) {}
}
