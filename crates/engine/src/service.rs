//! A model as a [`Service`]: a thread owns the engine and steps its batch; handles in any thread send it requests.
//!
//! Requests are tokenised and checked by the client's thread, so the engine's never waits for text. Memory and device
//! stay on the engine's thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fathom_base::{
    Conversation, Event, Flow, GenerateRequest, Load, ModelCard, Numbers, Reading, Result, Service, Sink,
    TextIds, TextPair, Ticket, VectorSink,
};
use fathom_text::Tokenizer;

use crate::adapters::Unloaded;
use crate::bounds::Bounds;
use crate::encoder::TextEncoder;
use crate::engine::Engine;
use crate::error::Error;
use crate::ranks::{Leader, Word};
use crate::schedule::{Capacity, Checked, Scheduler};
use crate::store::Beginnings;
use crate::structure::Structures;
use crate::texts::{TextReading, Texts};

/// Renders a conversation as a prompt.
pub type Render = dyn Fn(&Conversation) -> Result<String> + Send + Sync;

/// Resolves an adapter's folder and refuses those of other bases.
pub type Accept = dyn Fn(&Path) -> Result<PathBuf> + Send + Sync;

/// Properties of a model needed by handles.
pub struct Facts {
    /// Description of the model.
    pub card: ModelCard,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Limits of requests.
    pub bounds: Bounds,
    /// Its template; `None` if the model does not support conversations.
    pub render: Option<Box<Render>>,
    /// Checks adapters before they are read; `None` if there are to be none.
    pub adapters: Option<Box<Accept>>,
    /// Maximum number of open requests.
    pub queue: usize,
    /// Compiler of requested structures.
    pub structures: Structures,
    /// Settings for reading texts to embed or score.
    pub reading: TextReading,
}

/// A channel to the engine's thread.
pub struct Handle {
    facts: Facts,
    /// Closed with the handle: tickets do not keep the engine's thread alive.
    commands: Arc<Sender<Command>>,
    shared: Arc<Shared>,
}

/// State seen by both sides.
#[derive(Default)]
struct Shared {
    load: Mutex<Load>,
    /// Names of adapters, with the hash of each one's files.
    adapters: Mutex<BTreeMap<String, String>>,
    requested: AtomicU64,
    open: AtomicU64,
}

/// The engine's side.
pub struct Commands {
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    /// Adapters that are being unloaded, with those who wait for the end of their requests.
    unloaded: RefCell<Vec<(Unloaded, Sender<()>)>>,
    /// On the first of several ranks: the channels to the others, and the start of the clock that it sends them.
    leader: Option<(Leader, Instant)>,
}

enum Command {
    Submit(u64, Box<Checked>, Sink),
    Cancel(u64),
    /// Texts, and whether vectors are wanted rather than outputs of the head.
    Numbers(u64, Vec<TextIds>, bool, VectorSink),
    Erase(Sender<u64>),
    Load(String, PathBuf, Sender<std::result::Result<(), Error>>),
    Unload(String, Sender<()>),
}

/// A handle, and the engine's end of its channel.
pub fn service(facts: Facts) -> (Handle, Commands) {
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared::default());
    (
        Handle { facts, commands: Arc::new(sender), shared: shared.clone() },
        Commands { commands: receiver, shared, unloaded: RefCell::default(), leader: None },
    )
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
                Next::Command(Command::Numbers(id, asked, vectors, sink)) => {
                    texts.push(id, asked, vectors, sink);
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
                Command::Numbers(id, asked, vectors, sink) => texts.push(id, asked, vectors, sink),
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

    fn submit(&self, scheduler: &mut Scheduler<'_>, id: u64, mut request: Checked, sink: Sink) {
        let mut listening = Listening { sink, shared: self.shared.clone() };
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

impl Shared {
    fn loaded(&self, load: Load) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }

    fn adapters(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sink that counts as an open request until it is dropped.
struct Listening {
    sink: Sink,
    shared: Arc<Shared>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Handle {
    /// Counts an open request.
    ///
    /// # Errors
    /// The queue is full.
    fn enter(&self) -> Result<()> {
        let open = self.shared.open.fetch_add(1, Ordering::Relaxed);
        if open < self.facts.queue as u64 {
            return Ok(());
        }
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        let load = self.load();
        let unread = load.waiting_tokens as f64;
        let wait = if load.prefill_tokens_per_s > 0.0 { unread / load.prefill_tokens_per_s } else { 1.0 };
        let what = format!("{} requests are open, which is the most", self.facts.queue);
        Err(fathom_base::Error::Busy { what, retry_after_s: wait.clamp(1.0, 600.0) })
    }

    /// A ticket that cancels its request when dropped.
    fn ticket(&self, id: u64) -> Ticket {
        let commands = Arc::downgrade(&self.commands);
        Ticket::new(move || _ = commands.upgrade().map(|commands| commands.send(Command::Cancel(id))))
    }

    fn send(&self, command: Command) -> Result<()> {
        Ok(self.commands.send(command).map_err(|_| stopped())?)
    }
}

fn vectorless() -> Error {
    Error::Unsupported(
        "vectors and scores are for a model on one rank; serve it without --tp and --pp".to_string(),
    )
}

fn stopped() -> Error {
    Error::Unsupported("the engine has stopped".to_string())
}

impl Service for Handle {
    fn card(&self) -> ModelCard {
        let card = self.facts.card.clone();
        let print = |identity: &str| format!("{}_{}", card.fingerprint, &identity[..12]);
        let of = |(name, identity): (&String, &String)| (name.clone(), print(identity));
        let adapters = self.shared.adapters().iter().map(of).collect();
        ModelCard { adapters, ..card }
    }

    fn load(&self) -> Load {
        self.shared.load.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn submit_while(
        &self,
        request: GenerateRequest,
        sink: Sink,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Ticket> {
        if !self.facts.card.generates {
            return Err(Error::Unsupported(format!("{} writes no text", self.facts.card.name)).into());
        }
        let ids = self.facts.bounds.ids(&self.facts.tokenizer, &request.prompt)?;
        self.facts.bounds.check(&ids, &request)?;
        if let Some(name) =
            request.adapter.as_ref().filter(|name| !self.shared.adapters().contains_key(*name))
        {
            return Err(Error::NoAdapter(name.clone()).into());
        }
        let compile = |structure| {
            let Facts { structures, tokenizer, bounds, .. } = &self.facts;
            structures.compile_while(tokenizer, bounds.vocab, structure, wanted)
        };
        let structure = request.structure.as_ref().map(compile).transpose()?;
        self.enter()?;
        let id = self.shared.requested.fetch_add(1, Ordering::Relaxed) + 1;
        let request = Box::new(Checked { ids, asked: request, structure });
        self.send(Command::Submit(id, request, sink))?;
        Ok(self.ticket(id))
    }

    fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>> {
        let Facts { tokenizer, .. } = &self.facts;
        let ids = match reading {
            Reading::Text => tokenizer.encode(text),
            Reading::Rendered => tokenizer.encode_special(text),
            Reading::Prompt => tokenizer.encode_prompt(text),
        };
        Ok(ids.map_err(Error::from)?)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.facts.card.vocabulary) {
            return Err(Error::Vocabulary { id: *id, vocab: self.facts.card.vocabulary }.into());
        }
        Ok(self.facts.tokenizer.decode(ids))
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.facts.tokenizer.token_bytes(id)
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        match &self.facts.render {
            Some(render) => render(conversation),
            None => Err(Error::Unsupported(format!(
                "{} has no chat template, so it completes text and does not converse; ask /v1/completions, or name a template (--chat-template FILE)",
                self.facts.card.name
            ))
            .into()),
        }
    }

    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds> {
        Ok(self.facts.reading.ids(&self.facts.tokenizer, text, asked, most)?)
    }

    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket> {
        let Facts { card, reading, bounds, .. } = &self.facts;
        if asked == Numbers::Vector && card.embedding == 0 {
            let message = format!("{} has a head that classifies, and gives no vectors", card.name);
            return Err(Error::Unsupported(message).into());
        }
        if asked != Numbers::Vector && card.labels.is_empty() {
            let message = format!("{} has no head that classifies", card.name);
            return Err(Error::Unsupported(message).into());
        }
        texts.iter().try_for_each(|text| bounds.prompt(&text.ids, 0))?;
        let reading = reading.clone();
        let said = move |rows: Result<Vec<Vec<f32>>>| {
            sink(rows.map(|rows| rows.into_iter().map(|row| reading.said(asked, row)).collect()));
        };
        let id = self.shared.requested.fetch_add(1, Ordering::Relaxed) + 1;
        self.send(Command::Numbers(id, texts, asked == Numbers::Vector, Box::new(said)))?;
        Ok(self.ticket(id))
    }

    fn load_adapter(&self, name: &str, folder: &Path) -> Result<()> {
        let Some(accept) = &self.facts.adapters else {
            return Err(Error::Unsupported(format!("`{name}`: this engine takes no adapters")).into());
        };
        if name == self.facts.card.name || self.shared.adapters().contains_key(name) {
            return Err(Error::AdapterTwice(name.into()).into());
        }
        let folder = accept(folder)?;
        let (reply, loaded) = channel();
        self.send(Command::Load(name.into(), folder, reply))?;
        Ok(loaded.recv().map_err(|_| stopped())??)
    }

    fn unload_adapter(&self, name: &str) -> Result<()> {
        let (reply, unloaded) = channel();
        self.send(Command::Unload(name.into(), reply))?;
        Ok(unloaded.recv().map_err(|_| Error::NoAdapter(name.into()))?)
    }

    fn erase_prefixes(&self) -> Result<u64> {
        let (reply, erased) = channel();
        self.send(Command::Erase(reply))?;
        Ok(erased.recv().map_err(|_| stopped())?)
    }
}
