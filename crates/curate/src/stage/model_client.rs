//! A model running on its own thread during a segment: the threads of the run send it requests and wait. An answer
//! depends only on its request, so the order of requests is irrelevant.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// Client side, with requests `Q` and responses `A`.
pub(super) struct ModelClient<Q, A> {
    folder: PathBuf,
    /// Request channel; `None` outside a segment.
    questions: Mutex<Option<Sender<Question<Q, A>>>>,
}

struct Question<Q, A> {
    asked: Q,
    answer: Sender<Result<A, Error>>,
}

/// Server side.
pub(super) struct Queue<Q, A> {
    ready: Sender<Result<(), Error>>,
    questions: Receiver<Question<Q, A>>,
}

impl<Q, A> Queue<Q, A> {
    /// Reports that the model is loaded, and serves requests until all clients are gone.
    pub fn serve(&self, mut answer: impl FnMut(Q) -> Result<A, Error>) {
        let _ = self.ready.send(Ok(()));
        while let Ok(Question { asked, answer: to }) = self.questions.recv() {
            // An interrupted run does not wait for its answers.
            let _ = to.send(answer(asked));
        }
    }
}

impl<Q: Send + 'static, A: Send + 'static> ModelClient<Q, A> {
    /// Client of the model in `folder`, which is not loaded yet.
    pub fn new(folder: PathBuf) -> ModelClient<Q, A> {
        ModelClient { folder, questions: Mutex::default() }
    }

    /// Starts the thread; `open` loads the model and serves the queue.
    ///
    /// # Errors
    /// The error of `open` if the model cannot be loaded.
    pub fn begin(
        &self,
        open: impl FnOnce(&Queue<Q, A>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (sender, questions) = channel();
        let (ready, opened) = channel();
        std::thread::spawn(move || {
            let queue = Queue { ready, questions };
            let done = open(&queue);
            // The receiver is gone if the model was loaded.
            let _ = queue.ready.send(done);
        });
        opened.recv().unwrap_or_else(|_| Err(self.gone()))?;
        *self.questions.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(())
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// The model fails, or its thread has ended.
    pub fn ask(&self, asked: Q) -> Result<A, Error> {
        let questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (answer, answered) = channel();
        let sent = questions.is_some_and(|to| to.send(Question { asked, answer }).is_ok());
        if !sent {
            return Err(self.gone());
        }
        answered.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// Closes the request channel, which ends the thread.
    pub fn end(&self) {
        *self.questions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn gone(&self) -> Error {
        let detail = "its thread has ended before its work; see what it said above".to_owned();
        Error::Model { folder: self.folder.clone(), detail }
    }
}
