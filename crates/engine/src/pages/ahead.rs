//! A thread that reads pages ahead and writes pages in the background: a queue and a ring of buffers.
//!
//! Tasks run in the order in which they were submitted, so that reads see earlier writes. Data read ahead waits in its
//! buffer, and is discarded if it is overwritten. Both the number of buffers and the bytes being written are bounded;
//! beyond that, writers wait.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// A range of bytes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub at: u64,
    pub bytes: usize,
}

impl Span {
    fn meets(&self, other: Span) -> bool {
        self.at < other.at + other.bytes as u64 && other.at < self.at + self.bytes as u64
    }
}

/// A task with its buffer.
enum Task {
    Read(u64, Vec<u8>),
    Write(u64, Vec<u8>),
}

/// The buffer of a finished task, or its error.
type Done = Result<Vec<u8>>;

/// Submitted tasks, in order.
enum Asked {
    Read(Span),
    /// A read whose data is no longer needed.
    GivenUp,
    Write(usize),
}

/// The thread, as seen by the one that issues work.
pub(super) struct Ahead {
    /// `None` once it ends.
    tasks: Option<Sender<Task>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    asked: VecDeque<Asked>,
    ready: Vec<(Span, Vec<u8>)>,
    free: Vec<Vec<u8>>,
    buffer_bytes: usize,
    /// Bytes being written, and their maximum.
    writing_bytes: usize,
    most_bytes: usize,
}

impl Ahead {
    /// Starts a thread for a file, with this number of buffers of this size.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(file: Arc<File>, (buffers, buffer_bytes): (usize, usize)) -> Result<Ahead> {
        let (tasks, queue) = channel();
        let (send, done) = channel();
        let thread = Builder::new().name("pages".into()).spawn(move || serve(&file, &queue, &send))?;
        Ok(Ahead {
            tasks: Some(tasks),
            done,
            thread: Some(thread),
            asked: VecDeque::new(),
            ready: Vec::new(),
            free: (0..buffers).map(|_| Vec::with_capacity(buffer_bytes)).collect(),
            buffer_bytes,
            writing_bytes: 0,
            most_bytes: buffers * buffer_bytes,
        })
    }

    /// Size of a buffer, and so of one read.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Starts to read byte ranges, in order, into as many buffers as are free. Earlier reads that are not among them
    /// are discarded.
    ///
    /// # Errors
    /// Those of the system, from an earlier task.
    ///
    /// # Panics
    /// If a range is larger than a buffer.
    pub fn begin(&mut self, spans: &[Span]) -> Result<()> {
        self.look()?;
        self.give_up(|read| !spans.contains(read));
        for span in spans {
            assert!(span.bytes <= self.buffer_bytes, "pages: {span:?} in a buffer of {}", self.buffer_bytes);
            if self.has(*span) {
                continue;
            }
            let Some(mut buffer) = self.free.pop() else { break };
            buffer.resize(span.bytes, 0);
            self.asked.push_back(Asked::Read(*span));
            self.ask(Task::Read(span.at, buffer))?;
        }
        Ok(())
    }

    /// True if a range is being read, or is available.
    pub fn has(&self, span: Span) -> bool {
        let asked = |asked: &Asked| matches!(asked, Asked::Read(other) if *other == span);
        self.asked.iter().any(asked) || self.ready.iter().any(|(other, _)| *other == span)
    }

    /// Passes a range that was read ahead to `use_them` once it is available; returns its result, or `None` if it was
    /// not requested.
    ///
    /// # Errors
    /// Those of the system.
    pub fn take<T>(&mut self, span: Span, use_them: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        loop {
            if let Some(index) = self.ready.iter().position(|(other, _)| *other == span) {
                let (_, buffer) = self.ready.swap_remove(index);
                let made = use_them(&buffer);
                self.free.push(buffer);
                return Ok(Some(made));
            }
            if !self.has(span) {
                return Ok(None);
            }
            self.wait()?;
        }
    }

    /// Starts to write bytes; waits if too many are being written.
    ///
    /// # Errors
    /// Those of the system, from an earlier task.
    pub fn write(&mut self, at: u64, bytes: Vec<u8>) -> Result<()> {
        let span = Span { at, bytes: bytes.len() };
        self.give_up(|read| read.meets(span));
        while self.writing_bytes > 0 && self.writing_bytes + span.bytes > self.most_bytes {
            self.wait()?;
        }
        self.writing_bytes += span.bytes;
        self.asked.push_back(Asked::Write(span.bytes));
        self.ask(Task::Write(at, bytes))
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// Those of the system.
    pub fn settle(&mut self) -> Result<()> {
        while self.writing_bytes > 0 {
            self.wait()?;
        }
        Ok(())
    }

    fn give_up(&mut self, which: impl Fn(&Span) -> bool) {
        for asked in &mut self.asked {
            if matches!(asked, Asked::Read(span) if which(span)) {
                *asked = Asked::GivenUp;
            }
        }
        for (_, buffer) in self.ready.extract_if(.., |(span, _)| which(span)) {
            self.free.push(buffer);
        }
    }

    fn ask(&mut self, task: Task) -> Result<()> {
        let sent = self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok());
        if sent { Ok(()) } else { Err(gone()) }
    }

    /// Processes finished tasks.
    fn look(&mut self) -> Result<()> {
        while let Ok(done) = self.done.try_recv() {
            self.note(done)?;
        }
        Ok(())
    }

    /// Waits for one more task.
    fn wait(&mut self) -> Result<()> {
        let done = self.done.recv().map_err(|_| gone())?;
        self.note(done)
    }

    fn note(&mut self, done: Done) -> Result<()> {
        let asked = self.asked.pop_front();
        match asked {
            Some(Asked::Write(bytes)) => {
                self.writing_bytes -= bytes;
                done?;
            }
            Some(Asked::Read(span)) => match done {
                Ok(buffer) => self.ready.push((span, buffer)),
                Err(error) => {
                    self.free.push(Vec::with_capacity(self.buffer_bytes));
                    return Err(error);
                }
            },
            Some(Asked::GivenUp) => self.free.push(done.unwrap_or_default()),
            None => return Err(gone()),
        }
        Ok(())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // The thread exits when its queue closes, and none of its tasks can panic.
            let _ = thread.join();
        }
    }
}

/// The error if the thread has ended.
fn gone() -> Error {
    Error::new(ErrorKind::BrokenPipe, "the thread that reads pages has ended")
}

/// Runs tasks until the queue is closed.
fn serve(file: &File, queue: &Receiver<Task>, send: &Sender<Done>) {
    while let Ok(task) = queue.recv() {
        let done = match task {
            Task::Read(at, mut buffer) => file.read_exact_at(&mut buffer, at).map(|()| buffer),
            Task::Write(at, bytes) => file.write_all_at(&bytes, at).map(|()| Vec::new()),
        };
        if send.send(done).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(bytes: usize, buffers: usize) -> Ahead {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![1; bytes], 0).unwrap();
        Ahead::start(Arc::new(file), (buffers, 10)).unwrap()
    }

    fn span(at: u64, bytes: usize) -> Span {
        Span { at, bytes }
    }

    #[test]
    fn what_is_read_is_what_was_written_before() {
        let mut ahead = ahead(100, 3);
        ahead.write(20, vec![2; 10]).unwrap();
        ahead.begin(&[span(20, 10), span(30, 10)]).unwrap();
        assert_eq!(ahead.take(span(20, 10), <[u8]>::to_vec).unwrap(), Some(vec![2; 10]));
        // A range that is overwritten meanwhile is discarded, whether it has been read or not.
        ahead.write(35, vec![3; 2]).unwrap();
        assert_eq!(ahead.take(span(30, 10), <[u8]>::to_vec).unwrap(), None);
        ahead.begin(&[span(30, 10)]).unwrap();
        let expected = [1, 1, 1, 1, 1, 3, 3, 1, 1, 1];
        assert_eq!(ahead.take(span(30, 10), <[u8]>::to_vec).unwrap(), Some(expected.to_vec()));
    }

    #[test]
    fn there_are_so_many_buffers_and_no_more() {
        let mut ahead = ahead(100, 2);
        let all: Vec<Span> = (0..5).map(|at| span(10 * at, 10)).collect();
        let there = |ahead: &Ahead| all.iter().map(|span| ahead.has(*span)).collect::<Vec<bool>>();
        for _ in 0..3 {
            ahead.begin(&all).unwrap();
            assert_eq!(there(&ahead), [true, true, false, false, false]);
        }
        ahead.take(all[0], |_| ()).unwrap();
        ahead.begin(&all[1..]).unwrap();
        assert_eq!(there(&ahead), [false, true, true, false, false]);
        // New ranges are requested: they get the buffers as soon as those are read.
        while !ahead.has(all[4]) {
            ahead.begin(&all[4..]).unwrap();
        }
        assert_eq!(there(&ahead)[1..3], [false, false]);
        // At most the buffers' size in bytes is being written at once.
        for at in 0..10 {
            ahead.write(10 * at, vec![4; 9]).unwrap();
            assert!(ahead.writing_bytes <= 20);
        }
        ahead.settle().unwrap();
        ahead.begin(&[span(90, 10)]).unwrap();
        assert_eq!(ahead.take(span(90, 10), |bytes| bytes[8..].to_vec()).unwrap(), Some(vec![4, 1]));
    }

    #[test]
    fn what_cannot_be_read_or_written_is_said_to_who_waits_for_it() {
        let mut short = ahead(15, 2);
        short.begin(&[span(10, 10)]).unwrap();
        assert_eq!(short.take(span(10, 10), |_| ()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        short.begin(&[span(0, 10)]).unwrap();
        assert!(short.take(span(0, 10), |_| ()).unwrap().is_some());
        let named = tempfile::NamedTempFile::new().unwrap();
        let mut closed = Ahead::start(Arc::new(File::open(named.path()).unwrap()), (2, 10)).unwrap();
        closed.write(0, vec![1]).unwrap();
        assert!(closed.settle().is_err());
    }
}
