//! A model on a thread of its own while its segment runs: the threads of the run hand it questions and wait. What a question is
//! answered depends on it alone, so the order in which they come does not matter.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// The asking side, of questions `Q` and answers `A`.
pub(super) struct Asked<Q, A> {
    folder: PathBuf,
    /// There while the segment runs.
    questions: Mutex<Option<Sender<Question<Q, A>>>>,
}

struct Question<Q, A> {
    asked: Q,
    answer: Sender<Result<A, Error>>,
}

/// The answering side.
pub(super) struct Queue<Q, A> {
    ready: Sender<Result<(), Error>>,
    questions: Receiver<Question<Q, A>>,
}

impl<Q, A> Queue<Q, A> {
    /// Says that the model is open, and answers until all askers are gone.
    pub fn serve(&self, mut answer: impl FnMut(Q) -> Result<A, Error>) {
        let _ = self.ready.send(Ok(()));
        while let Ok(Question { asked, answer: to }) = self.questions.recv() {
            // A run that was stopped does not wait for its answers.
            let _ = to.send(answer(asked));
        }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Asked<Q, A> {
    /// Of the model in `folder`, not open yet.
    pub fn new(folder: PathBuf) -> Asked<Q, A> {
        Asked { folder, questions: Mutex::default() }
    }

    /// Starts the thread: `open` opens the model and serves the queue.
    ///
    /// # Errors
    /// What `open` says of a model that cannot be opened.
    pub fn begin(
        &self,
        open: impl FnOnce(&Queue<Q, A>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (sender, questions) = channel();
        let (ready, opened) = channel();
        std::thread::spawn(move || {
            let queue = Queue { ready, questions };
            let done = open(&queue);
            // The receiver is gone where the model was opened.
            let _ = queue.ready.send(done);
        });
        opened.recv().unwrap_or_else(|_| Err(self.gone()))?;
        *self.questions.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(())
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the model says, or that it has gone.
    pub fn ask(&self, asked: Q) -> Result<A, Error> {
        let questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (answer, answered) = channel();
        let sent = questions.is_some_and(|to| to.send(Question { asked, answer }).is_ok());
        if !sent {
            return Err(self.gone());
        }
        answered.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// Lets the thread end.
    pub fn end(&self) {
        *self.questions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn gone(&self) -> Error {
        let detail = "its thread has ended before its work; see what it said above".to_owned();
        Error::Model { folder: self.folder.clone(), detail }
    }
}
