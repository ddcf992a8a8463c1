//! A service over ranks that have parts of one model ([`crate::parts`]). The first rank has the queue, the clock and
//! the clients. Before a step it sends to the others everything that time or clients decide: requests that came or
//! left, the time, and the guesses of its draft model, which no other rank has. The others apply this in the same
//! order, so all take the same steps and choose the same tokens, and only the first reads a clock or communicates with
//! clients.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use fathom_base::{Flow, Load};

use crate::engine::Engine;
use crate::error::Error;
use crate::limits::Capacity;
use crate::schedule::{CheckedRequest, Guess, Scheduler};
use crate::store::Beginnings;

/// A message from the first rank to the others.
pub(crate) enum Word {
    /// A request arrives at this time.
    Join(u64, Box<CheckedRequest>, Duration),
    /// A request leaves.
    Leave(u64),
    /// Cached prefixes are dropped.
    Erase,
    /// An adapter of this name is read from this folder, and the result is returned.
    Read(String, PathBuf, Sender<Result<(), Error>>),
    /// The adapter that was read is adopted, or dropped.
    Adopt(bool),
    /// An adapter's name is removed.
    Unload(String),
    /// A step at this time, with the draft model's guesses.
    Step(Duration, Vec<Guess>),
}

impl Word {
    /// A copy for another rank.
    fn again(&mut self) -> Word {
        match self {
            Word::Join(id, request, now) => Word::Join(*id, Box::new(request.again()), *now),
            Word::Leave(id) => Word::Leave(*id),
            Word::Erase => Word::Erase,
            Word::Read(name, folder, reply) => Word::Read(name.clone(), folder.clone(), reply.clone()),
            Word::Adopt(all) => Word::Adopt(*all),
            Word::Unload(name) => Word::Unload(name.clone()),
            Word::Step(now, guesses) => Word::Step(*now, guesses.clone()),
        }
    }
}

/// The first rank's channels to the others, which end when it is gone.
pub struct Leader {
    others: Vec<Sender<Word>>,
}

/// Another rank's end of the channel.
pub struct Follower {
    words: Receiver<Word>,
}

/// A leader and its `others` followers.
pub fn ranks(others: usize) -> (Leader, Vec<Follower>) {
    let (others, followers) = (0..others).map(|_| channel()).unzip::<_, _, Vec<_>, Vec<_>>();
    (Leader { others }, followers.into_iter().map(|words| Follower { words }).collect())
}

impl Leader {
    /// Sends a message to all others. A rank that has exited has left its error in the link, where the next step finds
    /// it.
    pub(crate) fn say(&self, mut word: Word) {
        self.others.iter().for_each(|other| _ = other.send(word.again()));
    }

    /// Loads an adapter on all ranks, or on none.
    pub(crate) fn load_adapter(&self, engine: &Engine<'_>, name: &str, folder: &Path) -> Result<(), Error> {
        let (reply, replies) = channel();
        self.say(Word::Read(name.into(), folder.into(), reply));
        let own = engine.read_adapter(name, folder);
        // A rank that is gone sends no reply.
        let others = replies.iter().collect::<Result<Vec<()>, Error>>();
        let read = own.and_then(|read| others.map(|_| read));
        self.say(Word::Adopt(read.is_ok()));
        read.map(|read| engine.adopt(read))
    }
}

impl Follower {
    /// Follows the first rank's steps until it ends, with prefixes on disk if it has them; returns the final load.
    ///
    /// # Errors
    /// A rank failed.
    ///
    /// # Panics
    /// Those of a step.
    pub fn follow(
        &self,
        engine: &Engine<'_>,
        capacity: Capacity,
        beginnings: Option<&Beginnings>,
    ) -> Result<Load, Error> {
        let mut scheduler = Scheduler::new(engine, capacity).over_ranks();
        if let Some(beginnings) = beginnings {
            scheduler = scheduler.sharing(beginnings)?;
        }
        let mut adapter = None;
        for word in &self.words {
            match word {
                Word::Join(id, request, now) => {
                    scheduler.set_time(now);
                    scheduler.queue(id, *request, Box::new(|_| Flow::Continue))?;
                }
                Word::Leave(id) => scheduler.cancel(id),
                Word::Erase => _ = scheduler.erase(None),
                Word::Read(name, folder, reply) => {
                    let read = engine.read_adapter(&name, &folder);
                    // The first rank waits for this, or is gone.
                    _ = reply.send(read.map(|read| adapter = Some(read)));
                }
                Word::Adopt(all) => {
                    adapter.take().filter(|_| all).into_iter().for_each(|it| engine.adopt(it))
                }
                Word::Unload(name) => _ = engine.take_adapter(&name),
                Word::Step(now, guesses) => {
                    scheduler.set_time(now);
                    scheduler.prepare();
                    scheduler.take_guesses(guesses);
                    scheduler.run();
                    engine.check_ranks()?;
                }
            }
        }
        Ok(scheduler.load())
    }
}

impl Engine<'_> {
    /// Fails if a rank failed, since results computed after that are meaningless.
    ///
    /// # Errors
    /// A rank failed; results computed since then are invalid.
    pub(crate) fn check_ranks(&self) -> Result<(), Error> {
        Ok(self.device.mesh.check()?)
    }
}
