//! Messages between ranks on the clock of a machine without data: when each was sent, when it arrives, and the log of
//! both while a summary is made ([`crate::Summary`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tick::Tick;

/// The clock's state of messages. One thread at a time uses it.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    state: Mutex<LinesState>,
    logging: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct LinesState {
    /// For each group and collective, when its sends were last issued.
    pub(crate) given: Vec<(String, &'static str, f64)>,
    /// When the other side of the current collective issued what arrives.
    pub(crate) now: f64,
    pub(crate) log: Option<Log>,
    /// Number of logs so far.
    pub(crate) logs: u32,
    /// Arrival times of the messages of a summary that is being repeated.
    pub(crate) moments: Vec<[f64; 2]>,
}

/// Events since a summary was started.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub ticks: Vec<Tick>,
    /// Number of this log.
    pub(crate) number: u32,
    /// Messages started, and messages waited for.
    pub(crate) started: u32,
    pub(crate) waited: u32,
    /// True if something happened that a summary cannot repeat.
    pub(crate) spoiled: bool,
}

impl Log {
    /// True if the ticks describe all that happened.
    pub fn is_whole(&self) -> bool {
        !self.spoiled && self.started == self.waited
    }
}

/// A message in transit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// When the message is through, and how long its receiver then works, counted from then or from when it waits.
    pub(crate) moment: [f64; 2],
    /// Log in which the message was started, and its number there.
    pub(crate) logged: Option<(u32, u32)>,
}

impl Lines {
    pub(crate) fn state(&self) -> MutexGuard<'_, LinesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a log.
    pub fn begin(&self) {
        let mut state = self.state();
        state.logs += 1;
        state.log = Some(Log { number: state.logs, ..Log::default() });
        self.logging.store(true, Ordering::Relaxed);
    }

    /// Ends the log and returns it.
    pub fn end(&self) -> Log {
        self.logging.store(false, Ordering::Relaxed);
        self.state().log.take().unwrap_or_default()
    }

    /// Records a tick if a log is being made.
    pub fn log(&self, tick: impl FnOnce() -> Tick) {
        if self.logging.load(Ordering::Relaxed)
            && let Some(log) = &mut self.state().log
        {
            log.ticks.push(tick());
        }
    }

    /// Marks the log as incomplete: something happened that ticks do not describe.
    pub fn spoil(&self) {
        if self.logging.load(Ordering::Relaxed)
            && let Some(log) = &mut self.state().log
        {
            log.spoiled = true;
        }
    }
}

impl LinesState {
    /// Makes the following messages part of a group's collective, by index.
    pub(crate) fn give(&mut self, key: usize, keeps: bool, now: f64) {
        if !keeps {
            self.given[key].2 = now;
        }
        self.now = self.given[key].2;
    }
}
