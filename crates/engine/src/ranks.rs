//! A service over ranks that have parts of one model ([`crate::parts`]). The first of them has the queue, the clock and those who ask.
//! Whatever time or others decide it says to the rest before a step: what came, what left, how late it is, and what its draft model
//! guessed, which no other rank has. They do the same with it in the same order, so all take the same steps and choose the same tokens,
//! and no other rank reads a clock or hears of a client.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use fathom_base::{Flow, Load};

use crate::engine::Engine;
use crate::error::Error;
use crate::schedule::{Capacity, Checked, Guess, Scheduler};
use crate::store::Beginnings;

/// What the first rank says to the others.
pub(crate) enum Word {
    /// A request comes, this late.
    Join(u64, Box<Checked>, Duration),
    /// A request leaves.
    Leave(u64),
    /// Beginnings are given up.
    Erase,
    /// An adapter of this name is read from this folder; how that went is answered.
    Read(String, PathBuf, Sender<Result<(), Error>>),
    /// What was read is adopted, or given up.
    Adopt(bool),
    /// An adapter's name goes.
    Unload(String),
    /// A step, this late, with what the draft model guessed.
    Step(Duration, Vec<Guess>),
}

impl Word {
    /// The same, for another rank.
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

/// The first rank's way to the others, which end when it is gone.
pub struct Leader {
    others: Vec<Sender<Word>>,
}

/// Another rank's side of it.
pub struct Follower {
    words: Receiver<Word>,
}

/// The ends of so many ranks besides the first.
pub fn ranks(others: usize) -> (Leader, Vec<Follower>) {
    let (others, followers) = (0..others).map(|_| channel()).unzip::<_, _, Vec<_>, Vec<_>>();
    (Leader { others }, followers.into_iter().map(|words| Follower { words }).collect())
}

impl Leader {
    /// Says something to all others. One that is gone has given the link the reason, which the next step finds.
    pub(crate) fn say(&self, mut word: Word) {
        self.others.iter().for_each(|other| _ = other.send(word.again()));
    }

    /// Loads an adapter on all ranks, or on none.
    ///
    /// # Errors
    /// What one of them says of it.
    pub(crate) fn load_adapter(&self, engine: &Engine<'_>, name: &str, folder: &Path) -> Result<(), Error> {
        let (reply, replies) = channel();
        self.say(Word::Read(name.into(), folder.into(), reply));
        let own = engine.read_adapter(name, folder);
        // One that is gone answers nothing.
        let others = replies.iter().collect::<Result<Vec<()>, Error>>();
        let read = own.and_then(|read| others.map(|_| read));
        self.say(Word::Adopt(read.is_ok()));
        read.map(|read| engine.adopt(read))
    }
}

impl Follower {
    /// Takes the first rank's steps until that ends, with beginnings on disk if that has them; how full this one is then.
    ///
    /// # Errors
    /// A rank failed.
    ///
    /// # Panics
    /// What a step panics with.
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
                    // The first rank waits for it, or is gone.
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
    /// # Errors
    /// A rank failed: what was computed since means nothing.
    pub(crate) fn check_ranks(&self) -> Result<(), Error> {
        Ok(self.device.mesh.check()?)
    }
}
