//! Scheduling of work. Each stream is a queue; a thread that waits for a point of a stream runs the work before it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;

use super::settings::Schedule;
use super::state::{MOVED, Mark, Op, Ready, State, Work, complain, computes, state};
use super::{settings, streams};

impl State {
    /// Puts an operation on a stream, or into the graph being captured there.
    ///
    /// # Errors
    /// If there is no such stream, or if an event is recorded or waited for during a capture.
    pub fn push(&mut self, stream: u64, op: Op) -> Result<(), CUresult> {
        let Some(queue) = self.streams.get_mut(&stream) else {
            complain("a stream", format!("{stream:#x} is none, or was destroyed"));
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        let Some(capture) = &mut queue.capture else {
            queue.ops.push_back(op);
            queue.issued += 1;
            return Ok(());
        };
        if matches!(op, Op::Work { .. }) {
            capture.ops.push(op);
            return Ok(());
        }
        capture.broken = true;
        complain("a captured stream", "an event was recorded or waited for inside the capture");
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    }
}

/// Runs one operation of a stream, or of a stream that it waits for; returns false if none can run now.
fn step(stream: u64) -> bool {
    let mut at = stream;
    // Limits the chain of streams that wait for each other.
    for _ in 0..256 {
        let mut now = state();
        if now.failed.is_some() {
            return false;
        }
        let Some(queue) = now.streams.get_mut(&at) else { return false };
        if queue.busy {
            return false;
        }
        match queue.ops.front() {
            None => return false,
            Some(Op::Wait(mark)) if mark.over.get().is_none() => at = mark.stream,
            Some(Op::Work { ready: Some(ready), .. }) if !ready() => return false,
            Some(_) => {
                let Some(op) = queue.ops.pop_front() else { return false };
                queue.busy = true;
                drop(now);
                let ran = run(&op);
                let mut now = state();
                if let Some(queue) = now.streams.get_mut(&at) {
                    queue.busy = false;
                    queue.finished += 1;
                }
                if let Err(why) = ran {
                    let Op::Work { what, .. } = &op else { return true };
                    complain(what, why);
                    now.failed = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
                }
                MOVED.notify_all();
                return true;
            }
        }
    }
    false
}

fn run(op: &Op) -> Result<(), String> {
    match op {
        Op::Work { work, .. } => return work(),
        Op::Record(mark) => {
            mark.over.get_or_init(Instant::now);
        }
        Op::Wait(_) => {}
    }
    Ok(())
}

/// Runs a stream until a condition holds, or the device has failed.
fn until(stream: u64, so: impl Fn(&State) -> bool) {
    loop {
        let now = state();
        if now.failed.is_some() || so(&now) {
            return;
        }
        drop(now);
        if !step(stream) {
            let now = state();
            if !so(&now) {
                // Another thread runs the missing work, or another process sends data.
                let waited = MOVED.wait_timeout(now, Duration::from_micros(200));
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

/// Runs everything that a stream currently has.
pub fn drive(stream: u64) {
    let end = state().streams.get(&stream).map_or(0, |queue| queue.issued);
    until(stream, |now| now.streams.get(&stream).is_none_or(|queue| queue.finished >= end));
}

/// Runs everything that all streams currently have, for calls that wait for a device.
pub fn drive_all() {
    let streams: Vec<u64> = state().streams.keys().copied().collect();
    streams.into_iter().for_each(drive);
}

/// Runs until a point has been passed.
pub fn drive_event(mark: &Mark) {
    until(mark.stream, |now| mark.over.get().is_some() || !now.streams.contains_key(&mark.stream));
}

/// Runs one operation before a point, so that polling eventually succeeds.
pub fn nudge(mark: &Mark) {
    step(mark.stream);
}

/// Runs work at submission according to the schedule.
pub fn after_submit() {
    match settings().schedule {
        Schedule::Late => {}
        Schedule::Early => loop {
            let streams: Vec<u64> = state().streams.keys().copied().collect();
            let ran = streams.into_iter().filter(|stream| step(*stream)).count();
            if ran == 0 {
                return;
            }
        },
        Schedule::Seeded(_) => {
            let chosen: Vec<u64> = {
                let mut now = state();
                let streams: Vec<u64> = now.streams.keys().copied().collect();
                let count = now.draw() >> 20 & 3;
                (0..count).map(|_| streams[(now.draw() >> 20) as usize % streams.len()]).collect()
            };
            for stream in chosen {
                step(stream);
            }
        }
    }
}

/// Puts work on a stream; `what` names it in messages. During a capture of the stream the work becomes part of the
/// graph. If nothing is computed, the work only takes its turn.
///
/// # Errors
/// If there is no such stream, or the device has failed.
pub fn submit(stream: u64, what: &str, work: Work) -> Result<(), CUresult> {
    submit_when(stream, what, None, work)
}

/// Like [`submit`], for work that also waits for something outside this process's streams.
///
/// # Errors
/// See [`submit`].
pub fn submit_when(stream: u64, what: &str, ready: Option<Ready>, work: Work) -> Result<(), CUresult> {
    let mut state = state();
    state.alive()?;
    let work: Work = if computes() { work } else { Arc::new(|| Ok(())) };
    state.push(stream, Op::Work { what: what.into(), ready, work })?;
    drop(state);
    streams::after_submit();
    Ok(())
}
