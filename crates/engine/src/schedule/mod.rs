//! Continuous batching: in each step every answered sequence yields one token, and prompts fill the rest of a token
//! budget in chunks, all as rows of one packed stream. Requests join and leave between steps.
//!
//! A sequence is its tokens and the number of them *held* in pages; a step reads some of the others, and the next token
//! is chosen when all are read. A prompt, an answer, and a sequence whose pages were preempted are thus the same thing.
//! The bits of an answer do not depend on concurrent sequences, chunks, pages, or cached prefixes.

mod beams;
mod clock;
mod draft;
mod drafter;
mod guesses;
mod next;
mod reading;
mod search;
mod sequence;
mod step;
mod stored;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use fathom_base::{Event, GenerateRequest, Load, Stop, Usage};
use fathom_grad::VIRTUAL;
use fathom_model::RopeSpec;
use fathom_tensor::{PAGE_ROWS, Tensor};

use crate::answer::Writer;
use crate::bounds::Bounds;
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;
use crate::pages::{Feed, Pages, Root, Short, Tree, pages_for, pages_of};
use crate::sampler::Sampler;
use crate::store::{Beginnings, Part, StoreLocation};
use crate::structure::Structures;
use beams::{Beam, Search};
use clock::Clock;
use draft::Drafting;
use drafter::Drafter;
pub(crate) use drafter::Guess;
use reading::{Fetch, LATE, Reading, StoreProgress};
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
    pages: Pages,
    /// `None` for models whose layers store more than keys and values.
    tree: Option<Tree>,
    store: Option<Beginnings>,
    /// Reads from the store in progress.
    reads: Vec<Reading>,
    /// How long it may take to answer.
    late: Duration,
    /// The rank's part of the model.
    part: Part,
    slots: Vec<usize>,
    bounds: Bounds,
    structures: Structures,
    requests: BTreeMap<u64, Request<'e>>,
    running: Vec<Sequence<'e>>,
    waiting: Vec<Sequence<'e>>,
    requested: u64,
    totals: Load,
    prefilled: [f64; 2],
    /// Present if the engine has a draft model.
    drafter: Option<Drafter<'e>>,
    clock: Clock,
    /// Start of the step.
    started: Instant,
}

impl<'e> Scheduler<'e> {
    /// A scheduler without requests.
    pub fn new(engine: &'e Engine<'e>, capacity: Capacity) -> Scheduler<'e> {
        let dtype = engine.model.dtype(engine.params);
        let room = (&capacity.pages[..], capacity.sequences);
        let pages = Pages::new(engine.device, engine.model, (dtype, engine.limits.kv), room);
        let tree = engine.shares_beginnings().then(Tree::default);
        Scheduler {
            engine,
            drafter: engine.draft.map(|draft| Drafter::new(draft, &capacity)),
            pages,
            tree,
            store: None,
            reads: Vec::new(),
            late: LATE,
            part: engine.part(),
            slots: (0..capacity.sequences).rev().collect(),
            bounds: engine.bounds(capacity),
            structures: Structures::default(),
            requests: BTreeMap::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            requested: 0,
            totals: Load { page_tokens: PAGE_ROWS, ..Load::default() },
            prefilled: [0.0; 2],
            clock: if engine.is_whole() { Clock::own() } else { Clock::following() },
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
        self.clock.tell(now);
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
    ///
    /// # Errors
    /// Those of the system, from the file of pages there.
    pub(crate) fn sharing(mut self, beginnings: &Beginnings) -> Result<Scheduler<'e>, Error> {
        let store = beginnings.lock();
        self.totals.stored_bytes = store.bytes();
        if self.bounds.capacity.on_disk > 0 {
            let (folder, pages) = (store.root(), self.bounds.capacity.on_disk);
            let why = |error: std::io::Error| Error::Store { folder: folder.into(), why: error.to_string() };
            self.pages.add_on_disk(self.engine.device, folder, pages).map_err(why)?;
        }
        self.store = Some(beginnings.clone());
        Ok(self)
    }

    /// The same, where a disk that has not answered for so long is given up.
    pub fn with_patience(self, late: Duration) -> Scheduler<'e> {
        Scheduler { late, ..self }
    }

    /// Queues a request; returns its number.
    ///
    /// # Errors
    /// The request is out of range, or longer than the context or the pages; there is no such adapter.
    pub fn submit(&mut self, asked: GenerateRequest, listener: Listener<'e>) -> Result<u64, Error> {
        let ids = self.bounds.ids(self.engine.tokenizer, &asked.prompt)?;
        self.bounds.check(&ids, &asked)?;
        let vocab = self.bounds.vocab;
        let compile = |structure| self.structures.compile(self.engine.tokenizer, vocab, structure);
        let structure = asked.structure.as_ref().map(compile).transpose()?;
        self.requested += 1;
        self.queue(self.requested, CheckedRequest { ids, asked, structure }, listener)?;
        Ok(self.requested)
    }

    /// Queues a checked request under a number chosen by the caller.
    pub(crate) fn queue(
        &mut self,
        request: u64,
        CheckedRequest { ids, asked, structure }: CheckedRequest,
        listener: Listener<'e>,
    ) -> Result<(), Error> {
        self.clock.look();
        if asked.deadline_s.is_some() && !self.clock.runs() {
            return Err(Error::Unsupported(
                "a deadline is for a model on one rank: each rank has a clock of its own".into(),
            ));
        }
        let (how, arrived, prompt_tokens) = (&asked.sampling, self.clock.now(), ids.len());
        let (sampler, writer) = self.answerer(&asked, &ids)?;
        let search = Search::of(&asked, &ids, sampler.ends());
        let ids: Vec<u32> = self.led().chain(ids).collect();
        let adapter = asked.adapter.as_deref().map(|name| self.engine.adapter(name)).transpose()?;
        let on_disk = self.bounds.exceeds_memory(ids.len() + how.max_tokens);
        self.waiting.push(Sequence {
            request,
            scope: asked.scope.clone(),
            adapter,
            answer: 0,
            prompt: ids.len(),
            ids,
            held: 0,
            table: self.pages.table(),
            slot: 0,
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
            usage: Usage { prompt_tokens, ..Usage::default() },
            arrived,
            submitted: Instant::now(),
            started: None,
            first: None,
            logprobs: Vec::new(),
            search,
        };
        self.requests.insert(request, record);
        Ok(())
    }

    /// The virtual tokens before a sequence.
    fn led(&self) -> impl Iterator<Item = u32> + use<> {
        (VIRTUAL..VIRTUAL + self.bounds.lead).map(|id| id as u32)
    }

    /// Maximum guesses in a step: 0 if layers store more than keys and values, which cannot be rolled back.
    fn drafts(&self) -> usize {
        if self.tree.is_some() { self.engine.limits.draft_tokens } else { 0 }
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
        self.requests.remove(&request);
        self.drop_sequences(request);
    }

    fn drop_sequences(&mut self, request: u64) {
        let (gone, kept) = self.running.drain(..).partition(|sequence| sequence.request == request);
        self.running = kept;
        let gone: Vec<Sequence<'e>> = gone;
        gone.into_iter().for_each(|sequence| self.retire(sequence));
        self.waiting.retain(|sequence| sequence.request != request);
        self.forget_reads();
    }

    /// Drops all prefixes, after the weights have changed.
    ///
    /// # Panics
    /// If a request is running, part of which was computed with the previous weights.
    pub fn forget(&mut self) {
        assert!(self.running.is_empty(), "prefixes are given up while {} sequences run", self.running.len());
        self.give_up_reads();
        if let Some(tree) = &mut self.tree {
            tree.clear(&mut self.pages);
        }
    }

    /// True if no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The current load.
    pub fn load(&self) -> Load {
        let [pages, free] = self.pages.counts(0);
        let cached = self.tree.as_ref().map_or(0, |tree| tree.alone(&self.pages, 0));
        let unread = |sequence: &Sequence<'_>| sequence.ids.len() - sequence.held;
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            waiting_tokens: self.waiting.iter().map(unread).sum(),
            pages,
            pages_used: pages - free - cached,
            pages_cached: cached,
            draft_pages_used: self.drafter.as_ref().map_or(0, Drafter::used),
            prefill_tokens_per_s: if self.prefilled[1] > 0.0 {
                self.prefilled[0] / self.prefilled[1]
            } else {
                0.0
            },
            ..self.totals.clone()
        }
    }

    /// Ends the requests whose time is up.
    fn expire(&mut self) {
        let now = self.clock.now();
        let late = |request: &Request<'_>| {
            let open_s = now.saturating_sub(request.arrived).as_secs_f64();
            request.asked.deadline_s.is_some_and(|limit| open_s > limit)
        };
        let late: Vec<u64> = self.requests.iter().filter(|(_, it)| late(it)).map(|(id, _)| *id).collect();
        for id in late {
            if self.requests.get(&id).is_some_and(|it| it.search.is_some()) {
                self.cut(id);
                continue;
            }
            let open: Vec<usize> = self
                .running
                .iter()
                .chain(&self.waiting)
                .filter(|it| it.request == id)
                .map(|it| it.answer)
                .collect();
            if let Some(request) = self.requests.get_mut(&id) {
                open.into_iter().for_each(|answer| {
                    (request.listener)(Event::Ended { answer, stop: Stop::Deadline });
                });
            }
            self.finish(id);
            self.drop_sequences(id);
        }
    }

    /// The sequences of this step, with the number of tokens that each reads; rows of a pass, and within it those of an
    /// adapter, are adjacent.
    fn choose(&mut self) -> Vec<(usize, usize)> {
        let mut chosen = self.that_have_room();
        while chosen.is_empty() {
            // Beams that wait for one without room give up their pages.
            let Some(index) = self.running.iter().rposition(Sequence::waits) else { break };
            self.preempt(index);
            chosen = self.that_have_room();
        }
        let place = |(index, _): &(usize, usize)| {
            let sequence = &self.running[*index];
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
        while index < self.running.len() {
            let unread = self.running[index].ids.len() - self.running[index].held;
            self.trim(index, left);
            let sequence = &self.running[index];
            let count = if sequence.answers() { 1 + sequence.drafts.len() } else { unread.min(left) };
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
        while left > 0 && self.running.len() < self.bounds.capacity.sequences {
            let Some(count) = self.admit(left) else { break };
            chosen.push((self.running.len() - 1, count));
            left -= count;
        }
        chosen
    }

    /// The next sequence to admit, for which nothing remains to be read from disk.
    fn best(&mut self) -> Option<usize> {
        let (now, mut later) = (self.clock.now(), Vec::new());
        // A step gathers pages from disk for only one sequence.
        let reads_disk = self.running.iter().any(|it| it.on_disk);
        loop {
            let can = |index: &usize| {
                let sequence = &self.waiting[*index];
                let busy = sequence.waits() || self.is_fetching(sequence) || later.contains(index);
                !(busy || (sequence.on_disk && reads_disk))
            };
            let best = (0..self.waiting.len())
                .filter(can)
                .max_by_key(|index| (rank(&self.waiting[*index], now), std::cmp::Reverse(*index)))?;
            match self.fetches(best) {
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
        let mut sequence = self.waiting.remove(best);
        let cached = self.begin(&mut sequence);
        let unread = sequence.ids.len() - sequence.held;
        // A prompt is admitted only if all of it has room, unless it would be alone.
        let needed = pages_for(&self.bounds.windows, 1, sequence.ids.len(), self.bounds.limits.chunk_tokens);
        let (held, on_disk) = (pages_of(sequence.held), sequence.on_disk);
        let short = |scheduler: &mut Self| {
            needed.iter().enumerate().any(|(class, needed)| {
                let free = scheduler.pages.free(class, on_disk);
                let missing = needed.saturating_sub(held).saturating_sub(free);
                missing > 0 && !scheduler.evict(class, (missing, on_disk))
            })
        };
        if !self.running.is_empty() && short(self) {
            self.pages.clear(&mut sequence.table);
            sequence.held = 0;
            self.waiting.insert(best.min(self.waiting.len()), sequence);
            return None;
        }
        self.forget_read(&sequence);
        sequence.slot = self.slots.pop()?;
        if let Some(request) = self.requests.get_mut(&sequence.request)
            && request.started.is_none()
        {
            request.started = Some(Instant::now());
            request.usage.queue_s = request.submitted.elapsed().as_secs_f64();
            request.usage.cached_tokens = cached.saturating_sub(self.bounds.lead);
            self.totals.prefix_queries += sequence.prompt as u64;
            self.totals.prefix_hits += cached as u64;
        }
        self.running.push(sequence);
        let (index, count) = (self.running.len() - 1, unread.min(left));
        if self.make_room(index, count) {
            return Some(count);
        }
        self.preempt(index);
        None
    }

    /// Gives a sequence the pages of its cached prefix; returns their tokens.
    fn begin(&mut self, sequence: &mut Sequence<'e>) -> usize {
        sequence.long = self.is_long(sequence, sequence.ids.len());
        let asks = self.requests.get(&sequence.request).is_some_and(|it| it.asked.prompt_logprobs.is_some());
        let root = self.root(sequence);
        sequence.kept = StoreProgress::none((self.store.as_ref(), self.part), &root);
        let Some(tree) = self.tree.as_mut().filter(|_| !asks) else { return 0 };
        let (ids, on_disk) = (&sequence.ids[..sequence.ids.len() - 1], sequence.on_disk);
        let found = tree.find(&self.pages, &root, ids, on_disk);
        let shared = tree.share(self.engine.device, &mut self.pages, (found, on_disk));
        (sequence.table, sequence.held) = shared;
        sequence.held
    }

    /// The properties in which sequences that share pages must agree.
    fn root(&self, sequence: &Sequence<'_>) -> Root {
        // If rotary embeddings depend on every length, only prompts of one length share prefixes.
        let spec = &self.engine.model.spec;
        let changes = spec.rereads_beyond().is_none() && spec.ropes.iter().any(RopeSpec::looks_at_length);
        let regime = if changes { sequence.prompt } else { usize::from(sequence.long) };
        (sequence.scope.clone(), sequence.identity().to_string(), regime)
    }

    /// True if a sequence of this length uses the rotary embeddings of long ones.
    fn is_long(&self, sequence: &Sequence<'_>, tokens: usize) -> bool {
        let beyond = self.engine.model.spec.rereads_beyond();
        beyond.is_some_and(|beyond| tokens.max(sequence.prompt) > beyond)
    }

    /// Makes room for a sequence's next tokens, evicting cached pages if need be, and then preempting lower-ranked
    /// sequences. A sequence that becomes a long one is read again.
    fn make_room(&mut self, index: usize, count: usize) -> bool {
        let becomes = self.is_long(&self.running[index], self.running[index].held + count);
        if becomes && !self.running[index].long {
            let sequence = &mut self.running[index];
            self.pages.clear(&mut sequence.table);
            (sequence.held, sequence.long) = (0, true);
            let root = self.root(&self.running[index]);
            self.running[index].kept = StoreProgress::none((self.store.as_ref(), self.part), &root);
        }
        loop {
            let Sequence { table, held, on_disk, .. } = &mut self.running[index];
            let on_disk = *on_disk;
            let Err(Short { class, pages }) = self.pages.grow(table, *held + count, on_disk) else {
                return true;
            };
            if self.evict(class, (pages, on_disk)) || self.give_up_reads() {
                continue;
            }
            if index + 1 == self.running.len() {
                return false;
            }
            self.preempt(self.running.len() - 1);
        }
    }

    /// Evicts cached pages of a class, in memory or on disk; false if there were too few.
    fn evict(&mut self, class: usize, (pages, on_disk): (usize, bool)) -> bool {
        let Some(tree) = self.tree.as_mut() else { return false };
        let before = self.pages.free(class, on_disk);
        tree.evict(&mut self.pages, class, (pages, on_disk));
        self.pages.free(class, on_disk) >= before + pages
    }

    /// Preempts a running sequence's pages; it is read again when there is room.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        self.remember(&mut sequence);
        self.slots.push(sequence.slot);
        (sequence.held, sequence.fetched) = (0, false);
        // The sequence may be admitted again in this step, and then reads its tokens without guesses.
        sequence.drafts.clear();
        self.totals.preemptions += 1;
        self.waiting.push(sequence);
    }

    /// Caches the sequence's pages as a prefix for others, or for itself.
    fn remember(&mut self, sequence: &mut Sequence<'e>) {
        self.keep_all(sequence);
        let root = self.root(sequence);
        if let Some(tree) = &mut self.tree {
            tree.insert(&mut self.pages, &root, (&sequence.ids[..sequence.held], &sequence.table), true);
        }
        self.pages.clear(&mut sequence.table);
        if let (Some(drafter), Some(draft)) = (&mut self.drafter, sequence.draft.take()) {
            drafter.release(draft);
        }
    }

    /// Removes a sequence that has ended.
    fn retire(&mut self, mut sequence: Sequence<'e>) {
        self.remember(&mut sequence);
        self.slots.push(sequence.slot);
    }

    /// The hidden states of the chosen tokens.
    fn read(&mut self, chosen: &[(usize, usize)]) -> Tensor {
        let with_drafts = |(index, _): &(usize, usize)| {
            let Sequence { ids, held, drafts, .. } = &self.running[*index];
            if drafts.is_empty() { Vec::new() } else { [&ids[*held..], drafts].concat() }
        };
        let drafted: Vec<Vec<u32>> = chosen.iter().map(with_drafts).collect();
        let mut feeds = Vec::with_capacity(chosen.len());
        for ((index, count), drafted) in chosen.iter().zip(&drafted) {
            let sequence = &self.running[*index];
            let Sequence { ids, held, table, prompt, slot, long, .. } = sequence;
            let known = if *long { ids.len() } else { *prompt };
            let ids = if drafted.is_empty() { &ids[*held..held + count] } else { drafted };
            feeds.push(Feed { ids, held: *held, table, known, slot: *slot, terms: sequence.terms() });
        }
        let pass = |(index, _): &(usize, usize)| (self.running[*index].on_disk, self.running[*index].pass());
        let same = |a: &(usize, usize), b: &(usize, usize)| pass(a) == pass(b);
        let (mut groups, mut rest) = (Vec::new(), feeds.as_slice());
        for group in chosen.chunk_by(same) {
            let (own, others) = rest.split_at(group.len());
            rest = others;
            let first = &self.running[group[0].0];
            groups.push(match first.adapter.as_ref().filter(|_| first.terms().is_none()) {
                None => self.engine.forward(&self.pages, own),
                Some(adapted) => self.engine.over(adapted).forward(&self.pages, own),
            });
        }
        self.engine.joined(groups)
    }
}
