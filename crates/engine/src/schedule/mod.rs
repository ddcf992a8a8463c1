//! Continuous batching: in each step every answered sequence yields one token, and prompts fill the rest of a token
//! budget in chunks, all as rows of one packed stream. Requests join and leave between steps.
//!
//! A sequence is its tokens and the number of them *held* in pages; a step reads some of the others, and the next token
//! is chosen when all are read. A prompt, an answer, and a sequence whose pages were preempted are thus the same thing.
//! The bits of an answer do not depend on concurrent sequences, chunks, pages, or cached prefixes.

mod answers;
mod batch;
mod beams;
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
use fathom_tensor::{PAGE_ROWS, Tensor};

use crate::answer::Writer;
use crate::bounds::Bounds;
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;
use crate::pages::{Feed, Short, SourceText, pages_for, pages_of};
use crate::sampler::Sampler;
use crate::store::{Beginnings, HeldReads, StoreLocation};
use answers::Answers;
use batch::Batch;
use beams::{Beam, Search};
use clock::Clock;
use draft::Drafting;
use drafter::Drafter;
pub(crate) use drafter::Guess;
use memory::{Memory, next_mark};
use reading::{Fetch, StoreProgress};
pub(crate) use sequence::CheckedRequest;
pub use sequence::Listener;
use sequence::{Request, Sequence, rank};

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
    /// The model's layers store more than keys and values, so prefixes cannot be shared; errors of the system.
    pub fn keeping(self, at: &StoreLocation) -> Result<Scheduler<'e>, Error> {
        let beginnings = Beginnings::open(at, self.engine.spec())?;
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
            drafting: Drafting::new(self.drafts()),
            guessing: Drafting::new(self.drafts()),
            draft: None,
            drafts: Vec::new(),
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

    /// Maximum guesses in a step: 0 if layers store more than keys and values, which cannot be rolled back.
    fn drafts(&self) -> usize {
        if self.engine.has_states() { 0 } else { self.engine.limits.draft_tokens }
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
            waiting_tokens: self.batch.waiting.iter().map(Sequence::unread).sum(),
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

    /// The sequences of this step, with the number of tokens that each reads; rows of a pass, and within it those of an
    /// adapter, are adjacent.
    fn choose(&mut self) -> Vec<(usize, usize)> {
        let mut chosen = self.that_have_room();
        while chosen.is_empty() {
            // Beams that wait for one without room give up their pages.
            let Some(index) = self.batch.running.iter().rposition(Sequence::waits) else { break };
            self.preempt(index);
            chosen = self.that_have_room();
        }
        let place = |(index, _): &(usize, usize)| {
            let sequence = &self.batch.running[*index];
            (sequence.on_disk, sequence.pass(), sequence.identity())
        };
        chosen.sort_by(|a, b| place(a).cmp(&place(b)));
        chosen
    }

    /// Answered sequences, then prompts within the budget, as far as there are pages.
    fn that_have_room(&mut self) -> Vec<(usize, usize)> {
        let mut left = self.engine.limits.chunk_tokens.max(1);
        let mut chosen = Vec::new();
        let mut index = 0;
        while index < self.batch.running.len() {
            self.trim(index, left);
            let sequence = &self.batch.running[index];
            let count =
                if sequence.answers() { 1 + sequence.drafts.len() } else { self.chunk(sequence, left) };
            if count == 0 && left == 0 {
                break;
            }
            // A beam that is read waits for the others.
            if count > 0 && self.make_room(index, count) {
                chosen.push((index, count));
                left = left.saturating_sub(count);
            }
            index += 1;
        }
        while left > 0 && self.batch.running.len() < self.bounds.capacity.sequences {
            let Some(count) = self.admit(left) else { break };
            chosen.push((self.batch.running.len() - 1, count));
            left -= count;
        }
        chosen
    }

    /// The next sequence to admit, for which nothing remains to be read from disk.
    fn best(&mut self) -> Option<usize> {
        let (now, mut later) = (self.answers.clock.now(), Vec::new());
        // A step gathers pages from disk for only one sequence.
        let reads_disk = self.batch.running.iter().any(|it| it.on_disk);
        loop {
            let can = |index: &usize| {
                let sequence = &self.batch.waiting[*index];
                let busy = sequence.waits() || self.memory.is_fetching(sequence) || later.contains(index);
                !(busy || (sequence.on_disk && reads_disk))
            };
            let best = (0..self.batch.waiting.len())
                .filter(can)
                .max_by_key(|index| (rank(&self.batch.waiting[*index], now), std::cmp::Reverse(*index)))?;
            let sequence = &mut self.batch.waiting[best];
            let reads_all = self.answers.may_skip(sequence, self.bounds.lead) < usize::MAX;
            match self.memory.fetches(sequence, self.engine.spec(), reads_all) {
                Fetch::Nothing => return Some(best),
                Fetch::Comes => {}
                Fetch::Later => later.push(best),
            }
        }
    }

    /// Admits the next waiting sequence; returns the number of tokens that it reads. `None` if none waits, or there are
    /// too few pages.
    fn admit(&mut self, left: usize) -> Option<usize> {
        let best = self.best()?;
        let most = [self.bounds.source_tokens(), self.engine.limits.chunk_tokens];
        if !self.batch.has_room_for(best, most) {
            return None;
        }
        let mut sequence = self.batch.waiting.remove(best);
        let may_skip = self.answers.may_skip(&sequence, self.bounds.lead);
        let cached = self.memory.begin(self.engine, &mut sequence, may_skip);
        // A prompt is admitted only if all of it has room, unless it would be alone.
        let needed = pages_for(&self.bounds.windows, 1, sequence.ids.len(), self.bounds.limits.chunk_tokens);
        let (held, on_disk) = (pages_of(sequence.held), sequence.on_disk);
        let short = |memory: &mut Memory| {
            needed.iter().enumerate().any(|(class, needed)| {
                let free = memory.pages.free(class, on_disk);
                let missing = needed.saturating_sub(held).saturating_sub(free);
                missing > 0 && !memory.evict(class, (missing, on_disk))
            })
        };
        if !self.batch.running.is_empty() && short(&mut self.memory) {
            self.memory.pages.clear(&mut sequence.table);
            (sequence.held, sequence.checkpoint) = (0, None);
            self.batch.waiting.insert(best.min(self.batch.waiting.len()), sequence);
            return None;
        }
        self.memory.forget_read(&sequence);
        sequence.slot = self.batch.slots.pop()?;
        if let Some(checkpoint) = sequence.checkpoint.take() {
            self.memory.pages.restore(self.engine.device, sequence.slot, &checkpoint);
        }
        let count = self.chunk(&sequence, left);
        self.answers.start(&sequence, cached, self.bounds.lead);
        self.batch.running.push(sequence);
        let index = self.batch.running.len() - 1;
        if self.make_room(index, count) {
            return Some(count);
        }
        self.preempt(index);
        None
    }

    /// The number of unread tokens that a sequence reads next, of `left`. Where layers have states, it ends where these are kept,
    /// and at whole pages of the sequence, so that their bits depend neither on other sequences nor on cached prefixes.
    fn chunk(&self, sequence: &Sequence<'_>, left: usize) -> usize {
        let unread = sequence.ids.len() - sequence.held;
        let (held, end) = (sequence.held, sequence.held + unread.min(left));
        if !self.engine.has_states() {
            return end - held;
        }
        let mark = next_mark(held, sequence.prompt).filter(|mark| *mark <= end);
        let whole = end / PAGE_ROWS * PAGE_ROWS;
        let part = (end - held < unread && whole > held).then_some(whole);
        mark.or(part).unwrap_or(end) - held
    }

    /// Makes room for a sequence's next tokens, evicting cached pages if need be, and then preempting lower-ranked
    /// sequences. A sequence that becomes a long one is read again.
    fn make_room(&mut self, index: usize, count: usize) -> bool {
        let sequence = &mut self.batch.running[index];
        if !sequence.long && sequence.is_long_at(self.engine.spec(), sequence.held + count) {
            self.memory.restart(sequence, self.engine.spec());
        }
        loop {
            let Sequence { table, held, on_disk, .. } = &mut self.batch.running[index];
            let on_disk = *on_disk;
            let Err(Short { class, pages }) = self.memory.pages.grow(table, *held + count, on_disk) else {
                return true;
            };
            if self.memory.evict(class, (pages, on_disk)) || self.memory.give_up_reads() {
                continue;
            }
            if index + 1 == self.batch.running.len() {
                return false;
            }
            self.preempt(self.batch.running.len() - 1);
        }
    }

    /// Preempts a running sequence's pages; it is read again when there is room.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.batch.running.remove(index);
        self.remember(&mut sequence);
        self.batch.slots.push(sequence.slot);
        self.batch.release(&sequence);
        (sequence.held, sequence.fetched) = (0, false);
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
