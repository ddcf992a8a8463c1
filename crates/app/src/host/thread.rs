//! The thread of a model: devices, weights and pages must stay on the thread that made them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use fathom_engine::Handle;

use crate::error::{Error, Result, refuse};
use crate::events::{Event, Events};

pub(crate) struct ModelThread<T> {
    /// Handle of the model's service.
    pub service: Handle,
    /// Whatever else was found when it was opened.
    pub found: T,
    /// Thread of the model, which ends when the last handle is dropped.
    pub thread: JoinHandle<Result<()>>,
}

/// A message to the thread that waits for the model.
enum Message<T> {
    Event(Event),
    Ready(Box<(Handle, T)>),
}

/// Reports to the thread that waits for the model, until the model is ready.
pub(crate) struct ReadyReporter<T> {
    to: Sender<Message<T>>,
    over: AtomicBool,
}

impl<T> ReadyReporter<T> {
    /// Announces that the model takes requests; returns false if the one who waited has gone.
    pub fn ready(&self, service: Handle, found: T) -> bool {
        self.over.store(true, Ordering::Relaxed);
        self.to.send(Message::Ready(Box::new((service, found)))).is_ok()
    }

    /// Returns whether the model has been announced.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl<T: Send> Events for ReadyReporter<T> {
    fn on(&self, event: Event) {
        // There is no listener once the model is ready.
        _ = self.to.send(Message::Event(event));
    }
}

impl<T: Send + 'static> ModelThread<T> {
    /// Starts a thread on which `work` opens a model, announces it, and serves requests until all handles are dropped;
    /// returns when the model is ready for requests. `events` receives what is reported until then.
    ///
    /// # Errors
    /// Those of `work` before the model is ready.
    pub fn start(
        name: &str,
        events: &dyn Events,
        work: impl FnOnce(&ReadyReporter<T>) -> Result<()> + Send + 'static,
    ) -> Result<ModelThread<T>> {
        let (send, receive) = channel();
        let thread = thread::Builder::new()
            .name(format!("model {name}"))
            .spawn(move || work(&ReadyReporter { to: send, over: AtomicBool::new(false) }))?;
        match ready(&receive, events) {
            Some((service, found)) => Ok(ModelThread { service, found, thread }),
            None => match ended(thread) {
                Err(error) => Err(error),
                Ok(()) => refuse!("{name}: the model's thread ended before it could be asked"),
            },
        }
    }
}

/// Waits until a model is ready, passing on events; `None` if its thread ended before.
fn ready<T>(from: &Receiver<Message<T>>, events: &dyn Events) -> Option<(Handle, T)> {
    loop {
        match from.recv().ok()? {
            Message::Event(event) => events.on(event),
            Message::Ready(model) => return Some(*model),
        }
    }
}

/// Waits for the end of a model's thread.
///
/// # Errors
/// That of the thread, or its panic.
pub(crate) fn ended(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::Panicked("a model's thread panicked".into())))
}
