//! Limit of the structures compiled at once; others wait a while.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Number of structures compiled at once.
const AT_ONCE: usize = 4;
/// Maximum number of waiters, each of which blocks its caller's thread.
const WAITING: usize = 16;
/// Maximum wait for a turn.
const WAIT: Duration = Duration::from_secs(20);
/// Interval of checks whether a turn is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// Counts the structures being compiled.
#[derive(Default)]
pub struct Turns {
    /// Turns taken, and waiters.
    counts: Mutex<Counts>,
    free: Condvar,
}

#[derive(Default)]
struct Counts {
    taken: usize,
    waiting: usize,
}

/// A turn, returned when dropped.
pub struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn while `wanted` holds.
    ///
    /// # Errors
    /// There was none in time, or it is no longer wanted.
    pub fn take(&self, wanted: &dyn Fn() -> bool) -> Result<Turn<'_>, Error> {
        let started = Instant::now();
        let mut counts = self.counts();
        if counts.taken >= AT_ONCE && counts.waiting >= WAITING {
            return Err(Error::Compiling { at_once: AT_ONCE, waited_s: 0.0 });
        }
        counts.waiting += 1;
        while counts.taken >= AT_ONCE && wanted() && started.elapsed() < WAIT {
            let waited = self.free.wait_timeout(counts, LOOK);
            counts = waited.map_or_else(|broken| broken.into_inner().0, |(counts, _)| counts);
        }
        counts.waiting -= 1;
        if counts.taken < AT_ONCE {
            counts.taken += 1;
            return Ok(Turn(self));
        }
        if wanted() {
            Err(Error::Compiling { at_once: AT_ONCE, waited_s: WAIT.as_secs_f64() })
        } else {
            Err(Error::Unwanted)
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.counts().taken -= 1;
        self.0.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_given_back_and_waited_for_only_while_it_is_wanted() {
        let turns = Turns::default();
        let held: Vec<Turn<'_>> = (0..AT_ONCE).map(|_| turns.take(&|| true).unwrap()).collect();
        assert!(matches!(turns.take(&|| false), Err(Error::Unwanted)));
        drop(held);
        assert!(turns.take(&|| false).is_ok());
    }
}
