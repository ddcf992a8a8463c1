//! Work scheduling over files, and over the batches of the last files.
//!
//! Every thread takes the next file and processes it completely: reading, stages, writing. When no files are left to
//! take, threads take single batches of files that others have open, so that one large file keeps all threads busy.
//! Results return to the file's own thread in batch order, so the output does not depend on which thread did what.
//! The number and bytes of batches in memory are bounded over all files.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// A file being processed, owned by one thread.
pub(crate) trait Lane {
    /// A unit of work that any thread can do.
    type Job: Send;
    /// Result of a job.
    type Output: Send;

    /// Reads the next job; `None` after the last.
    fn next(&mut self) -> Result<Option<Self::Job>, Error>;
    /// Size of a job in memory, in bytes.
    fn bytes(job: &Self::Job) -> u64;
    /// Accepts the results of the jobs, in job order.
    fn accept(&mut self, done: Self::Output) -> Result<(), Error>;
    /// Called once all results have been accepted.
    fn finish(self) -> Result<(), Error>;
}

/// Concurrency limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Number of threads, excluding the caller's.
    pub threads: usize,
    /// Maximum number of batches in memory over all files; each file may have one more.
    pub batches: usize,
    /// Maximum bytes of those batches. A single batch of any size is allowed if nothing else is in memory.
    pub bytes: u64,
    /// Maximum bytes of one batch; reserved while a batch of yet unknown size is being read.
    pub largest: u64,
}

/// Opens lanes 0 to `count` and processes all of them. After an error no new work is started, and the error of the
/// lowest-numbered failed lane is returned.
///
/// # Errors
/// Any error of a lane or of `work`; [`Error::Panicked`] if one of them panics.
pub(crate) fn run<L: Lane>(
    limits: Limits,
    count: usize,
    open: &(dyn Fn(usize) -> Result<L, Error> + Sync),
    work: &(dyn Fn(L::Job) -> Result<L::Output, Error> + Sync),
) -> Result<(), Error> {
    let state = State { next: 0, jobs: VecDeque::new(), driving: 0, flying: 0, bytes: 0, error: None };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let crew = Crew { limits, count, open, work, state, changed };
    std::thread::scope(|scope| {
        for _ in 0..limits.threads.max(1) {
            scope.spawn(|| crew.member());
        }
    });
    let state = crew.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.error.map_or(Ok(()), |(_, error)| Err(error))
}

/// Receives the result of a job.
type Slot<D> = Arc<Mutex<Option<Result<D, Error>>>>;

struct State<L: Lane> {
    next: usize,
    jobs: VecDeque<(L::Job, Slot<L::Output>)>,
    /// Number of open lanes.
    driving: usize,
    /// Number of jobs being read, queued, in progress, or not yet accepted.
    flying: usize,
    /// Bytes of those jobs.
    bytes: u64,
    error: Option<(usize, Error)>,
}

struct Crew<'a, L: Lane> {
    limits: Limits,
    count: usize,
    open: &'a (dyn Fn(usize) -> Result<L, Error> + Sync),
    work: &'a (dyn Fn(L::Job) -> Result<L::Output, Error> + Sync),
    state: Mutex<State<L>>,
    changed: Condvar,
}

impl<L: Lane> Crew<'_, L> {
    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self) {
        loop {
            let lane = {
                let mut state = self.lock();
                if state.error.is_some() {
                    return;
                }
                let lane = (state.next < self.count).then_some(state.next);
                if lane.is_some() {
                    state.next += 1;
                    state.driving += 1;
                }
                lane
            };
            match lane {
                Some(lane) => {
                    let done = fenced(|| self.drive(lane));
                    let mut state = self.lock();
                    state.driving -= 1;
                    if let Err(error) = done {
                        let first = state.error.as_ref().is_none_or(|(other, _)| lane < *other);
                        if first {
                            state.error = Some((lane, error));
                        }
                    }
                    drop(state);
                    self.changed.notify_all();
                }
                None if !self.help() => return,
                None => {}
            }
        }
    }

    /// Performs one job of another thread's lane, waiting for it; false when there will be none.
    fn help(&self) -> bool {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.perform(job);
                return true;
            }
            if state.driving == 0 || state.error.is_some() {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn perform(&self, (job, slot): (L::Job, Slot<L::Output>)) {
        let done = fenced(|| (self.work)(job));
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        // Locking orders this after the driver's check of its slot, so that no wake-up is lost.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Processes one lane to its end.
    fn drive(&self, lane: usize) -> Result<(), Error> {
        let mut lane = (self.open)(lane)?;
        let mut slots: VecDeque<(Slot<L::Output>, u64)> = VecDeque::new();
        let mut more = true;
        loop {
            while let Some(done) = slots.front().and_then(|(slot, _)| taken(slot)) {
                lane.accept(done?)?;
                let bytes = slots.pop_front().map_or(0, |(_, bytes)| bytes);
                self.release(1, bytes);
            }
            if self.lock().error.is_some() {
                return Ok(());
            }
            if more && self.may_read(slots.is_empty()) {
                match lane.next()? {
                    Some(job) => self.queue(job, &mut slots),
                    None => {
                        more = false;
                        self.release(1, self.limits.largest);
                    }
                }
            } else if !more && slots.is_empty() {
                return lane.finish();
            } else if let Some((front, _)) = slots.front() {
                self.work_or_wait(front);
            }
        }
    }

    /// Reserves room for a batch, if available. A lane with no other batch in flight waits for room, performing jobs
    /// of other lanes meanwhile; false then means that another lane failed.
    fn may_read(&self, none_flying: bool) -> bool {
        let Limits { batches, bytes, largest, .. } = self.limits;
        let mut state = self.lock();
        loop {
            if state.error.is_some() {
                return false;
            }
            let fits = state.bytes.saturating_add(largest) <= bytes;
            if state.flying == 0 || (fits && (none_flying || state.flying < batches)) {
                state.flying += 1;
                state.bytes += largest;
                return true;
            }
            if !none_flying {
                return false;
            }
            state = match state.jobs.pop_front() {
                Some(job) => {
                    drop(state);
                    self.perform(job);
                    self.lock()
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Releases reserved room.
    fn release(&self, jobs: usize, bytes: u64) {
        let mut state = self.lock();
        state.flying -= jobs;
        state.bytes -= bytes;
        drop(state);
        self.changed.notify_all();
    }

    /// Queues a job. While unclaimed files remain, no thread waits for single batches, so the job is performed
    /// immediately.
    fn queue(&self, job: L::Job, slots: &mut VecDeque<(Slot<L::Output>, u64)>) {
        let slot = Slot::<L::Output>::default();
        let bytes = L::bytes(&job);
        slots.push_back((slot.clone(), bytes));
        let mut state = self.lock();
        // The size is known now.
        state.bytes = state.bytes - self.limits.largest + bytes;
        if state.next < self.count || self.limits.threads <= 1 {
            drop(state);
            self.changed.notify_all();
            self.perform((job, slot));
            return;
        }
        state.jobs.push_back((job, slot));
        drop(state);
        self.changed.notify_all();
    }

    /// Performs any queued job, or waits until the job of `front` is done.
    fn work_or_wait(&self, front: &Slot<L::Output>) {
        let mut state = self.lock();
        loop {
            let ready = front.lock().unwrap_or_else(PoisonError::into_inner).is_some();
            if ready || state.error.is_some() {
                return;
            }
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.perform(job);
                return;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn taken<D>(slot: &Slot<D>) -> Option<Result<D, Error>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs a call, converting a panic into an error.
pub(crate) fn fenced<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
        Err(Error::Panicked { detail: text.unwrap_or("no message").to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up to a limit; the result of a job is its square.
    struct Numbers<'a> {
        lane: usize,
        left: std::ops::Range<u64>,
        seen: Vec<u64>,
        out: &'a Mutex<Vec<(usize, Vec<u64>)>>,
    }

    impl Lane for Numbers<'_> {
        type Job = u64;
        type Output = u64;
        fn next(&mut self) -> Result<Option<u64>, Error> {
            Ok(self.left.next())
        }
        fn bytes(job: &u64) -> u64 {
            *job
        }
        fn accept(&mut self, done: u64) -> Result<(), Error> {
            self.seen.push(done);
            Ok(())
        }
        fn finish(self) -> Result<(), Error> {
            self.out.lock().unwrap().push((self.lane, self.seen));
            Ok(())
        }
    }

    fn squares(threads: usize, lanes: usize, fail: Option<u64>) -> Result<Vec<(usize, Vec<u64>)>, Error> {
        let limits = Limits { threads, batches: 3 * threads + 2, bytes: u64::MAX, largest: 100 };
        squares_within(limits, lanes, fail)
    }

    fn squares_within(
        limits: Limits,
        lanes: usize,
        fail: Option<u64>,
    ) -> Result<Vec<(usize, Vec<u64>)>, Error> {
        let out = Mutex::new(Vec::new());
        let held = Mutex::new(0);
        let open =
            |lane| Ok(Numbers { lane, left: 0..(lane as u64 * 37 % 101), seen: Vec::new(), out: &out });
        let work = |n: u64| {
            // Jobs in progress are in memory at the same time.
            let add = |bytes: i64| {
                let mut held = held.lock().unwrap();
                *held += bytes;
                *held
            };
            let before = add(n as i64);
            assert!(before as u64 <= limits.bytes.max(limits.largest), "{before} bytes at once");
            std::thread::yield_now();
            add(-(n as i64));
            if Some(n) == fail {
                panic!("job {n}");
            }
            Ok(n * n)
        };
        run(limits, lanes, &open, &work)?;
        let mut out = out.into_inner().unwrap();
        out.sort();
        Ok(out)
    }

    #[test]
    fn every_lane_gets_its_own_results_in_order() {
        for (threads, lanes) in [(1, 5), (2, 1), (3, 2), (4, 40), (8, 3)] {
            let out = squares(threads, lanes, None).unwrap();
            assert_eq!(out.len(), lanes);
            for (lane, seen) in out {
                let wanted: Vec<u64> = (0..(lane as u64 * 37 % 101)).map(|n| n * n).collect();
                assert_eq!(seen, wanted, "{threads} threads, lane {lane}");
            }
        }
    }

    #[test]
    fn bytes_in_memory_are_bounded_and_one_batch_may_always_be() {
        for (threads, bytes) in [(1, 10), (3, 10), (4, 150), (8, 250), (8, 1000)] {
            let limits = Limits { threads, batches: 3 * threads + 2, bytes, largest: 100 };
            let out = squares_within(limits, 30, None).unwrap();
            assert_eq!(out.len(), 30, "{threads} threads, {bytes} bytes");
            assert!(out.iter().all(|(lane, seen)| seen.len() == lane * 37 % 101));
            assert!(squares_within(limits, 30, Some(20)).is_err());
        }
    }

    #[test]
    fn a_panic_ends_the_run_with_an_error() {
        for threads in [1, 3] {
            let error = squares(threads, 6, Some(20)).unwrap_err();
            assert!(error.to_string().contains("job 20"), "{error}");
        }
    }
}
