//! An injectable clock, so that tests can control time.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A source of time, in seconds since an arbitrary moment.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> f64 + Send + Sync>);

impl Clock {
    /// System clock that starts at zero now.
    pub fn start() -> Clock {
        let started = Instant::now();
        Clock(Arc::new(move || started.elapsed().as_secs_f64()))
    }

    /// Clock that reads the given function.
    pub fn of(seconds: impl Fn() -> f64 + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(seconds))
    }

    /// Current time in seconds.
    pub fn now_s(&self) -> f64 {
        (self.0)()
    }

    /// Deadline this many seconds from now.
    pub fn within(&self, seconds: f64) -> Deadline {
        self.at(self.now_s() + seconds)
    }

    /// Deadline at this time of the clock.
    pub fn at(&self, seconds: f64) -> Deadline {
        Deadline { clock: self.clone(), at_s: seconds }
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::start()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:.3} s)", self.now_s())
    }
}

/// Time by which something must have ended.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: Clock,
    at_s: f64,
}

impl Deadline {
    /// Clock of the deadline.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Clock time of the deadline.
    pub fn at_s(&self) -> f64 {
        self.at_s
    }

    /// Seconds left; negative after the deadline.
    pub fn left_s(&self) -> f64 {
        self.at_s - self.clock.now_s()
    }

    /// Deadline after a share of the remaining time.
    pub fn part(&self, share: f64) -> Deadline {
        self.clock.within(self.left_s().max(0.0) * share)
    }
}
