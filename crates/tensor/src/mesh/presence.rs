//! Last activity of each rank in one process, and the meeting of ranks after a failure.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::link::{Absent, What};

/// Last known activity of a rank.
#[derive(Clone, Copy)]
struct LastActivity {
    at: Instant,
    what: Option<What>,
    waits: bool,
}

/// Activity by rank.
pub(super) struct Presence(Vec<Mutex<LastActivity>>);

impl Presence {
    pub fn new(ranks: usize) -> Presence {
        let seen = || Mutex::new(LastActivity { at: Instant::now(), what: None, waits: false });
        Presence((0..ranks).map(|_| seen()).collect())
    }

    /// Records that a rank starts waiting.
    pub fn waits(&self, rank: usize, what: &What) {
        *lock(&self.0[rank]) = LastActivity { at: Instant::now(), what: Some(*what), waits: true };
    }

    /// Records that a rank resumes its own work.
    pub fn works(&self, rank: usize) {
        let mut seen = lock(&self.0[rank]);
        (seen.at, seen.waits) = (Instant::now(), false);
    }

    /// Ranks that `rank` waits for in vain: those that are not waiting themselves, or `peer` if all are.
    pub fn absent(&self, rank: usize, peer: usize) -> Vec<Absent> {
        let others = (0..self.0.len()).filter(|other| *other != rank);
        let absent: Vec<usize> = others.filter(|other| !lock(&self.0[*other]).waits).collect();
        self.describe(if absent.is_empty() { std::slice::from_ref(&peer) } else { &absent })
    }

    pub fn describe(&self, ranks: &[usize]) -> Vec<Absent> {
        let one = |rank: &usize| {
            let LastActivity { at, what, .. } = *lock(&self.0[*rank]);
            let last = what.map(|what| what.to_string()).unwrap_or_default();
            Absent { rank: *rank, silent_s: at.elapsed().as_secs_f64(), last }
        };
        ranks.iter().map(one).collect()
    }
}

/// Meeting point of all ranks after a failure.
pub(super) struct MeetingPoint {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Meetings held so far.
    number: u64,
    here: Vec<bool>,
    /// Ranks that will not come again.
    left: Vec<bool>,
}

impl MeetingPoint {
    pub fn new(ranks: usize) -> MeetingPoint {
        let state = State { number: 0, here: vec![false; ranks], left: vec![false; ranks] };
        MeetingPoint { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Records that a rank is gone for good.
    pub fn leave(&self, rank: usize) {
        lock(&self.state).left[rank] = true;
        self.changed.notify_all();
    }

    /// Waits for all ranks; the last to arrive calls `clear` while the others wait.
    ///
    /// # Errors
    /// The ranks that have not arrived, or never will.
    pub fn meet(&self, rank: usize, deadline: Duration, clear: impl FnOnce()) -> Result<(), Vec<usize>> {
        let until = Instant::now() + deadline;
        let mut state = lock(&self.state);
        let number = state.number;
        state.here[rank] = true;
        if state.here.iter().all(|here| *here) {
            clear();
            state.here.fill(false);
            state.number += 1;
            self.changed.notify_all();
            return Ok(());
        }
        while state.number == number {
            let left = until.saturating_duration_since(Instant::now());
            let absent =
                |gone: &[bool]| gone.iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| at).collect();
            let gone: Vec<usize> = absent(&state.left);
            if !gone.is_empty() || left.is_zero() {
                let late: Vec<bool> = state.here.iter().map(|here| !here).collect();
                // Without this rank there can be no further meeting.
                state.left[rank] = true;
                self.changed.notify_all();
                return Err(if gone.is_empty() { absent(&late) } else { gone });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        Ok(())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_meet_or_no_rank_does() {
        let meeting = MeetingPoint::new(3);
        let long = Duration::from_secs(600);
        for round in 0..3 {
            let cleared = Mutex::new(0);
            std::thread::scope(|scope| {
                for rank in 0..3 {
                    let (meeting, cleared) = (&meeting, &cleared);
                    scope.spawn(move || assert_eq!(meeting.meet(rank, long, || *lock(cleared) += 1), Ok(())));
                }
            });
            assert_eq!(*lock(&cleared), 1, "round {round}");
        }
        std::thread::scope(|scope| {
            let first = scope.spawn(|| meeting.meet(0, long, || ()));
            meeting.leave(2);
            assert_eq!(first.join().unwrap(), Err(vec![2]));
        });
        assert!(meeting.meet(1, long, || ()).is_err(), "rank 0 has given up too");
    }
}
