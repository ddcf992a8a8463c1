//! The engine's side: takes messages, and steps the batch.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use fathom_base::{Event, Flow, Load, Sink};

use super::state::{Command, ServiceState};
use crate::adapted::AdapterRef;
use crate::encoder::TextEncoder;
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;
use crate::ranks::{Leader, Word};
use crate::schedule::{CheckedRequest, Scheduler};
use crate::store::Beginnings;
use crate::texts::Texts;

/// The engine's side.
pub struct Commands {
    pub(super) commands: Receiver<Command>,
    pub(super) shared: Arc<ServiceState>,
    /// Adapters that are being unloaded, with those who wait for the end of their requests.
    pub(super) unloaded: RefCell<Vec<(AdapterRef, Sender<()>)>>,
    /// On the first of several ranks: the channels to the others, and the start of the clock that it sends them.
    pub(super) leader: Option<(Leader, Instant)>,
}

impl Commands {
    /// For the first of several ranks that each have a part of the model.
    pub fn leading(self, leader: Leader) -> Commands {
        Commands { leader: Some((leader, Instant::now())), ..self }
    }

    /// Sends a message with the current time to the other ranks, if there are any.
    fn say(&self, scheduler: &mut Scheduler<'_>, word: impl FnOnce(Duration) -> Word) {
        if let Some((leader, started)) = &self.leader {
            let now = started.elapsed();
            scheduler.set_time(now);
            leader.say(word(now));
        }
    }

    /// Serves until all handles are gone and every request has ended, with prefixes on disk if there is a folder for
    /// them. Over ranks, all of them have the same.
    ///
    /// # Errors
    /// A rank failed; nothing can be served afterwards.
    ///
    /// # Panics
    /// Those of a step. Its requests end without an answer; called again, this serves new ones.
    pub fn serve(
        &self,
        engine: &Engine<'_>,
        capacity: Capacity,
        beginnings: Option<&Beginnings>,
    ) -> std::result::Result<(), Error> {
        let mut texts = Texts::default();
        let mut gone = false;
        let mut scheduler = Scheduler::new(engine, capacity);
        if let Some(beginnings) = beginnings {
            scheduler = scheduler.sharing(beginnings)?;
        }
        if self.leader.is_some() {
            scheduler = scheduler.over_ranks();
        }
        loop {
            self.tell_unloaded();
            let busy = !scheduler.is_idle() || !texts.is_empty();
            gone |= !self.take(busy, &mut scheduler, &mut texts);
            // One chunk of texts runs between two steps.
            if engine.is_whole() {
                texts.step(engine);
            } else {
                texts.refuse(vectorless);
            }
            let worked = self.step(&mut scheduler) || !texts.is_empty();
            engine.check_ranks()?;
            self.shared.loaded(texts.added(scheduler.load()));
            if gone && !worked && scheduler.is_idle() {
                return Ok(());
            }
        }
    }

    /// Serves an encoder until all handles are gone and every request has ended.
    ///
    /// # Panics
    /// Those of [`Commands::serve`].
    pub fn serve_texts(&self, encoder: &TextEncoder) {
        let mut texts = Texts::default();
        let mut rate = 0.0;
        loop {
            match self.next(texts.is_empty()) {
                Next::Command(Command::Numbers(id, asked, at, sink)) => {
                    texts.push(id, asked, at, sink);
                    continue;
                }
                Next::Command(Command::Cancel(id)) => {
                    texts.cancel(id);
                    continue;
                }
                // Encoders support no other command: handles refuse them, and a dropped reply tells the sender.
                Next::Command(Command::Erase(reply)) => _ = reply.send(0),
                Next::Command(_) => continue,
                Next::Gone if texts.is_empty() => return,
                Next::Nothing | Next::Gone => {}
            }
            let began = Instant::now();
            let tokens = texts.step(encoder);
            if tokens > 0 {
                rate = tokens as f64 / began.elapsed().as_secs_f64().max(1e-6);
            }
            self.shared.loaded(texts.added(Load { prefill_tokens_per_s: rate, ..Load::default() }));
        }
    }

    /// The next command; optionally waits for one.
    fn next(&self, wait: bool) -> Next {
        let came = if wait {
            self.commands.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            self.commands.try_recv()
        };
        match came {
            Ok(command) => Next::Command(command),
            Err(TryRecvError::Empty) => Next::Nothing,
            Err(TryRecvError::Disconnected) => Next::Gone,
        }
    }

    /// Runs a step, on all ranks.
    fn step(&self, scheduler: &mut Scheduler<'_>) -> bool {
        let Some((leader, started)) = &self.leader else { return scheduler.step() };
        let now = started.elapsed();
        scheduler.set_time(now);
        scheduler.prepare();
        leader.say(Word::Step(now, scheduler.guesses()));
        scheduler.run()
    }

    /// Processes commands; waits for one unless there is work. False if no handle is left.
    fn take(&self, busy: bool, scheduler: &mut Scheduler<'_>, texts: &mut Texts) -> bool {
        let mut wait = !busy;
        loop {
            let command = match self.next(wait) {
                Next::Command(command) => command,
                Next::Nothing => return true,
                Next::Gone => return false,
            };
            wait = false;
            match command {
                Command::Submit(id, request, sink) => self.submit(scheduler, id, *request, sink),
                Command::Cancel(id) => {
                    self.say(scheduler, |_| Word::Leave(id));
                    scheduler.cancel(id);
                    texts.cancel(id);
                }
                Command::Numbers(id, asked, at, sink) => texts.push(id, asked, at, sink),
                // The sender may be gone.
                Command::Erase(reply) => {
                    self.say(scheduler, |_| Word::Erase);
                    _ = reply.send(scheduler.erase(None));
                }
                Command::Load(name, folder, reply) => {
                    let loaded = match &self.leader {
                        Some((leader, _)) => leader.load_adapter(scheduler.engine, &name, &folder),
                        None => scheduler.engine.load_adapter(&name, &folder),
                    };
                    if let (Ok(()), Ok(adapter)) = (&loaded, scheduler.engine.adapter(&name)) {
                        self.shared.adapters().insert(name, adapter.identity.clone());
                    }
                    _ = reply.send(loaded);
                }
                Command::Unload(name, reply) => {
                    // Without an adapter of this name the reply is dropped, which tells the sender.
                    if let Ok(adapter) = scheduler.engine.take_adapter(&name) {
                        self.say(scheduler, |_| Word::Unload(name.clone()));
                        self.shared.adapters().remove(&name);
                        self.unloaded.borrow_mut().push((adapter, reply));
                        self.tell_unloaded();
                    }
                }
            }
        }
    }

    /// Reports adapters whose last request has ended.
    fn tell_unloaded(&self) {
        self.unloaded.borrow_mut().retain(|(adapter, reply)| {
            let used = adapter.strong_count() > 0;
            if !used {
                // The sender may be gone.
                _ = reply.send(());
            }
            used
        });
    }

    fn submit(&self, scheduler: &mut Scheduler<'_>, id: u64, mut request: CheckedRequest, sink: Sink) {
        let mut listening = CountedSink { sink, shared: self.shared.clone() };
        // Its adapter may have been unloaded since the check.
        if let Some(Err(error)) = request.asked.adapter.as_deref().map(|name| scheduler.engine.adapter(name))
        {
            (listening.sink)(Event::Failed(error.into()));
            return;
        }
        self.say(scheduler, |now| Word::Join(id, Box::new(request.again()), now));
        let engine = scheduler.engine;
        let listener = move |event| {
            // If a rank failed, later results are not answers.
            if engine.check_ranks().is_ok() {
                (listening.sink)(event);
            }
            Flow::Continue
        };
        // The handle has checked it.
        if let Err(error) = scheduler.queue(id, request, Box::new(listener)) {
            panic!("service: {error}");
        }
    }
}

/// The next event of the loop.
enum Next {
    Command(Command),
    Nothing,
    /// No handle is left.
    Gone,
}

/// A sink that counts as an open request until it is dropped.
struct CountedSink {
    sink: Sink,
    shared: Arc<ServiceState>,
}

impl Drop for CountedSink {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn vectorless() -> Error {
    Error::Unsupported(
        "vectors and scores are for a model on one rank; serve it without --tp and --pp".to_string(),
    )
}
