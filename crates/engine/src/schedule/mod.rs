//! Continuous batching: in each step every answered sequence yields one token, and prompts fill the rest of a token
//! budget in chunks, all as rows of one packed stream. Requests join and leave between steps.
//!
//! A sequence is its tokens and the number of them *held* in pages; a step reads some of the others, and the next token
//! is chosen when all are read. A prompt, an answer, and a sequence whose pages were preempted are thus the same thing.
//! The bits of an answer do not depend on concurrent sequences, chunks, pages, or cached prefixes.

mod answers;
mod batch;
mod beams;
mod choice;
mod clock;
mod draft;
mod drafter;
mod guesses;
mod memory;
mod next;
mod reading;
mod search;
mod sequence;
mod step;

use std::ops::Range;
use std::time::{Duration, Instant};

use fathom_base::{Event, GenerateRequest, Load, Stop, Usage};
use fathom_grad::VIRTUAL;
use fathom_model::TARGET_START;
use fathom_tensor::{SCAN_STEPS, Tensor};

use crate::answer::Writer;
use crate::bounds::Bounds;
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;
use crate::pages::{Feed, SourceText};
use crate::sampler::Sampler;
use crate::store::{Beginnings, HeldReads, StoreLocation};
use answers::Answers;
use batch::Batch;
use beams::{Beam, Search};
use clock::Clock;
use draft::DraftState;
use drafter::Drafter;
pub(crate) use drafter::Guess;
use memory::Memory;
use reading::StoreProgress;
pub(crate) use sequence::CheckedRequest;
pub use sequence::Listener;
use sequence::{Request, Sequence};

/// A sequence whose tokens were all read in this step: its index, and the rows of hidden states after its last token
/// and after each guess.
struct Ready {
    index: usize,
    rows: Range<usize>,
}

/// The batch of a model.
pub struct Scheduler<'e> {
    pub(crate) engine: &'e Engine<'e>,
    memory: Memory,
    batch: Batch<'e>,
    answers: Answers<'e>,
    bounds: Bounds,
    /// Present if the engine has a draft model.
    drafter: Option<Drafter<'e>>,
    /// Start of the step.
    started: Instant,
}

impl<'e> Scheduler<'e> {
    /// A scheduler without requests.
    pub fn new(engine: &'e Engine<'e>, capacity: Capacity) -> Scheduler<'e> {
        Scheduler {
            engine,
            memory: Memory::new(engine, &capacity),
            batch: Batch::new(capacity.sequences),
            answers: Answers::new(if engine.is_whole() { Clock::own() } else { Clock::following() }),
            drafter: engine.draft.map(|draft| Drafter::new(draft, &capacity)),
            bounds: engine.bounds(capacity),
            started: Instant::now(),
        }
    }

    /// For one of several ranks that take the same steps: the time and the draft model's guesses come from the first
    /// rank ([`Scheduler::set_time`], [`Scheduler::prepare`]).
    pub(crate) fn over_ranks(mut self) -> Scheduler<'e> {
        self.set_time(Duration::ZERO);
        self
    }

    /// Sets the clock; all ranks must be given the same time.
    pub(crate) fn set_time(&mut self, now: Duration) {
        self.answers.clock.tell(now);
    }

    /// Stores prefixes on disk.
    ///
    /// # Errors
    /// The folder has files and is not a store; errors of the system.
    pub fn keeping(self, at: &StoreLocation) -> Result<Scheduler<'e>, Error> {
        let beginnings = Beginnings::open(at)?;
        self.sharing(&beginnings)
    }

    /// Stores prefixes in an open folder, on each rank of a model.
    pub(crate) fn sharing(mut self, beginnings: &Beginnings) -> Result<Scheduler<'e>, Error> {
        self.memory.share(self.engine.device, beginnings, self.bounds.capacity.on_disk)?;
        Ok(self)
    }

    /// The same, where a disk that has not answered for so long is given up.
    pub fn with_patience(mut self, late: Duration) -> Scheduler<'e> {
        self.memory.late = late;
        self
    }

    /// Queues a request; returns its number.
    ///
    /// # Errors
    /// The request is out of range, or longer than the context or the pages; there is no such adapter.
    pub fn submit(&mut self, asked: GenerateRequest, listener: Listener<'e>) -> Result<u64, Error> {
        let ids = self.bounds.ids(self.engine.tokenizer, &asked.prompt)?;
        self.bounds.check(&ids, &asked)?;
        let vocab = self.bounds.vocab;
        let compile = |structure| self.answers.structures.compile(self.engine.tokenizer, vocab, structure);
        let structure = asked.structure.as_ref().map(compile).transpose()?;
        let request = self.answers.number();
        self.queue(request, CheckedRequest { ids, asked, structure, reported_from: 0 }, listener)?;
        Ok(request)
    }

    /// Queues a checked request under a number chosen by the caller.
    pub(crate) fn queue(
        &mut self,
        request: u64,
        CheckedRequest { ids, asked, structure, reported_from }: CheckedRequest,
        listener: Listener<'e>,
    ) -> Result<(), Error> {
        self.answers.clock.look();
        if asked.deadline_s.is_some() && !self.answers.clock.runs() {
            return Err(Error::Unsupported(
                "a deadline is for a model on one rank: each rank has a clock of its own".into(),
            ));
        }
        let (how, arrived, prompt_tokens) = (&asked.sampling, self.answers.clock.now(), ids.len());
        let (source, ids) = if self.bounds.source {
            (Some(SourceText::new(ids)), vec![TARGET_START.cast_unsigned()])
        } else {
            (None, ids)
        };
        let (sampler, writer) = self.answerer(&asked, &ids)?;
        let search = Search::of(&asked, &ids, sampler.ends());
        let ids: Vec<u32> = self.led().chain(ids).collect();
        let adapter = asked.adapter.as_deref().map(|name| self.engine.adapter(name)).transpose()?;
        let on_disk = self.bounds.exceeds_memory(ids.len() + how.max_tokens);
        self.batch.waiting.push(Sequence {
            request,
            scope: asked.scope.clone(),
            adapter,
            source,
            answer: 0,
            prompt: ids.len(),
            ids,
            held: 0,
            table: self.memory.pages.table(),
            slot: 0,
            checkpoint: None,
            long: false,
            sampler,
            writer,
            structure,
            drafting: DraftState::new(self.drafts()),
            guessing: DraftState::new(self.drafts()),
            draft: None,
            drafts: Vec::new(),
            saved: None,
            again: 0,
            guessed: false,
            beam: search.as_ref().map(|_| Beam::default()),
            kept: StoreProgress::default(),
            fetched: false,
            on_disk,
            arrived,
            priority: asked.priority,
        });
        let record = Request {
            listener,
            open: asked.answers,
            asked,
            reported_from,
            usage: Usage { prompt_tokens, ..Usage::default() },
            arrived,
            submitted: Instant::now(),
            started: None,
            first: None,
            logprobs: Vec::new(),
            search,
        };
        self.answers.requests.insert(request, record);
        Ok(())
    }

    /// The virtual tokens before a sequence.
    fn led(&self) -> impl Iterator<Item = u32> + use<> {
        (VIRTUAL..VIRTUAL + self.bounds.lead).map(|id| id as u32)
    }

    /// Maximum guesses in a step. Where layers have states, they are taken one after the other with the token before them, and
    /// so are the right ones that are read again after a wrong one.
    fn drafts(&self) -> usize {
        let most = if self.engine.has_states() { SCAN_STEPS - 1 } else { usize::MAX };
        self.engine.limits.draft_tokens.min(most)
    }

    /// The sampler and the writer of an answer to a prompt.
    fn answerer(&self, asked: &GenerateRequest, prompt: &[u32]) -> Result<(Sampler, Writer<'e>), Error> {
        let (tokenizer, how) = (self.engine.tokenizer, &asked.sampling);
        let special = |id: &u32| tokenizer.is_special(*id);
        let id = |spelled: &String| Some((tokenizer.token_id(spelled).filter(special)?, spelled.clone()));
        let shown = asked.shown.iter().filter_map(id).collect();
        let own = if how.ignore_eos { &[][..] } else { tokenizer.stops() };
        let sampler = Sampler::new(how, prompt, &[&how.stop_ids, own].concat())?;
        Ok((sampler, Writer::new(tokenizer.stream_after(prompt), how, own).showing(shown)))
    }

    /// Ends a request with its current answers; it gets no further events.
    pub fn cancel(&mut self, request: u64) {
        self.answers.requests.remove(&request);
        self.drop_sequences(request);
    }

    fn drop_sequences(&mut self, request: u64) {
        let (gone, ran) = self.batch.take(request);
        gone.into_iter().take(ran).for_each(|sequence| self.retire(sequence));
        self.memory.forget_reads(&self.batch.waiting);
    }

    /// Drops all prefixes, after the weights have changed.
    ///
    /// # Panics
    /// If a request is running, part of which was computed with the previous weights.
    pub fn forget(&mut self) {
        let running = self.batch.running.len();
        assert!(running == 0, "prefixes are given up while {running} sequences run");
        self.memory.clear();
    }

    /// Drops all prefixes in memory, and erases those on disk for one scope or all; returns their bytes. Running
    /// sequences are not stored any more.
    pub fn erase(&mut self, scope: Option<&str>) -> u64 {
        let all = self.batch.running.iter_mut().chain(&mut self.batch.waiting);
        all.for_each(|sequence| sequence.kept = StoreProgress::default());
        self.memory.erase(scope)
    }

    /// Suspends reads from disk after `after` more pages, until the result is dropped; `None` without a store.
    pub fn hold_reads(&self, after: u64) -> Option<HeldReads> {
        self.memory.hold_reads(after)
    }

    /// True if no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.batch.is_empty()
    }

    /// The current load.
    pub fn load(&self) -> Load {
        self.memory.load(Load {
            running: self.batch.running.len(),
            waiting: self.batch.waiting.len(),
            waiting_tokens: self.batch.waiting.iter().map(|it| it.unread() + it.unread_source()).sum(),
            draft_pages_used: self.drafter.as_ref().map_or(0, Drafter::used),
            prefill_tokens_per_s: self.answers.prefill_tokens_per_s(),
            ..self.answers.totals.clone()
        })
    }

    /// Ends the requests whose time is up.
    fn expire(&mut self) {
        for id in self.answers.expired() {
            if self.answers.requests.get(&id).is_some_and(|it| it.search.is_some()) {
                self.cut(id);
                continue;
            }
            for answer in self.batch.of(id).map(|it| it.answer).collect::<Vec<usize>>() {
                self.answers.tell(id, Event::Ended { answer, stop: Stop::Deadline });
            }
            self.answers.finish(id);
            self.drop_sequences(id);
        }
    }

    /// Preempts a running sequence's pages; it is read again when there is room.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.batch.running.remove(index);
        self.remember(&mut sequence);
        self.batch.slots.push(sequence.slot);
        self.batch.release(&sequence);
        (sequence.held, sequence.fetched, sequence.again) = (0, false, 0);
        // The sequence may be admitted again in this step, and then reads its tokens without guesses.
        sequence.drafts.clear();
        self.answers.totals.preemptions += 1;
        self.batch.waiting.push(sequence);
    }

    /// Caches the sequence's pages as a prefix for others, or for itself.
    fn remember(&mut self, sequence: &mut Sequence<'e>) {
        self.memory.remember(self.engine, sequence);
        if let (Some(drafter), Some(draft)) = (&mut self.drafter, sequence.draft.take()) {
            drafter.release(draft);
        }
    }

    /// Removes a sequence that has ended.
    fn retire(&mut self, mut sequence: Sequence<'e>) {
        self.remember(&mut sequence);
        self.batch.slots.push(sequence.slot);
        self.batch.release(&sequence);
    }

    /// The hidden states of the chosen tokens.
    fn read(&mut self, chosen: &[(usize, usize)]) -> Tensor {
        if self.engine.has_states() {
            for (index, _) in chosen {
                let sequence = &mut self.batch.running[*index];
                sequence.saved = (!sequence.drafts.is_empty()).then_some(sequence.held);
                if sequence.saved.is_some() {
                    self.memory.pages.save_states(self.engine.device, sequence.slot);
                }
            }
        }
        let with_drafts = |(index, _): &(usize, usize)| {
            let Sequence { ids, held, drafts, .. } = &self.batch.running[*index];
            if drafts.is_empty() { Vec::new() } else { [&ids[*held..], drafts].concat() }
        };
        let drafted: Vec<Vec<u32>> = chosen.iter().map(with_drafts).collect();
        let mut feeds = Vec::with_capacity(chosen.len());
        for ((index, count), drafted) in chosen.iter().zip(&drafted) {
            let sequence = &self.batch.running[*index];
            let Sequence { ids, held, table, prompt, slot, long, source, .. } = sequence;
            let source = source.as_ref();
            let known = if *long { ids.len() } else { *prompt };
            let ids = if drafted.is_empty() { &ids[*held..held + count] } else { drafted };
            feeds.push(Feed { ids, held: *held, table, known, slot: *slot, terms: sequence.terms(), source });
        }
        let pass = |(index, _): &(usize, usize)| {
            (self.batch.running[*index].on_disk, self.batch.running[*index].pass())
        };
        let same = |a: &(usize, usize), b: &(usize, usize)| pass(a) == pass(b);
        let (mut groups, mut rest) = (Vec::new(), feeds.as_slice());
        for group in chosen.chunk_by(same) {
            let (own, others) = rest.split_at(group.len());
            rest = others;
            let first = &self.batch.running[group[0].0];
            groups.push(match first.adapter.as_ref().filter(|_| first.terms().is_none()) {
                None => self.engine.forward(&self.memory.pages, own),
                Some(adapted) => self.engine.over(adapted).forward(&self.memory.pages, own),
            });
        }
        self.engine.joined(groups)
    }
}
