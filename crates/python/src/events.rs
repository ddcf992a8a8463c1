//! Events of jobs and records of libraries, queued for threads of Python.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fathom_app::{Event, Events};
use log::{LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

/// Most items that wait; the oldest are dropped. The log of a run has all events.
const MOST: usize = 10_000;

/// A bounded queue that never makes its writer wait.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    added: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    dropped: u64,
    ended: bool,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Queue<T> {
        let state = State { items: VecDeque::new(), dropped: 0, ended: false };
        Queue { state: Mutex::new(state), added: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item.
    pub fn push(&self, item: T) {
        let mut state = self.state();
        if state.items.len() == MOST {
            state.items.pop_front();
            state.dropped += 1;
        }
        state.items.push_back(item);
        self.added.notify_one();
    }

    /// Ends the queue: what waits can still be read.
    pub fn end(&self) {
        self.state().ended = true;
        self.added.notify_all();
    }

    /// Takes all that waits, after at most this long; `None` after the end.
    pub fn take(&self, most: Duration) -> Option<Vec<T>> {
        let waited =
            self.added.wait_timeout_while(self.state(), most, |state| state.items.is_empty() && !state.ended);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.ended && state.items.is_empty() {
            return None;
        }
        Some(state.items.drain(..).collect())
    }
}

/// The events of a job, as JSON.
#[derive(Clone)]
pub struct EventSender(pub Arc<Queue<String>>);

impl Events for EventSender {
    fn on(&self, event: Event) {
        if let Ok(text) = serde_json::to_string(&event) {
            self.0.push(text);
        }
    }
}

/// The reader's end of a job's events.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Channel(pub EventSender);

#[pymethods]
impl Channel {
    #[new]
    fn new() -> Channel {
        Channel(EventSender(Arc::new(Queue::new())))
    }

    /// Events as JSON, after at most `seconds`; `None` after the last.
    fn next(&self, py: Python<'_>, seconds: f64) -> Option<Vec<String>> {
        py.detach(|| self.0.0.take(Duration::from_secs_f64(seconds)))
    }

    /// Number of events that were dropped because they were not read in time.
    #[getter]
    fn dropped(&self) -> u64 {
        self.0.0.state().dropped
    }

    /// Ends the channel.
    fn end(&self) {
        self.0.0.end();
    }
}

/// A record of `log`: level, target, message.
type LogRecord = (String, String, String);

/// Records of libraries, for Python's `logging`.
struct Recorder(Queue<LogRecord>);

impl Log for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Other libraries' details are of no use to a caller of this one.
        if record.target().starts_with("fathom") {
            let (level, target) = (record.level().to_string(), record.target().replace("::", "."));
            self.0.push((level, target, record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// The reader's end of the records.
#[pyclass(frozen, module = "fathom._fathom")]
pub struct Records {}

#[pymethods]
impl Records {
    /// Begins to keep records up to a level of Python's `logging` (10 for DEBUG, 30 for WARNING).
    #[new]
    fn new(level: u32) -> Records {
        // Only the first logger of a process is accepted; this is it.
        let _ = log::set_logger(RECORDER.get_or_init(|| Recorder(Queue::new())));
        log::set_max_level(match level {
            0..=9 => LevelFilter::Trace,
            10..=19 => LevelFilter::Debug,
            20..=29 => LevelFilter::Info,
            30..=39 => LevelFilter::Warn,
            _ => LevelFilter::Error,
        });
        Records {}
    }

    /// Records (level, target, message), after at most `seconds`; `None` after the end.
    fn next(&self, py: Python<'_>, seconds: f64) -> Option<Vec<LogRecord>> {
        let recorder = RECORDER.get_or_init(|| Recorder(Queue::new()));
        py.detach(|| recorder.0.take(Duration::from_secs_f64(seconds)))
    }

    /// Ends the records.
    fn end(&self) {
        RECORDER.get_or_init(|| Recorder(Queue::new())).0.end();
    }
}
