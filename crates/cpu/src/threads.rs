//! A fork-join pool: the caller is worker 0, helpers spin briefly and then park.
//!
//! Which thread runs which task is left to chance, so a kernel may not let it decide any result. All of them take denormals as zeros
//! while they work (see [`crate::denormals`]).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::denormals::AsZeros;

/// A task body: `(task, thread)`.
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How often a helper looks for the next job before it sleeps, and the caller for the end of one before it lets others run: about
/// half a millisecond.
const SPINS: u32 = 20_000;

struct Shared {
    /// [`SPINS`], or 0 where there are fewer cores than threads: who spins there keeps somebody from working.
    spins: u32,
    /// Counts the jobs; odd or even does not matter, a change wakes the helpers.
    generation: AtomicUsize,
    /// The body of the current job and its number of tasks. Written by the caller before `generation`
    /// is advanced, read by helpers after they saw the advance.
    job: UnsafeCell<Option<(*const Body<'static>, usize)>>,
    next: AtomicUsize,
    done: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written only while every helper waits (the previous `run` returned after all of them
// had counted themselves into `done`), and the release store of `generation` publishes it.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only followed during `run`, which outlives every use.
unsafe impl Send for Shared {}

/// `count` threads in all, the caller included.
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
            generation: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
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

    /// How many threads work on a job.
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
        // SAFETY: the lifetime is erased for the time of this call only: `run` returns, or unwinds, after
        // every helper has counted itself into `done` and so no longer holds the pointer.
        let erased: *const Body<'static> = unsafe { std::mem::transmute(body as *const Body<'_>) };
        // SAFETY: no helper reads `job` now, see `Shared`.
        unsafe { *shared.job.get() = Some((erased, tasks)) };
        shared.next.store(0, Ordering::Relaxed);
        shared.done.store(0, Ordering::Relaxed);
        shared.generation.fetch_add(1, Ordering::AcqRel);
        for helper in &self.helpers {
            helper.thread().unpark();
        }
        work(shared, body, tasks, 0);
        let mut spins = 0u32;
        while shared.done.load(Ordering::Acquire) < self.helpers.len() {
            spins = spins.saturating_add(1);
            if spins < shared.spins { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        assert!(!shared.panicked.swap(false, Ordering::AcqRel), "a worker thread panicked");
    }
}

/// Takes tasks until none is left; a panic is noted and ends the job early.
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
    let mut seen = 0;
    loop {
        let mut spins = 0u32;
        while shared.generation.load(Ordering::Acquire) == seen {
            spins = spins.saturating_add(1);
            // A spinning helper hurts its neighbours. Whoever advances `generation` unparks all helpers after it.
            if spins < shared.spins { std::hint::spin_loop() } else { std::thread::park() }
        }
        seen += 1;
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the caller wrote `job` before it advanced `generation`, and waits in `run` for `done`.
        if let Some((body, tasks)) = unsafe { *shared.job.get() } {
            // SAFETY: as above, the body outlives this call.
            work(shared, unsafe { &*body }, tasks, thread);
        }
        shared.done.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.generation.fetch_add(1, Ordering::AcqRel);
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

    #[test]
    #[should_panic(expected = "worker thread panicked")]
    fn a_panic_in_a_task_reaches_the_caller() {
        Threads::new(2).run(64, &|task, _| assert!(task != 40));
    }
}
