//! A fork-join pool: the caller is worker 0, helpers spin briefly and then park.
//!
//! The assignment of tasks to threads is arbitrary, so a kernel's results must not depend on it. All threads treat
//! denormals as zeros while they work (see [`crate::denormals`]).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::denormals::AsZeros;

/// A task body: `(task, thread)`.
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Number of times that a helper polls for the next job before it sleeps, and the caller for the end of one before it
/// yields: about half a millisecond.
const SPINS: u32 = 20_000;

/// Increment of [`Shared::gate`] for one more thread in the current job; its lower half counts them.
const INSIDE: u64 = 1;
const COUNT: u64 = OPEN - 1;
/// Bit that allows joining the current job.
const OPEN: u64 = 1 << 31;
/// Increment for one more job; the upper half counts them.
const JOB: u64 = 1 << 32;

struct Shared {
    /// [`SPINS`], or 0 if there are fewer cores than threads: spinning would then keep another thread from working.
    spins: u32,
    /// Number of jobs so far, whether the last may still be joined, and the number of helpers in it. A helper that
    /// arrives too late, because its core was busy, is not waited for.
    gate: AtomicU64,
    /// The body of the current job and its number of tasks. Written by the caller while the gate is shut and no helper
    /// is inside; read by helpers inside.
    job: UnsafeCell<Option<(*const Body<'static>, usize)>>,
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written only while the gate is shut and no helper is inside, and the release store that opens the
// gate publishes it.
unsafe impl Sync for Shared {}
// SAFETY: only helpers inside dereference the pointer in `job`, and `run` waits for them.
unsafe impl Send for Shared {}

/// A pool of `count` threads, including the caller.
pub struct Threads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// One job at a time; a second caller waits.
    turn: Mutex<()>,
}

impl Threads {
    /// A pool of `count` threads (at least one).
    pub fn new(count: usize) -> Threads {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shared = Arc::new(Shared {
            spins: if count > cores { 0 } else { SPINS },
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let helpers = (1..count.max(1))
            .map(|thread| {
                let shared = shared.clone();
                std::thread::spawn(move || helper(&shared, thread))
            })
            .collect();
        Threads { shared, helpers, turn: Mutex::new(()) }
    }

    /// Number of threads, including the caller.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `body(task, thread)` once for each task in `0..tasks` and returns when all have ended.
    ///
    /// # Panics
    /// If a task panicked on any thread.
    pub fn run(&self, tasks: usize, body: &Body<'_>) {
        let _zeros = AsZeros::new();
        if self.helpers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|task| body(task, 0));
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased only for this call: `run` returns, or unwinds, after the gate was shut and
        // every helper inside has left and no longer holds the pointer.
        let erased: *const Body<'static> = unsafe { std::mem::transmute(body as *const Body<'_>) };
        // SAFETY: no helper reads `job` now, see `Shared`.
        unsafe { *shared.job.get() = Some((erased, tasks)) };
        shared.next.store(0, Ordering::Relaxed);
        shared.gate.fetch_add(JOB | OPEN, Ordering::AcqRel);
        for helper in &self.helpers {
            helper.thread().unpark();
        }
        work(shared, body, tasks, 0);
        let mut spins = 0u32;
        let mut inside = shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        while inside & COUNT > 0 {
            spins = spins.saturating_add(1);
            if spins < shared.spins {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            inside = shared.gate.load(Ordering::Acquire);
        }
        assert!(!shared.panicked.swap(false, Ordering::AcqRel), "a worker thread panicked");
    }
}

/// Takes tasks until none is left; a panic is recorded and ends the job early.
fn work(shared: &Shared, body: &Body<'_>, tasks: usize, thread: usize) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        loop {
            let task = shared.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            body(task, thread);
        }
    }));
    if result.is_err() {
        shared.next.store(tasks, Ordering::Relaxed);
        shared.panicked.store(true, Ordering::Release);
    }
}

fn helper(shared: &Shared, thread: usize) {
    let _zeros = AsZeros::new();
    let (mut seen, mut spins) = (0, 0u32);
    loop {
        let gate = shared.gate.load(Ordering::Acquire);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        if gate & OPEN == 0 || gate / JOB == seen {
            spins = spins.saturating_add(1);
            // Spinning slows down other threads. Opening the gate is always followed by unparking all helpers.
            if spins < shared.spins {
                std::hint::spin_loop()
            } else {
                std::thread::park()
            }
            continue;
        }
        if shared.gate.compare_exchange(gate, gate + INSIDE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        (seen, spins) = (gate / JOB, 0);
        // SAFETY: the caller wrote `job` before it opened the gate, and waits in `run` for helpers inside.
        if let Some((body, tasks)) = unsafe { *shared.job.get() } {
            // SAFETY: as above, the body outlives this call.
            work(shared, unsafe { &*body }, tasks, thread);
        }
        shared.gate.fetch_sub(INSIDE, Ordering::AcqRel);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_threads() {
        for count in [1, 2, 3] {
            let threads = Threads::new(count);
            for tasks in [0, 1, 7, 1000] {
                let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.run(tasks, &|task, thread| {
                    assert!(thread < count);
                    hits[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
            }
        }
    }

    /// Consecutive jobs from several callers, each of which must see all of its own tasks done.
    #[test]
    fn jobs_follow_each_other() {
        let threads = Threads::new(4);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for tasks in (0..4000).map(|at| at % 7 + 2) {
                        let hits = AtomicUsize::new(0);
                        threads.run(tasks, &|_, _| _ = hits.fetch_add(1, Ordering::Relaxed));
                        assert_eq!(hits.load(Ordering::Relaxed), tasks);
                    }
                });
            }
        });
    }

    #[test]
    #[should_panic(expected = "worker thread panicked")]
    fn a_panic_in_a_task_reaches_the_caller() {
        Threads::new(2).run(64, &|task, _| assert!(task != 40));
    }
}
