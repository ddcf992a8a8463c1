//! Time that is read through a value, so that a test can say what time it is.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Seconds since some moment.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> f64 + Send + Sync>);

impl Clock {
    /// Of the system, from now on.
    pub fn start() -> Clock {
        let started = Instant::now();
        Clock(Arc::new(move || started.elapsed().as_secs_f64()))
    }

    /// Of whoever tells the time.
    pub fn of(seconds: impl Fn() -> f64 + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(seconds))
    }

    /// Seconds that have passed.
    pub fn now_s(&self) -> f64 {
        (self.0)()
    }

    /// In this many seconds from now.
    pub fn within(&self, seconds: f64) -> Deadline {
        self.at(self.now_s() + seconds)
    }

    /// When it shows this.
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

/// When something has to have ended.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: Clock,
    at_s: f64,
}

impl Deadline {
    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What its clock shows then.
    pub fn at_s(&self) -> f64 {
        self.at_s
    }

    /// Seconds until then; below 0 it has passed.
    pub fn left_s(&self) -> f64 {
        self.at_s - self.clock.now_s()
    }

    /// After a share of the time that is left.
    pub fn part(&self, share: f64) -> Deadline {
        self.clock.within(self.left_s().max(0.0) * share)
    }
}
