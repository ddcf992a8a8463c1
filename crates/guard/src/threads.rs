//! Messages of conversations that have been judged and passed unchanged, so that a growing thread is not judged again
//! from its beginning. Bounded, and forgotten after a while.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use fathom_base::clock::Clock;

/// Messages that are remembered at most.
const MOST: usize = 64 << 10;
/// Seconds for which a message is remembered.
const EXPIRES_S: f64 = 3600.0;

/// Identity of a message: a hash of the configuration, the key, the thread and all messages up to it.
pub(crate) type MessageId = [u8; 32];

/// Remembered messages.
pub(crate) struct JudgedMessages {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    times: HashMap<MessageId, f64>,
    /// In the order in which they were added.
    order: VecDeque<(MessageId, f64)>,
}

impl JudgedMessages {
    pub fn new(clock: Clock) -> JudgedMessages {
        JudgedMessages { clock, state: Mutex::default() }
    }

    /// Returns whether a message passed a while ago.
    pub fn contains(&self, id: &MessageId) -> bool {
        let now_s = self.clock.now_s();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.times.get(id).is_some_and(|at| now_s - at < EXPIRES_S)
    }

    /// Remembers a message.
    pub fn insert(&self, id: MessageId) {
        let now_s = self.clock.now_s();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.times.insert(id, now_s);
        state.order.push_back((id, now_s));
        while state.order.len() > MOST || state.order.front().is_some_and(|(_, at)| now_s - at >= EXPIRES_S) {
            let Some((old, at)) = state.order.pop_front() else { break };
            if state.times.get(&old) == Some(&at) {
                state.times.remove(&old);
            }
        }
    }

    /// Number of remembered messages.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).times.len()
    }
}

/// The identity of a message behind others.
pub(crate) fn chained(before: &MessageId, direction: &str, message: &str) -> MessageId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(direction.as_bytes()).update(&[0]).update(message.as_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_forgotten_after_an_hour_and_beyond_the_most() {
        let now = std::sync::Arc::new(Mutex::new(0.0));
        let reads = now.clone();
        let seen = JudgedMessages::new(Clock::of(move || *reads.lock().unwrap()));
        let id = |n: usize| chained(&[0; 32], "input", &n.to_string());
        (0..MOST + 10).for_each(|n| seen.insert(id(n)));
        assert!(!seen.contains(&id(9)) && seen.contains(&id(10)) && seen.len() == MOST);
        *now.lock().unwrap() = EXPIRES_S + 1.0;
        assert!(!seen.contains(&id(MOST)));
        seen.insert(id(1));
        assert_eq!(seen.len(), 1);
    }
}
