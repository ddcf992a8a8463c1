//! Progress of a verb that computes for long and prints at the end: lines on standard error after some silence.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fathom_app::{Event, Events};
use fathom_base::human;

use crate::console;
use crate::listen::Plain;

/// Silence before the first line, and between lines.
const QUIET: Duration = Duration::from_secs(3);

/// Reports the current work until dropped.
pub struct WorkReport {
    at: Arc<Mutex<String>>,
    done: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    plain: Plain,
}

impl WorkReport {
    /// Starts reporting.
    pub fn new() -> WorkReport {
        let at = Arc::new(Mutex::new(String::new()));
        let (done, wait) = channel();
        let (started, shown) = (Instant::now(), at.clone());
        let say = move || {
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(QUIET) {
                let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if !text.is_empty() {
                    console::note(&format!(
                        "[{:>6}] {text}",
                        human::seconds(started.elapsed().as_secs_f64())
                    ));
                }
            }
        };
        // Without a thread, nothing is reported.
        let thread = thread::Builder::new().name("progress".into()).spawn(say).ok();
        WorkReport { at, done: Some(done), thread, plain: Plain::default() }
    }
}

impl Events for WorkReport {
    fn on(&self, event: Event) {
        match event {
            Event::Doing(text) => *self.at.lock().unwrap_or_else(PoisonError::into_inner) = text,
            event => self.plain.on(event),
        }
    }
}

impl Drop for WorkReport {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
