//! Requests, and the sequences that answer them.

use std::rc::Rc;
use std::time::{Duration, Instant};

use fathom_base::{Event, Flow, GenerateRequest, TokenLogprob, Usage};
use fathom_grad::Terms;
use fathom_model::{RopeSpec, Spec};

use super::beams::{Beam, Search};
use super::draft::{Draft, DraftState};
use super::reading::StoreProgress;
use crate::adapted::AdaptedModel;
use crate::answer::Writer;
use crate::pages::{Checkpoint, Root, SourceText, Table};
use crate::sampler::Sampler;
use crate::structure::Constraint;

/// Seconds of waiting that are worth one step of priority.
const AGE_S: f64 = 10.0;

/// Receives a request's events.
pub type Listener<'e> = Box<dyn FnMut(Event) -> Flow + 'e>;

/// A request that may be queued.
pub(crate) struct CheckedRequest {
    /// Ids of its prompt.
    pub ids: Vec<u32>,
    pub asked: GenerateRequest,
    pub structure: Option<Constraint>,
    /// First token of the prompt that is reported, if log-probabilities of the prompt are.
    pub reported_from: usize,
}

impl CheckedRequest {
    /// A copy for another rank.
    pub fn again(&mut self) -> CheckedRequest {
        let structure = self.structure.as_mut().map(Constraint::again);
        let reported_from = self.reported_from;
        CheckedRequest { ids: self.ids.clone(), asked: self.asked.clone(), structure, reported_from }
    }
}

/// The state of a request shared by its answers.
pub(super) struct Request<'e> {
    pub listener: Listener<'e>,
    pub asked: GenerateRequest,
    /// First token of the prompt that is reported, if log-probabilities of the prompt are.
    pub reported_from: usize,
    /// Number of answers that have not ended.
    pub open: usize,
    pub usage: Usage,
    /// By the scheduler's clock, which makes decisions; the instants are only measured.
    pub arrived: Duration,
    pub submitted: Instant,
    pub started: Option<Instant>,
    pub first: Option<Instant>,
    pub logprobs: Vec<TokenLogprob>,
    /// Present if the request is a beam search.
    pub search: Option<Search>,
}

/// A prompt with one of its answers.
pub(super) struct Sequence<'e> {
    pub request: u64,
    /// The request's scope.
    pub scope: String,
    pub adapter: Option<Rc<AdaptedModel>>,
    /// The text that it answers, if the model has a source.
    pub source: Option<Rc<SourceText>>,
    pub answer: usize,
    pub ids: Vec<u32>,
    /// Number of tokens of the prompt.
    pub prompt: usize,
    pub held: usize,
    pub table: Table,
    pub slot: usize,
    /// States after its cached prefix, until it has a slot for them.
    pub checkpoint: Option<Checkpoint>,
    /// True if it uses the rotary embeddings of long sequences.
    pub long: bool,
    pub sampler: Sampler,
    pub writer: Writer<'e>,
    /// The structure that the answer must have.
    pub structure: Option<Constraint>,
    pub drafting: DraftState,
    /// The guessing state of the draft model.
    pub guessing: DraftState,
    /// The draft model's progress in it.
    pub draft: Option<Draft>,
    /// Guesses of this step.
    pub drafts: Vec<u32>,
    /// Number of tokens before guesses of this step, if layers have states: those from there may be taken back.
    pub saved: Option<usize>,
    /// Number of tokens that were read already and are read again, as states were taken back.
    pub again: usize,
    /// True if the draft model made the guesses.
    pub guessed: bool,
    /// Present if it is a beam.
    pub beam: Option<Beam>,
    /// Progress of storing its pages on disk.
    pub kept: StoreProgress,
    /// True if the store was searched for its prefix.
    pub fetched: bool,
    /// True if it may become longer than the pages in memory, so that its pages are on disk.
    pub on_disk: bool,
    /// By the scheduler's clock.
    pub arrived: Duration,
    pub priority: i32,
}

impl<'e> Sequence<'e> {
    /// A sequence for another answer, without pages and guesses.
    pub fn again(&mut self, answer: usize, writer: Writer<'e>, table: Table) -> Sequence<'e> {
        let structure = self.structure.as_mut().map(Constraint::again);
        Sequence {
            request: self.request,
            scope: self.scope.clone(),
            adapter: self.adapter.clone(),
            source: self.source.clone(),
            answer,
            ids: self.ids.clone(),
            prompt: self.prompt,
            held: 0,
            table,
            slot: 0,
            checkpoint: None,
            long: self.long,
            sampler: self.sampler.again(answer),
            writer,
            structure,
            drafting: self.drafting.fresh(),
            guessing: self.guessing.fresh(),
            draft: None,
            drafts: Vec::new(),
            saved: None,
            again: 0,
            guessed: false,
            beam: None,
            kept: self.kept.clone(),
            fetched: false,
            on_disk: self.on_disk,
            arrived: self.arrived,
            priority: self.priority,
        }
    }

    /// True if it answers this text.
    pub fn answers_to(&self, source: &Rc<SourceText>) -> bool {
        self.source.as_ref().is_some_and(|own| Rc::ptr_eq(own, source))
    }

    /// Tokens of its source that are still to be read.
    pub fn unread_source(&self) -> usize {
        self.source.as_ref().map_or(0, |source| source.unread())
    }

    /// Tokens of its source.
    pub fn source_tokens(&self) -> usize {
        self.source.as_ref().map_or(0, |source| source.ids.len())
    }

    /// The ids of its prompt, after `lead` virtual ones.
    pub fn prompt_ids(&self, lead: usize) -> Vec<u32> {
        self.source.as_ref().map_or_else(|| self.ids[lead..].to_vec(), |source| source.ids.clone())
    }

    /// True if it waits for the other beams of its request.
    pub fn waits(&self) -> bool {
        self.beam.as_ref().is_some_and(Beam::is_read)
    }

    /// Hash of its adapter; empty for the base.
    pub fn identity(&self) -> &str {
        self.adapter.as_ref().map_or("", |adapter| &adapter.identity)
    }

    /// Terms of its adapter, if its rows can share a pass with others.
    pub fn terms(&self) -> Option<&Rc<Terms>> {
        self.adapter.as_ref().and_then(|adapter| adapter.terms.as_ref())
    }

    /// The pass for its rows: an adapter's own, or the base's if this is empty.
    pub fn pass(&self) -> &str {
        if self.terms().is_some() { "" } else { self.identity() }
    }

    /// The properties in which sequences that share pages must agree.
    pub fn root(&self, spec: &Spec) -> Root {
        // If rotary embeddings depend on every length, only prompts of one length share prefixes.
        let changes = spec.rereads_beyond().is_none() && spec.ropes.iter().any(RopeSpec::looks_at_length);
        let regime = if changes { self.prompt } else { usize::from(self.long) };
        // Answers to different texts share nothing.
        let of_source = self.source.as_ref().map_or(String::new(), |source| format!(" {:?}", source.ids));
        (self.scope.clone(), self.identity().to_string() + &of_source, regime)
    }

    /// True if it uses the rotary embeddings of long ones at this length.
    pub fn is_long_at(&self, spec: &Spec, tokens: usize) -> bool {
        spec.rereads_beyond().is_some_and(|beyond| tokens.max(self.prompt) > beyond)
    }

    /// Number of tokens that are not read.
    pub fn unread(&self) -> usize {
        self.ids.len() - self.held
    }

    /// True if its next tokens may be guessed: not in a step that reads tokens again, so that one of the two goes on.
    pub fn guesses(&self) -> bool {
        self.answers() && self.again == 0 && self.beam.is_none()
    }

    /// True if its prompt is read and only its last token was never read.
    pub fn answers(&self) -> bool {
        self.unread() == 1 + self.again && self.held >= self.prompt
    }
}

/// Rank in the order of running: by priority and waiting time, in tenths of a step of priority.
pub(super) fn rank(sequence: &Sequence<'_>, now: Duration) -> i64 {
    let waited = now.saturating_sub(sequence.arrived).as_secs_f64();
    i64::from(sequence.priority) * 10 + (waited / AGE_S * 10.0) as i64
}
