//! The scheduler's clock, for waiting times and deadlines. Ranks that take the same steps use the time of one of them,
//! which is sent to the others; without one, time decides nothing.

use std::time::{Duration, Instant};

/// A clock that changes only between steps.
#[derive(Debug)]
pub(super) struct Clock {
    /// Start time; `None` if it is set from outside.
    started: Option<Instant>,
    now: Option<Duration>,
}

impl Clock {
    /// A clock that runs by itself.
    pub fn own() -> Clock {
        Clock { started: Some(Instant::now()), now: Some(Duration::ZERO) }
    }

    /// A clock that is set from outside.
    pub fn following() -> Clock {
        Clock { started: None, now: None }
    }

    /// Sets the time.
    pub fn tell(&mut self, now: Duration) {
        (self.started, self.now) = (None, Some(now));
    }

    /// Updates the time, if the clock runs by itself.
    pub fn look(&mut self) {
        self.now = self.started.map(|started| started.elapsed()).or(self.now);
    }

    /// True if there is a time.
    pub fn runs(&self) -> bool {
        self.now.is_some()
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        self.now.unwrap_or_default()
    }
}
