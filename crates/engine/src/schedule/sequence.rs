//! A request, and the sequences that answer it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use fathom_base::{Event, Flow, GenerateRequest, TokenLogprob, Usage};
use fathom_grad::Terms;

use super::beams::{Beam, Search};
use super::draft::Drafting;
use super::drafter::Draft;
use super::stored::Kept;
use crate::adapters::Adapted;
use crate::answer::Writer;
use crate::pages::Table;
use crate::sampler::Sampler;
use crate::structure::Constraint;

/// Seconds of waiting that count as much as one more in priority.
const AGE_S: f64 = 10.0;

/// Receives a request's events.
pub type Listener<'e> = Box<dyn FnMut(Event) -> Flow + 'e>;

/// A request that may be queued.
pub(crate) struct Checked {
    /// Its prompt.
    pub ids: Vec<u32>,
    pub asked: GenerateRequest,
    pub structure: Option<Constraint>,
}

impl Checked {
    /// The same for another rank.
    pub fn again(&mut self) -> Checked {
        let structure = self.structure.as_mut().map(Constraint::again);
        Checked { ids: self.ids.clone(), asked: self.asked.clone(), structure }
    }
}

/// A request's part that its answers share.
pub(super) struct Request<'e> {
    pub listener: Listener<'e>,
    pub asked: GenerateRequest,
    /// Answers that have not ended.
    pub open: usize,
    pub usage: Usage,
    /// By the scheduler's clock, which decides; the instants are measured and decide nothing.
    pub arrived: Duration,
    pub submitted: Instant,
    pub started: Option<Instant>,
    pub first: Option<Instant>,
    pub logprobs: Vec<TokenLogprob>,
    /// Of a request that searches.
    pub search: Option<Search>,
}

/// A prompt with what is known of one answer.
pub(super) struct Sequence<'e> {
    pub request: u64,
    /// Its request's.
    pub scope: String,
    pub adapter: Option<Rc<Adapted>>,
    pub answer: usize,
    pub ids: Vec<u32>,
    /// Those of the prompt.
    pub prompt: usize,
    pub held: usize,
    pub table: Table,
    pub slot: usize,
    /// Rotary embeddings are those of long sequences.
    pub long: bool,
    pub sampler: Sampler,
    pub writer: Writer<'e>,
    /// What the answer has to be.
    pub structure: Option<Constraint>,
    pub drafting: Drafting,
    /// The same of the draft model.
    pub guessing: Drafting,
    /// What the draft model has read of it.
    pub draft: Option<Draft>,
    /// Tokens that are guessed to follow, of this step.
    pub drafts: Vec<u32>,
    /// It was the draft model that did.
    pub guessed: bool,
    /// Where it is one of the beginnings that a search follows.
    pub beam: Option<Beam>,
    /// How far its pages are on disk.
    pub kept: Kept,
    /// It was looked whether what it begins with is on disk.
    pub fetched: bool,
    /// It may become longer than the pages in memory, so that it has pages on disk.
    pub on_disk: bool,
    /// By the scheduler's clock.
    pub arrived: Duration,
    pub priority: i32,
}

impl<'e> Sequence<'e> {
    /// The same for another answer, without pages and guesses.
    pub fn again(&mut self, answer: usize, writer: Writer<'e>, table: Table) -> Sequence<'e> {
        let structure = self.structure.as_mut().map(Constraint::again);
        Sequence {
            request: self.request,
            scope: self.scope.clone(),
            adapter: self.adapter.clone(),
            answer,
            ids: self.ids.clone(),
            prompt: self.prompt,
            held: 0,
            table,
            slot: 0,
            long: self.long,
            sampler: self.sampler.again(answer),
            writer,
            structure,
            drafting: self.drafting.fresh(),
            guessing: self.guessing.fresh(),
            draft: None,
            drafts: Vec::new(),
            guessed: false,
            beam: None,
            kept: self.kept.clone(),
            fetched: false,
            on_disk: self.on_disk,
            arrived: self.arrived,
            priority: self.priority,
        }
    }

    /// It waits for the other beams of its request.
    pub fn waits(&self) -> bool {
        self.beam.as_ref().is_some_and(Beam::is_read)
    }

    /// The hash of its adapter; empty for the base's.
    pub fn identity(&self) -> &str {
        self.adapter.as_ref().map_or("", |adapter| &adapter.identity)
    }

    /// What its rows add to the products of the pass that they go through with others.
    pub fn terms(&self) -> Option<&Rc<Terms>> {
        self.adapter.as_ref().and_then(|adapter| adapter.terms.as_ref())
    }

    /// The pass that its rows go through: an adapter's own, or, if this is empty, the base's.
    pub fn pass(&self) -> &str {
        if self.terms().is_some() { "" } else { self.identity() }
    }

    /// Its prompt is read, and its last token alone is not.
    pub fn answers(&self) -> bool {
        self.ids.len() - self.held == 1 && self.held >= self.prompt
    }
}

/// The order in which sequences run: by priority and how long they have waited, in tenths of a step of priority.
pub(super) fn rank(sequence: &Sequence<'_>, now: Duration) -> i64 {
    let waited = now.saturating_sub(sequence.arrived).as_secs_f64();
    i64::from(sequence.priority) * 10 + (waited / AGE_S * 10.0) as i64
}
