//! What is under way, and a thread that looks after it: the first failure of any rank ends all communicators here, so that
//! neither the device nor whoever waits for it waits for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fathom_tensor::mesh::LinkError;

use super::control::{Control, Lost, Topic};
use super::line::{Carrier, Point};
use crate::driver::Driver;

/// Between two looks of the thread.
const TICK: Duration = Duration::from_millis(20);

/// A message that the device works on.
struct Flying {
    done: Arc<Point>,
    since: Instant,
    deadline: Duration,
    peer: usize,
    what: String,
}

/// What the issuing thread and the watching one share.
pub(super) struct Shared {
    pub rank: usize,
    pub deadline: Duration,
    /// What the run is doing, and how long a wait may take meanwhile, if not [`Shared::deadline`].
    section: Mutex<(&'static str, Option<Duration>)>,
    pub control: Mutex<Control>,
    failure: Mutex<Option<LinkError>>,
    flying: Mutex<Vec<Flying>>,
    carriers: Mutex<Vec<Arc<dyn Carrier>>>,
    told: AtomicBool,
    over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(control: Control, deadline: Duration) -> Shared {
        Shared {
            rank: control.rank,
            deadline,
            section: Mutex::new(("setup", None)),
            control: Mutex::new(control),
            failure: Mutex::default(),
            flying: Mutex::default(),
            carriers: Mutex::default(),
            told: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    pub fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// From here on the run is in a section with a deadline of its own.
    pub fn enter(&self, name: &'static str, deadline: Option<Duration>) {
        *lock(&self.section) = (name, deadline);
    }

    /// How long a wait may take now.
    fn patience(&self) -> Duration {
        lock(&self.section).1.unwrap_or(self.deadline)
    }

    /// The first failure.
    pub fn failure(&self) -> Option<LinkError> {
        lock(&self.failure).clone()
    }

    /// Has a carrier ended with the rest.
    pub fn add(&self, carrier: &Arc<dyn Carrier>) {
        lock(&self.carriers).push(carrier.clone());
    }

    /// Looks after a message.
    pub fn watch(&self, done: &Arc<Point>, peer: usize, what: String) {
        let (done, since, deadline) = (done.clone(), Instant::now(), self.patience());
        lock(&self.flying).push(Flying { done, since, deadline, peer, what });
    }

    /// Ends everything here and tells the others, with the first reason.
    pub fn fail(&self, error: LinkError) {
        let reason = lock(&self.failure).get_or_insert(error).to_string();
        // First the device, on which somebody may wait with the connections' lock held by nobody.
        lock(&self.carriers).iter().for_each(|carrier| carrier.abort());
        if self.told.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut control = self.control();
        (0..control.ranks()).for_each(|other| control.say(other, Topic::End, reason.as_bytes()));
    }

    /// What it means that no word came.
    pub fn lost(&self, lost: Lost, what: &str) -> LinkError {
        match lost {
            Lost::Gone(rank) => LinkError::Aborted {
                rank,
                reason: format!("it is gone; rank {} waited in {what}", self.rank),
            },
            Lost::Ended(rank, reason) => LinkError::Aborted { rank, reason },
        }
    }

    /// Looks until `look` finds something.
    ///
    /// # Errors
    /// A failure of any rank, or the deadline's.
    pub fn wait<T>(
        &self,
        peer: usize,
        what: &str,
        mut look: impl FnMut(&mut Control) -> Result<Option<T>, Lost>,
    ) -> Result<T, LinkError> {
        let (begun, deadline) = (Instant::now(), self.patience());
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
            let seconds = begun.elapsed();
            if seconds > deadline {
                let (rank, section) = (self.rank, lock(&self.section).0);
                let (what, seconds) = (format!("{what} ({section})"), seconds.as_secs_f64());
                return Err(LinkError::TimedOut { rank, peer, what, seconds });
            }
            std::thread::sleep(super::control::NAP);
        }
    }

    /// One look of the watching thread: the first thing that is wrong.
    fn wrong(&self, driver: &dyn Driver) -> Option<LinkError> {
        let rank = self.rank;
        if let Err(lost) = self.control().ended() {
            return Some(self.lost(lost, "nothing"));
        }
        let failed = lock(&self.carriers).iter().find_map(|carrier| carrier.failure());
        if let Some(reason) = failed {
            return Some(LinkError::Aborted { rank, reason });
        }
        let mut flying = lock(&self.flying);
        // A device that cannot be asked has failed, which whoever waits for results is told.
        flying.retain(|message| !driver.is_over(message.done.event).unwrap_or(true));
        flying.iter().find_map(|message| {
            let Flying { peer, what, since, deadline, .. } = message;
            if self.control().is_gone(*peer) {
                return Some(self.lost(Lost::Gone(*peer), what));
            }
            let seconds = since.elapsed().as_secs_f64();
            let late = seconds > deadline.as_secs_f64();
            late.then(|| LinkError::TimedOut { rank, peer: *peer, what: what.clone(), seconds })
        })
    }
}

/// The watching thread; ended with this.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts to watch.
    pub fn start(shared: &Arc<Shared>, driver: Arc<dyn Driver>) -> Watcher {
        let watched = shared.clone();
        let work = move || {
            while !watched.over.load(Ordering::Acquire) {
                if watched.failure().is_none()
                    && let Some(error) = watched.wrong(driver.as_ref())
                {
                    watched.fail(error);
                }
                std::thread::park_timeout(TICK);
            }
            lock(&watched.flying).clear();
        };
        Watcher { shared: shared.clone(), thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}
