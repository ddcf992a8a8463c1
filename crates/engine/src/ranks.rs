//! A service over ranks that have parts of one model ([`crate::parts`]). The first of them has the queue, the clock and those who ask.
//! Whatever time or others decide it says to the rest before a step: what came, what left, and how late it is. They do the same with
//! it in the same order, so all take the same steps and choose the same tokens, and no other rank reads a clock or hears of a client.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use fathom_base::{Flow, Load};

use crate::engine::Engine;
use crate::error::Error;
use crate::schedule::{Capacity, Checked, Scheduler};

/// What the first rank says to the others.
pub(crate) enum Word {
    /// A request comes, this late.
    Join(u64, Box<Checked>, Duration),
    /// A request leaves.
    Leave(u64),
    /// Beginnings are given up.
    Erase,
    /// A step, this late.
    Step(Duration),
}

impl Word {
    /// The same, for another rank.
    fn again(&mut self) -> Word {
        match self {
            Word::Join(id, request, now) => Word::Join(*id, Box::new(request.again()), *now),
            Word::Leave(id) => Word::Leave(*id),
            Word::Erase => Word::Erase,
            Word::Step(now) => Word::Step(*now),
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
}

impl Follower {
    /// Takes the first rank's steps until that ends; how full this one is then.
    ///
    /// # Errors
    /// A rank failed; the engine has what is for one rank alone.
    ///
    /// # Panics
    /// What a step panics with.
    pub fn follow(&self, engine: &Engine<'_>, capacity: Capacity) -> Result<Load, Error> {
        let mut scheduler = Scheduler::new(engine, capacity).over_ranks()?;
        for word in &self.words {
            match word {
                Word::Join(id, request, now) => {
                    scheduler.set_time(now);
                    scheduler.queue(id, *request, Box::new(|_| Flow::Continue))?;
                }
                Word::Leave(id) => scheduler.cancel(id),
                Word::Erase => _ = scheduler.erase(None),
                Word::Step(now) => {
                    scheduler.set_time(now);
                    scheduler.step();
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
