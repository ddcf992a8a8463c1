//! Communicators: what each rank knows of itself, who uses it, and how far its operations are.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::types::{Status, refuse};
use super::wire::{Inbox, Link, Way};
use crate::device::{Mark, complain, nudge, state};

/// How far the operations of a communicator are: they run one after another, in the order in which they were issued.
#[derive(Default)]
pub struct Turn {
    /// How many were put on streams, but for those of graphs.
    pub issued: u64,
    /// How many of these are over.
    pub over: u64,
    /// One runs, of a graph or not.
    pub running: bool,
    /// How many messages each way to or from each peer has had.
    pub counts: HashMap<(u8, usize, bool), u64>,
    /// Connections that were asked for.
    pub connected: HashSet<(Way, usize)>,
    /// The streams of what is issued and not over.
    pub streams: BTreeMap<u64, u64>,
}

/// A communicator of one rank.
pub struct Comm {
    /// What callers have for it.
    pub handle: usize,
    /// Its rank.
    pub rank: usize,
    /// Of how many.
    pub ranks: usize,
    /// Its device.
    pub device: usize,
    /// Whether calls return when they are done.
    pub blocking: bool,
    /// What has come.
    pub inbox: Arc<Inbox>,
    /// The ways to all ranks, once they have met.
    pub links: OnceLock<Vec<Link>>,
    /// Operations.
    pub turn: Mutex<Turn>,
    /// Graphs' operations that live.
    pub captured: AtomicUsize,
    /// The thread that made it.
    maker: ThreadId,
    /// `ncclCommFinalize` was called.
    pub finalized: AtomicBool,
    /// `ncclCommGetAsyncError`'s.
    result: AtomicI32,
    /// How often it was asked for.
    polls: AtomicU64,
    /// The thread that is in a call, or whose open group has operations of this communicator.
    user: Mutex<Option<(ThreadId, usize)>>,
    sockets: Mutex<Vec<UnixStream>>,
}

#[derive(Default)]
struct Registry {
    live: BTreeMap<usize, Arc<Comm>>,
    gone: BTreeSet<usize>,
    last: usize,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that uses a communicator, until it is dropped.
pub struct Using(Arc<Comm>);

impl std::ops::Deref for Using {
    type Target = Arc<Comm>;
    fn deref(&self) -> &Arc<Comm> {
        &self.0
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut user = self.0.user();
        if let Some((_, times)) = user.as_mut() {
            *times -= 1;
            if *times == 0 {
                *user = None;
            }
        }
    }
}

impl Comm {
    /// A communicator that no rank has joined yet.
    pub fn new(rank: usize, ranks: usize, device: usize, blocking: bool) -> Arc<Comm> {
        let mut registry = registry();
        registry.last += 1;
        let handle = 0x6e63_0000_0000 + 16 * registry.last;
        let comm = Arc::new(Comm {
            handle,
            rank,
            ranks,
            device,
            blocking,
            inbox: Arc::new(Inbox::new(ranks)),
            links: OnceLock::new(),
            turn: Mutex::default(),
            captured: AtomicUsize::new(0),
            maker: std::thread::current().id(),
            finalized: AtomicBool::new(false),
            result: AtomicI32::new(Status::Progress as i32),
            polls: AtomicU64::new(0),
            user: Mutex::new(None),
            sockets: Mutex::default(),
        });
        registry.live.insert(handle, comm.clone());
        comm
    }

    /// Warns if a communicator that this thread made is not ready yet.
    pub fn warn_of_unfinished(call: &str) {
        let own = std::thread::current().id();
        let unready = |comm: &&Arc<Comm>| comm.maker == own && comm.result() == Status::Progress;
        if registry().live.values().any(|comm| unready(&comm)) {
            let why = "warning: another communicator that this thread made is ncclInProgress, and all must be \
                       ncclSuccess before another function is called (ncclCommGetAsyncError)";
            complain(call, why);
        }
    }

    /// Whether another thread is in a call of a communicator of this one's device.
    pub fn others_call(&self) -> bool {
        let own = std::thread::current().id();
        let calls = |comm: &Arc<Comm>| comm.user().is_some_and(|(thread, _)| thread != own);
        registry().live.values().any(|comm| comm.device == self.device && calls(comm))
    }

    /// The communicator of a handle.
    ///
    /// # Errors
    /// If it is null or none, or was destroyed.
    pub fn of(call: &str, handle: usize) -> Result<Arc<Comm>, Status> {
        let registry = registry();
        if let Some(found) = registry.live.get(&handle) {
            return Ok(found.clone());
        }
        let why = if handle == 0 {
            "the communicator is null"
        } else if registry.gone.contains(&handle) {
            "the communicator was destroyed or aborted"
        } else {
            "no communicator"
        };
        refuse(call, why, Status::Argument)
    }

    /// Takes a communicator for this thread's use.
    ///
    /// # Errors
    /// As [`Comm::of`], or if another thread has it.
    pub fn enter(call: &str, handle: usize) -> Result<Using, Status> {
        let comm = Comm::of(call, handle)?;
        comm.take().or_else(|()| {
            let why = "another thread uses this communicator: only one may at a time (Thread Safety)";
            refuse(call, why, Status::Usage)
        })
    }

    /// The same without words.
    ///
    /// # Errors
    /// If another thread has it.
    pub fn take(self: &Arc<Comm>) -> Result<Using, ()> {
        let own = std::thread::current().id();
        let mut user = self.user();
        match user.as_mut() {
            None => *user = Some((own, 1)),
            Some((thread, times)) if *thread == own => *times += 1,
            Some(_) => return Err(()),
        }
        Ok(Using(self.clone()))
    }

    fn user(&self) -> MutexGuard<'_, Option<(ThreadId, usize)>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its operations are. No call of the device may be made while the guard lives.
    pub fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No rank finds it any more.
    pub fn forget(&self) {
        let mut registry = registry();
        registry.live.remove(&self.handle);
        registry.gone.insert(self.handle);
    }

    /// Its state, without counting as a question.
    pub fn result(&self) -> Status {
        let result = Status::of(self.result.load(Ordering::SeqCst));
        let lost = || self.inbox.mail().iter().any(|mail| mail.broken);
        if result == Status::Success && lost() { Status::Remote } else { result }
    }

    /// `ncclCommGetAsyncError`'s answer.
    pub fn poll(&self) -> Status {
        self.polls.fetch_add(1, Ordering::SeqCst);
        self.result()
    }

    /// Sets the state.
    pub fn set(&self, status: Status) {
        self.result.store(status as i32, Ordering::SeqCst);
    }

    /// Work in the background ends as late as a caller could see: when its state was asked for twice, or a while has passed.
    pub fn linger(&self) {
        let (before, started) = (self.polls.load(Ordering::SeqCst), Instant::now());
        let asked = || self.polls.load(Ordering::SeqCst) >= before + 2;
        while !asked() && started.elapsed() < Duration::from_millis(20) && !self.inbox.is_aborted() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Only a communicator without anything under way may be used.
    ///
    /// # Errors
    /// Its state, if it is another.
    pub fn ready(&self, call: &str) -> Result<(), Status> {
        match self.result() {
            Status::Success => Ok(()),
            Status::Progress => {
                let why = "the state is ncclInProgress: ask ncclCommGetAsyncError until it is another";
                if !self.blocking {
                    self.set(Status::Argument);
                }
                refuse(call, why, Status::Argument)
            }
            failed => refuse(call, format!("the communicator has failed ({failed:?}): abort it"), failed),
        }
    }

    /// A socket that an abort closes.
    ///
    /// # Errors
    /// If it cannot be had twice.
    pub fn watch(&self, socket: &UnixStream) -> io::Result<()> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.push(socket.try_clone()?);
        if self.inbox.is_aborted() {
            socket.shutdown(std::net::Shutdown::Both)?;
        }
        Ok(())
    }

    /// A way through a socket.
    ///
    /// # Errors
    /// As [`Link::through`].
    pub fn through(&self, socket: UnixStream, peer: usize) -> io::Result<Link> {
        self.watch(&socket)?;
        Link::through(socket, peer, self.inbox.clone())
    }

    /// Gives up: queued operations are dropped, and peers lose this rank.
    pub fn abort(&self) {
        self.inbox.abort();
        for socket in self.sockets.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            _ = socket.shutdown(std::net::Shutdown::Both);
        }
        for link in self.links.get().into_iter().flatten() {
            link.cut(self.rank);
        }
    }

    /// Sends a message to a peer.
    pub fn post(&self, peer: usize, frame: super::wire::Frame) {
        if let Some(links) = self.links.get() {
            links[peer].post(self.rank, frame);
        }
    }

    /// Runs one operation of each stream that has some of this communicator's, as a device would by itself.
    pub fn push_on(&self) {
        let mut streams: BTreeSet<u64> = self.turn().streams.values().copied().collect();
        if self.captured.load(Ordering::SeqCst) > 0 {
            streams.extend(state().streams.keys());
        }
        for stream in streams {
            nudge(&Mark { stream, over: OnceLock::new() });
        }
    }

    /// A device goes on when no thread waits for it: if a peer has waited for a while, this rank's streams run.
    pub fn keep_moving(self: &Arc<Comm>) {
        let (inbox, weak) = (self.inbox.clone(), Arc::downgrade(self));
        let patience = Duration::from_millis(2);
        std::thread::spawn(move || {
            while !inbox.is_aborted() {
                let waits = |since: Instant| since.elapsed() > patience;
                let due = inbox.mail().iter().any(|mail| mail.since.is_some_and(waits));
                let Some(comm) = weak.upgrade() else { return };
                if due {
                    (0..64).for_each(|_| comm.push_on());
                }
                drop(comm);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

/// Threads that issue operations on a device, by token.
static ISSUING: LazyLock<Mutex<BTreeMap<usize, (u64, usize)>>> = LazyLock::new(Mutex::default);

/// The right to issue on a device, until it is dropped.
pub struct Issuing(usize);

impl Issuing {
    /// Takes the right for a group, which is known by a token.
    ///
    /// # Errors
    /// If another group has it.
    pub fn take(call: &str, device: usize, token: u64) -> Result<Issuing, Status> {
        let mut all = ISSUING.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, times) = all.entry(device).or_insert((token, 0));
        if *times > 0 && *owner != token {
            let why = "operations of another communicator of this device are being issued: one after another \
                       (Thread Safety; ncclCommGetAsyncError)";
            return refuse(call, why, Status::Usage);
        }
        (*owner, *times) = (token, *times + 1);
        Ok(Issuing(device))
    }
}

impl Drop for Issuing {
    fn drop(&mut self) {
        let mut all = ISSUING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, times)) = all.get_mut(&self.0) {
            *times -= 1;
        }
    }
}
