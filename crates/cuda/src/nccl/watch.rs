//! Messages in flight and the thread that watches them: the first failure of any rank aborts all communicators here, so
//! that neither the device nor any waiting thread waits forever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fathom_tensor::mesh::LinkError;

use super::control::{Control, RecvFailure, Topic};
use super::line::{Carrier, Point};
use crate::driver::Driver;

/// Interval between checks of the thread.
const TICK: Duration = Duration::from_millis(20);
/// Time from NCCL's failure until the connection to a rank that is gone is expected to close.
const MOMENT: Duration = Duration::from_millis(500);
/// Polling interval of a wait that may take hours.
const LONG_NAP: Duration = Duration::from_millis(5);

/// Condition that ends the need for a peer.
enum Until {
    /// The device has passed this point.
    Done(Arc<Point>),
    /// A [`During`] has been dropped.
    Dropped(Arc<AtomicBool>),
}

/// A message in flight on the device, or a wait of the host.
struct WatchedWait {
    until: Until,
    since: Instant,
    deadline: Duration,
    peer: usize,
    what: String,
}

/// Lifetime of a wait of the host for a peer.
pub(super) struct During(Arc<AtomicBool>);

impl Drop for During {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// State shared by the issuing and the watching thread.
pub(super) struct WatchState {
    pub rank: usize,
    pub deadline: Duration,
    /// Current section of the run, and its limit on waits, if not [`WatchState::deadline`].
    section: Mutex<(&'static str, Option<Duration>)>,
    pub control: Mutex<Control>,
    failure: Mutex<Option<LinkError>>,
    flying: Mutex<Vec<WatchedWait>>,
    reported: AtomicBool,
    /// True while a thread watches, which aborts work in flight if the run fails.
    watched: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WatchState {
    pub fn new(control: Control, deadline: Duration) -> WatchState {
        WatchState {
            rank: control.rank,
            deadline,
            section: Mutex::new(("setup", None)),
            control: Mutex::new(control),
            failure: Mutex::default(),
            flying: Mutex::default(),
            reported: AtomicBool::new(false),
            watched: AtomicBool::new(false),
        }
    }

    pub fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Enters a section of the run with its own deadline.
    pub fn enter(&self, name: &'static str, deadline: Option<Duration>) {
        *lock(&self.section) = (name, deadline);
    }

    /// Current limit on waits.
    fn patience(&self) -> Duration {
        lock(&self.section).1.unwrap_or(self.deadline)
    }

    /// The first failure.
    pub fn failure(&self) -> Option<LinkError> {
        lock(&self.failure).clone()
    }

    fn fly(&self, until: Until, peer: usize, what: String) {
        let (since, deadline) = (Instant::now(), self.patience());
        lock(&self.flying).push(WatchedWait { until, since, deadline, peer, what });
    }

    /// Watches a message.
    pub fn watch(&self, done: &Arc<Point>, peer: usize, what: String) {
        self.fly(Until::Done(done.clone()), peer, what);
    }

    /// Watches a wait of the host for a peer.
    #[must_use]
    pub fn during(&self, peer: usize, what: &str) -> During {
        let dropped = Arc::new(AtomicBool::new(false));
        self.fly(Until::Dropped(dropped.clone()), peer, what.to_string());
        During(dropped)
    }

    /// Ends the run: the watcher aborts it here, and the other ranks are notified with the first reason.
    pub fn fail(&self, error: LinkError) {
        let reason = match lock(&self.failure).get_or_insert(error) {
            // Other ranks get the bare reason, as they know that this rank ended the run.
            LinkError::Aborted { rank, reason } if *rank == self.rank => reason.clone(),
            error => error.to_string(),
        };
        if self.reported.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut control = self.control();
        (0..control.ranks()).for_each(|other| control.say(other, Topic::End, reason.as_bytes()));
    }

    /// The first failure, once nothing is in flight here; memory used by NCCL may be freed then.
    pub fn ended(&self) -> Option<LinkError> {
        let failure = self.failure()?;
        while self.watched.load(Ordering::Acquire) {
            std::thread::sleep(LONG_NAP);
        }
        Some(failure)
    }

    /// The failure behind a missing message.
    pub fn lost(&self, lost: RecvFailure, what: &str) -> LinkError {
        match lost {
            RecvFailure::Gone(rank) => LinkError::Aborted {
                rank,
                reason: format!("it is gone; rank {} waited in {what}", self.rank),
            },
            RecvFailure::Ended(rank, reason) => LinkError::Aborted { rank, reason },
        }
    }

    /// Polls until `look` returns a value.
    ///
    /// # Errors
    /// A failure of any rank, or an expired deadline.
    pub fn wait<T>(
        &self,
        peer: usize,
        what: &str,
        mut look: impl FnMut(&mut Control) -> Result<Option<T>, RecvFailure>,
    ) -> Result<T, LinkError> {
        let (started, deadline) = (Instant::now(), self.patience());
        loop {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            let found = look(&mut self.control());
            match found {
                Ok(Some(found)) => return Ok(found),
                Err(lost) => return Err(self.lost(lost, what)),
                Ok(None) => {}
            }
            let seconds = started.elapsed();
            if seconds > deadline {
                let (rank, section) = (self.rank, lock(&self.section).0);
                let (what, seconds) = (format!("{what} ({section})"), seconds.as_secs_f64());
                return Err(LinkError::TimedOut { rank, peer, what, seconds });
            }
            std::thread::sleep(super::control::NAP);
        }
    }

    /// Waits for a frame without a deadline: the sender may have hours of work first, and its death is noticed.
    ///
    /// # Errors
    /// A failure of any rank.
    pub fn hear(&self, from: usize, topic: Topic, what: &str) -> Result<Vec<u8>, LinkError> {
        loop {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            let heard = self.control().heard(from, topic);
            match heard.map_err(|lost| self.lost(lost, what))? {
                Some(words) => return Ok(words),
                None => std::thread::sleep(LONG_NAP),
            }
        }
    }

    /// Notifies all ranks that nothing is in flight here, and waits for the same from them, however long they still
    /// work.
    ///
    /// # Errors
    /// See [`WatchState::hear`].
    pub fn leave(&self) -> Result<(), LinkError> {
        let ranks = self.control().ranks();
        (0..ranks).for_each(|other| self.control().say(other, Topic::Leave, &[]));
        let mut others = (0..ranks).filter(|other| *other != self.rank);
        others.try_for_each(|other| self.hear(other, Topic::Leave, "the end of the link").map(|_| ()))
    }

    /// One check of the watching thread: the first problem found.
    fn wrong(&self, driver: &dyn Driver, by: &dyn Connect) -> Option<LinkError> {
        let rank = self.rank;
        if let Err(lost) = self.control().ended() {
            return Some(self.lost(lost, "nothing"));
        }
        let mut flying = lock(&self.flying);
        flying.retain(|message| match &message.until {
            // A device that cannot be queried has failed, which is reported where results are waited for.
            Until::Done(point) => !driver.is_over(point.event).unwrap_or(true),
            Until::Dropped(dropped) => !dropped.load(Ordering::Acquire),
        });
        let gone = flying.iter().find(|message| self.control().is_gone(message.peer));
        if let Some(WatchedWait { peer, what, .. }) = gone {
            return Some(self.lost(RecvFailure::Gone(*peer), what));
        }
        // The polling thread gives up a call after the deadline.
        if let Some(reason) = by.failure(2 * self.deadline) {
            drop(flying);
            return Some(self.explained(reason, "a call of NCCL"));
        }
        flying.iter().find_map(|message| {
            let WatchedWait { peer, what, since, deadline, .. } = message;
            let seconds = since.elapsed().as_secs_f64();
            let late = seconds > deadline.as_secs_f64();
            late.then(|| LinkError::TimedOut { rank, peer: *peer, what: what.clone(), seconds })
        })
    }

    /// Interprets a failure of NCCL: if a rank is gone, as its connection soon shows, that is the cause.
    pub fn explained(&self, reason: String, what: &str) -> LinkError {
        let started = Instant::now();
        while started.elapsed() < MOMENT {
            let mut control = self.control();
            if let Err(lost) = control.ended() {
                return self.lost(lost, what);
            }
            if let Some(gone) = (0..control.ranks()).find(|rank| control.is_gone(*rank)) {
                return self.lost(RecvFailure::Gone(gone), what);
            }
            drop(control);
            std::thread::sleep(LONG_NAP);
        }
        LinkError::Aborted { rank: self.rank, reason }
    }

    /// Aborts everything here, on a separate thread. The device may have failed such that NCCL waits for it forever, or
    /// a thread may never return from a call of NCCL; only exiting the process ends that.
    fn end(&self, by: Arc<dyn Connect>) {
        let started = Instant::now();
        // Without a thread for this, the process has to exit.
        let spawned = std::thread::Builder::new().spawn(move || by.abort());
        let ending = spawned.unwrap_or_else(|error| {
            log::error!("no thread to end the run of rank {}: {error}", self.rank);
            std::process::abort()
        });
        while !ending.is_finished() {
            if started.elapsed() > self.deadline {
                let reason = self.failure().map(|error| error.to_string()).unwrap_or_default();
                log::error!(
                    "{reason}; NCCL does not end its work on rank {}, so the process is ended",
                    self.rank
                );
                std::process::abort();
            }
            std::thread::park_timeout(TICK);
        }
    }
}

/// The watching thread; on drop it is joined, after a failed run once nothing is in flight.
pub(super) struct Watcher {
    shared: Arc<WatchState>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts watching.
    pub fn start(shared: &Arc<WatchState>, driver: Arc<dyn Driver>, by: Arc<dyn Connect>) -> Watcher {
        let over = Arc::new(AtomicBool::new(false));
        let (watched, stop) = (shared.clone(), over.clone());
        shared.watched.store(true, Ordering::Release);
        let work = move || {
            while watched.failure().is_none() && !stop.load(Ordering::Acquire) {
                match watched.wrong(driver.as_ref(), by.as_ref()) {
                    Some(error) => watched.fail(error),
                    None => std::thread::park_timeout(TICK),
                }
            }
            if watched.failure().is_some() {
                watched.end(by);
            }
            lock(&watched.flying).clear();
            watched.watched.store(false, Ordering::Release);
        };
        Watcher { shared: shared.clone(), over, thread: Some(std::thread::spawn(work)) }
    }

    /// The shared state.
    pub fn shared(&self) -> &Arc<WatchState> {
        &self.shared
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

/// Creates and ends carriers of messages.
pub(super) trait Connect: Send + Sync {
    /// Connects one direction between this rank and another; both ranks connect both directions in the same order.
    fn connect(&self, shared: &WatchState, other: usize, sends: bool) -> crate::Result<Arc<dyn Carrier>>;
    /// An asynchronous failure; a call that has not returned within `patience` counts as one.
    fn failure(&self, patience: Duration) -> Option<String>;
    /// Closes everything in order, with nothing in flight; all ranks call this at the same time.
    fn close(&self) -> crate::Result<()>;
    /// Aborts all work in flight at once; nothing is transferred afterwards.
    fn abort(&self);
}
