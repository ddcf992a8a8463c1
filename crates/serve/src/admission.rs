//! Admission control: permits for requests and for tokens, taken before any work and held by the answer's stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::Fault;

/// A count with a limit.
#[derive(Debug, Default)]
pub struct Room {
    used: AtomicU64,
    most: u64,
}

/// A share of a [`Room`], returned when dropped.
#[derive(Debug)]
pub struct Permit {
    room: Arc<Room>,
    count: u64,
}

impl Room {
    /// Room with this limit.
    pub fn new(most: u64) -> Arc<Room> {
        Arc::new(Room { used: AtomicU64::new(0), most })
    }

    /// Amount in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Takes an amount; `None` if it does not fit. If nothing is taken, an amount above the limit fits too, so that no
    /// request waits forever.
    pub fn take(self: &Arc<Room>, count: u64) -> Option<Permit> {
        let fits = |used: u64| {
            let after = used.checked_add(count)?;
            (after <= self.most || (used == 0 && self.most > 0)).then_some(after)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Permit { room: self.clone(), count })
    }
}

impl Permit {
    /// Returns a part of the amount; the rest stays taken.
    pub fn give_back(&mut self, count: u64) {
        let count = count.min(self.count);
        self.count -= count;
        self.room.used.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Admission limits of a model.
#[derive(Debug)]
pub struct Admission {
    /// Tokens of prompts and answers requested by open requests.
    pub tokens: Arc<Room>,
    /// Tokens of prompts that are not started.
    pub unread: Arc<Room>,
    /// Longest accepted wait for the first token, in seconds.
    pub first_token_s: f64,
}

/// Amounts held by a request at a model.
#[derive(Debug)]
pub struct Held {
    _tokens: Permit,
    unread: Permit,
}

impl Held {
    /// Records that a prompt of `tokens` tokens is being read.
    pub fn started(&mut self, tokens: usize) {
        self.unread.give_back(tokens as u64);
    }
}

impl Admission {
    /// Limits of tokens and of the wait for the first one.
    pub fn new(tokens: u64, first_token_s: f64) -> Admission {
        Admission { tokens: Room::new(tokens), unread: Room::new(u64::MAX), first_token_s }
    }

    /// Admits a request for this many tokens of prompt and answers, at a model that reads `per_s` tokens per second (0:
    /// unknown).
    ///
    /// # Errors
    /// 429: there is no room, or the wait would be too long.
    pub fn admit(&self, prompt: u64, answers: u64, per_s: f64) -> Result<Held, Fault> {
        let before = self.unread.used() as f64;
        let wait = if per_s > 0.0 { before / per_s } else { 0.0 };
        if wait > self.first_token_s {
            let what = format!(
                "the first token would take about {wait:.0} s, and {:.0} s are the most (serve.max_first_token_s)",
                self.first_token_s
            );
            return Err(Fault::busy(what, wait - self.first_token_s));
        }
        let asked = prompt.saturating_add(answers);
        let Some(tokens) = self.tokens.take(asked) else {
            let what = format!(
                "open requests ask for {} tokens, this one for {asked}, and {} are the most (serve.max_tokens)",
                self.tokens.used(),
                self.tokens.most()
            );
            return Err(Fault::busy(what, wait.max(1.0)));
        };
        let Some(unread) = self.unread.take(prompt) else {
            return Err(Fault::busy("too many tokens of prompts wait", wait.max(1.0)));
        };
        Ok(Held { _tokens: tokens, unread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back() {
        let room = Room::new(10);
        let first = room.take(8).unwrap();
        assert!(room.take(3).is_none());
        drop(first);
        assert_eq!(room.used(), 0);
        // If nothing else is taken, anything fits.
        let large = room.take(100).unwrap();
        assert!(room.take(1).is_none());
        drop(large);
        assert!(Room::new(0).take(1).is_none());
    }

    #[test]
    fn a_request_that_would_wait_too_long_is_refused_at_once() {
        let admission = Admission::new(10_000, 2.0);
        let mut first = admission.admit(300, 10, 100.0).unwrap();
        let fault = admission.admit(10, 10, 100.0).unwrap_err();
        assert_eq!((fault.status.as_u16(), fault.retry_after_s), (429, Some(1.0)));
        first.started(300);
        let second = admission.admit(10, 10, 100.0).unwrap();
        assert_eq!(admission.unread.used(), 10);
        drop((first, second));
        assert_eq!((admission.unread.used(), admission.tokens.used()), (0, 0));
        assert_eq!(admission.admit(10, 20_000, 0.0).map(|_| ()), Ok(()));
    }
}
