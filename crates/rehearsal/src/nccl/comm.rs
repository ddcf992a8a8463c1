//! Communicators: the state of each rank, its users, and the progress of its operations.

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

/// Progress of a communicator's operations, which run in the order in which they were issued.
#[derive(Default)]
pub struct Turn {
    /// Number of operations put on streams, excluding those of graphs.
    pub issued: u64,
    /// Number of these that have completed.
    pub over: u64,
    /// True while one runs, whether from a graph or not.
    pub running: bool,
    /// Number of messages each way, to or from each peer.
    pub counts: HashMap<(u8, usize, bool), u64>,
    /// Connections that were requested.
    pub connected: HashSet<(Way, usize)>,
    /// Streams of operations that have been issued but not completed.
    pub streams: BTreeMap<u64, u64>,
}

/// A communicator of one rank.
pub struct Comm {
    /// Handle seen by callers.
    pub handle: usize,
    /// Rank in the communicator.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Device of the rank.
    pub device: usize,
    /// True if calls return only when they are done.
    pub blocking: bool,
    /// Received messages.
    pub inbox: Arc<Inbox>,
    /// Links to all ranks, once they have met.
    pub links: OnceLock<Vec<Link>>,
    /// Progress of operations.
    pub turn: Mutex<Turn>,
    /// Number of live operations in graphs.
    pub captured: AtomicUsize,
    /// The thread that created it.
    maker: ThreadId,
    /// True once `ncclCommFinalize` was called.
    pub finalized: AtomicBool,
    /// Status for `ncclCommGetAsyncError`.
    result: AtomicI32,
    /// Number of times that status was queried.
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

/// Use of a communicator by a thread, until dropped.
pub struct CommUse(Arc<Comm>);

impl std::ops::Deref for CommUse {
    type Target = Arc<Comm>;
    fn deref(&self) -> &Arc<Comm> {
        &self.0
    }
}

impl Drop for CommUse {
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
    /// Creates a communicator before it has joined its peers.
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

    /// Warns if a communicator created by this thread is not ready yet.
    pub fn warn_of_unfinished(call: &str) {
        let own = std::thread::current().id();
        let unready = |comm: &&Arc<Comm>| comm.maker == own && comm.result() == Status::Progress;
        if registry().live.values().any(|comm| unready(&comm)) {
            let why = "warning: another communicator that this thread made is ncclInProgress, and all must be \
                       ncclSuccess before another function is called (ncclCommGetAsyncError)";
            complain(call, why);
        }
    }

    /// True if another thread is in a call on a communicator of this one's device.
    pub fn others_call(&self) -> bool {
        let own = std::thread::current().id();
        let calls = |comm: &Arc<Comm>| comm.user().is_some_and(|(thread, _)| thread != own);
        registry().live.values().any(|comm| comm.device == self.device && calls(comm))
    }

    /// The communicator of a handle.
    ///
    /// # Errors
    /// If it is null or invalid, or was destroyed.
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

    /// Takes a communicator for use by this thread.
    ///
    /// # Errors
    /// See [`Comm::of`]; also if another thread is using it.
    pub fn enter(call: &str, handle: usize) -> Result<CommUse, Status> {
        let comm = Comm::of(call, handle)?;
        comm.take().or_else(|()| {
            let why = "another thread uses this communicator: only one may at a time (Thread Safety)";
            refuse(call, why, Status::Usage)
        })
    }

    /// Like [`Comm::enter`], without a message.
    ///
    /// # Errors
    /// If another thread is using it.
    pub fn take(self: &Arc<Comm>) -> Result<CommUse, ()> {
        let own = std::thread::current().id();
        let mut user = self.user();
        match user.as_mut() {
            None => *user = Some((own, 1)),
            Some((thread, times)) if *thread == own => *times += 1,
            Some(_) => return Err(()),
        }
        Ok(CommUse(self.clone()))
    }

    fn user(&self) -> MutexGuard<'_, Option<(ThreadId, usize)>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Progress of operations. No call to the device may be made while the guard lives.
    pub fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the communicator from the registry.
    pub fn forget(&self) {
        let mut registry = registry();
        registry.live.remove(&self.handle);
        registry.gone.insert(self.handle);
    }

    /// Its status, without counting as a query.
    pub fn result(&self) -> Status {
        let result = Status::of(self.result.load(Ordering::SeqCst));
        let lost = || self.inbox.mail().iter().any(|mail| mail.broken);
        if result == Status::Success && lost() { Status::Remote } else { result }
    }

    /// The result of `ncclCommGetAsyncError`.
    pub fn poll(&self) -> Status {
        self.polls.fetch_add(1, Ordering::SeqCst);
        self.result()
    }

    /// Sets the status.
    pub fn set(&self, status: Status) {
        self.result.store(status as i32, Ordering::SeqCst);
    }

    /// Delays background work until as late as a caller could observe: until the status was queried twice, or some time
    /// has passed.
    pub fn linger(&self) {
        let (before, started) = (self.polls.load(Ordering::SeqCst), Instant::now());
        let asked = || self.polls.load(Ordering::SeqCst) >= before + 2;
        while !asked() && started.elapsed() < Duration::from_millis(20) && !self.inbox.is_aborted() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Checks that the communicator is ready for use.
    ///
    /// # Errors
    /// Its status otherwise.
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

    /// Registers a socket to be closed by an abort.
    ///
    /// # Errors
    /// If it cannot be duplicated.
    pub fn watch(&self, socket: &UnixStream) -> io::Result<()> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.push(socket.try_clone()?);
        if self.inbox.is_aborted() {
            socket.shutdown(std::net::Shutdown::Both)?;
        }
        Ok(())
    }

    /// Creates a link over a socket.
    ///
    /// # Errors
    /// See [`Link::through`].
    pub fn through(&self, socket: UnixStream, peer: usize) -> io::Result<Link> {
        self.watch(&socket)?;
        Link::through(socket, peer, self.inbox.clone())
    }

    /// Aborts: queued operations are dropped, and peers lose this rank.
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

    /// Runs one operation of each stream that has operations of this communicator, as a device would on its own.
    pub fn push_on(&self) {
        let mut streams: BTreeSet<u64> = self.turn().streams.values().copied().collect();
        if self.captured.load(Ordering::SeqCst) > 0 {
            streams.extend(state().streams.keys());
        }
        for stream in streams {
            nudge(&Mark { stream, over: OnceLock::new() });
        }
    }

    /// Simulates a device's independent progress: if a peer has waited for some time, this rank's streams run.
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

/// Groups that issue operations on a device, by token.
static ISSUING: LazyLock<Mutex<BTreeMap<usize, (u64, usize)>>> = LazyLock::new(Mutex::default);

/// The right to issue on a device, until dropped.
pub struct IssueGuard(usize);

impl IssueGuard {
    /// Takes the right for a group, identified by a token.
    ///
    /// # Errors
    /// If another group has it.
    pub fn take(call: &str, device: usize, token: u64) -> Result<IssueGuard, Status> {
        let mut all = ISSUING.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, times) = all.entry(device).or_insert((token, 0));
        if *times > 0 && *owner != token {
            let why = "operations of another communicator of this device are being issued: one after another \
                       (Thread Safety; ncclCommGetAsyncError)";
            return refuse(call, why, Status::Usage);
        }
        (*owner, *times) = (token, *times + 1);
        Ok(IssueGuard(device))
    }
}

impl Drop for IssueGuard {
    fn drop(&mut self) {
        let mut all = ISSUING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, times)) = all.get_mut(&self.0) {
            *times -= 1;
        }
    }
}
