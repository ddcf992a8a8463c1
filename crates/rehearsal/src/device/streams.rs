//! When work runs. Each stream is a queue; whoever waits for a point of one runs what is before it, in the threads that wait.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;

use super::settings::Schedule;
use super::{MOVED, Ready, State, Work, complain, settings, state};

/// A point of a stream that an event stands for.
pub struct Mark {
    /// Of which stream.
    pub stream: u64,
    /// When it was passed.
    pub over: OnceLock<Instant>,
}

/// What a stream does next.
#[derive(Clone)]
pub enum Op {
    /// Something is done.
    Work {
        /// For messages.
        what: Arc<str>,
        /// Not before this.
        ready: Option<Ready>,
        /// What.
        work: Work,
    },
    /// A point is passed.
    Record(Arc<Mark>),
    /// A point of another stream has to be passed first.
    Wait(Arc<Mark>),
}

/// What a captured stream was given.
pub struct Capture {
    /// The work, in order.
    pub ops: Vec<Op>,
    /// The thread that began it, which must not make calls that could wait.
    pub owner: ThreadId,
    /// Something was asked for that a graph cannot have.
    pub broken: bool,
}

/// A queue.
#[derive(Default)]
pub struct StreamState {
    ops: VecDeque<Op>,
    /// How many were given.
    issued: u64,
    /// How many are over.
    finished: u64,
    /// One runs now.
    busy: bool,
    /// Set while the stream is captured.
    pub capture: Option<Capture>,
}

impl StreamState {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.finished == self.issued
    }
}

/// An event: the point that it was last recorded at.
pub struct EventState {
    /// Its moment can be asked for.
    pub timed: bool,
    /// None if it never was.
    pub last: Option<Arc<Mark>>,
}

impl State {
    /// Puts an operation on a stream, or into the graph that is captured there.
    ///
    /// # Errors
    /// If there is no such stream; if what is captured cannot wait or be waited for.
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

/// Runs one operation of a stream, or of those that it waits for; false if none can run now.
fn step(stream: u64) -> bool {
    let mut at = stream;
    // More streams than this do not wait for each other.
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

/// Runs a stream until something is so, or the device has failed.
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
                // Others run what is missing, or another process sends it.
                let waited = MOVED.wait_timeout(now, Duration::from_micros(200));
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

/// Runs all that a stream has now.
pub fn drive(stream: u64) {
    let end = state().streams.get(&stream).map_or(0, |queue| queue.issued);
    until(stream, |now| now.streams.get(&stream).is_none_or(|queue| queue.finished >= end));
}

/// Runs all that all streams have now, as calls do that wait for a device.
pub fn drive_all() {
    let streams: Vec<u64> = state().streams.keys().copied().collect();
    streams.into_iter().for_each(drive);
}

/// Runs until a point is passed.
pub fn drive_event(mark: &Mark) {
    until(mark.stream, |now| mark.over.get().is_some() || !now.streams.contains_key(&mark.stream));
}

/// Runs one operation before a point, so that who only asks again and again comes to an end.
pub fn nudge(mark: &Mark) {
    step(mark.stream);
}

/// What runs at once when work was submitted.
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
