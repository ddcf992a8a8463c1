//! Assignment of columns to threads: adjacent tasks in turn, so that a thread uses what it prefetches itself, and once
//! it has no tasks of its own left, the remaining ones of other threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest number of threads with tasks of their own.
const OWN: usize = 64;

/// Tasks not yet taken.
pub(super) struct Turns {
    tasks: usize,
    /// Tasks owned by each thread.
    each: usize,
    /// Number of requests for each owner's tasks.
    taken: [AtomicUsize; OWN],
}

impl Turns {
    /// The given number of tasks, none taken.
    pub fn new(tasks: usize, threads: usize) -> Turns {
        let each = tasks.div_ceil(threads.clamp(1, OWN)).max(1);
        Turns { tasks, each, taken: [const { AtomicUsize::new(0) }; OWN] }
    }

    /// Takes a task; no task is returned twice, and as many calls as there are tasks each return one.
    ///
    /// # Panics
    /// If all tasks have been taken.
    #[track_caller]
    pub fn take(&self, thread: usize) -> usize {
        let owners = self.tasks.div_ceil(self.each);
        for owner in 0..owners {
            let owner = (thread + owner) % owners;
            let own = self.each.min(self.tasks - owner * self.each);
            // The counter is exceeded at most once per thread and owner.
            if self.taken[owner].load(Ordering::Relaxed) < own {
                let at = self.taken[owner].fetch_add(1, Ordering::Relaxed);
                if at < own {
                    return owner * self.each + at;
                }
            }
        }
        panic!("all of {} tasks were taken", self.tasks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_is_taken_once_and_own_ones_first() {
        for (tasks, threads) in [(1, 3), (7, 2), (16, 2), (5, 1), (9, 4), (200, 100)] {
            let turns = Turns::new(tasks, threads);
            let mut found: Vec<usize> = (0..tasks).map(|call| turns.take(call % threads)).collect();
            found.sort_unstable();
            assert_eq!(found, (0..tasks).collect::<Vec<_>>(), "{tasks} tasks, {threads} threads");
        }
        let turns = Turns::new(16, 2);
        let found: Vec<usize> = [0, 1, 0, 1, 1].map(|thread| turns.take(thread)).to_vec();
        assert_eq!(found, [0, 8, 1, 9, 10]);
        // The first thread takes all remaining tasks, its own before the other's.
        let rest: Vec<usize> = (0..11).map(|_| turns.take(0)).collect();
        assert_eq!(rest, [2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn threads_take_all_of_them() {
        let (turns, threads) = (Turns::new(1000, 3), crate::threads::Threads::new(3));
        let hits: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        threads.run(1000, &|_, thread| _ = hits[turns.take(thread)].fetch_add(1, Ordering::Relaxed));
        assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
    }
}
