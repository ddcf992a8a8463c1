//! The time that decides: how long a sequence has waited, and whether a request's time is up. On ranks that take the same steps it is
//! that of one of them, which the others are given; where none is given, time decides nothing.

use std::time::{Duration, Instant};

/// A clock of steps: what it shows changes between them alone.
#[derive(Debug)]
pub(super) struct Clock {
    /// Since when it runs; none of one that is set.
    started: Option<Instant>,
    now: Option<Duration>,
}

impl Clock {
    /// One that runs by itself.
    pub fn own() -> Clock {
        Clock { started: Some(Instant::now()), now: Some(Duration::ZERO) }
    }

    /// One that stands until it is set.
    pub fn following() -> Clock {
        Clock { started: None, now: None }
    }

    /// It is this late from now on.
    pub fn tell(&mut self, now: Duration) {
        (self.started, self.now) = (None, Some(now));
    }

    /// Looks at the time, where it runs by itself.
    pub fn look(&mut self) {
        self.now = self.started.map(|started| started.elapsed()).or(self.now);
    }

    /// Time goes on.
    pub fn runs(&self) -> bool {
        self.now.is_some()
    }

    /// What it shows.
    pub fn now(&self) -> Duration {
        self.now.unwrap_or_default()
    }
}
