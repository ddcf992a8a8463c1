//! The order in which key blocks add to query gradients, independent of the threads that compute them.
//!
//! Tasks are started in ascending order and wait only for lower ones, so the lowest unfinished task never waits:
//! there is no deadlock with any number of threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Handles turns, and a flag that ends all waiting after a task has panicked.
#[derive(Default)]
pub struct Wavefront {
    broken: AtomicBool,
}

/// Sets the flag if its task unwinds.
pub struct Guard<'a>(&'a Wavefront);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
        }
    }
}

impl Wavefront {
    /// Guard to be held by every task.
    pub fn guard(&self) -> Guard<'_> {
        Guard(self)
    }

    /// Waits until `turn` shows `value`.
    ///
    /// # Panics
    /// If another task has panicked.
    pub fn wait(&self, turn: &AtomicU32, value: u32) {
        let mut spins = 0u32;
        while turn.load(Ordering::Acquire) != value {
            spins += 1;
            if spins < 2_000 {
                std::hint::spin_loop();
            } else {
                assert!(!self.broken.load(Ordering::Acquire), "attention: another task of this job panicked");
                std::thread::yield_now();
            }
        }
    }
}

/// Work on key blocks of several key heads as one ascending list of tasks. Heads are in groups of `lanes`, within which
/// they alternate, so that adjacent tasks seldom wait for each other.
#[derive(Clone, Copy)]
pub struct Order {
    /// Key heads, tasks per head, and heads in flight.
    pub heads: usize,
    pub steps: usize,
    pub lanes: usize,
}

impl Order {
    /// Number of tasks.
    pub fn tasks(&self) -> usize {
        self.heads * self.steps
    }

    /// `(head, step)` of a task.
    pub fn task(&self, task: usize) -> (usize, usize) {
        let group = task / (self.lanes * self.steps);
        let rest = task - group * self.lanes * self.steps;
        let width = self.lanes.min(self.heads - group * self.lanes);
        (group * self.lanes + rest % width, rest / width)
    }
}

#[cfg(test)]
mod tests {
    use super::Order;

    #[test]
    fn every_pair_comes_once_and_steps_of_a_head_ascend() {
        for (heads, steps, lanes) in [(1, 5, 1), (3, 4, 2), (8, 3, 2), (5, 1, 2)] {
            let order = Order { heads, steps, lanes };
            let mut next = vec![0; heads];
            for task in 0..order.tasks() {
                let (head, step) = order.task(task);
                assert_eq!(step, next[head]);
                next[head] += 1;
                assert!((0..head / lanes * lanes).all(|earlier| next[earlier] == steps));
            }
            assert!(next.iter().all(|&n| n == steps));
        }
    }
}
