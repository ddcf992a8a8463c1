//! A queue of a request's events between the service's thread, which must not wait, and a reader.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{mem, thread};

use super::answer::{Event, Sink};

/// Interval at which a waiting caller is asked whether it still wants the result.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// Shortest time between two reads of all events.
const APART: Duration = Duration::from_millis(1);

/// Creates the two ends of a queue. Once `most` events wait, a further piece is appended to the last waiting piece of
/// the same answer, so that a slow reader gets larger pieces and the queue stays short.
pub fn relay(most: usize) -> (Sink, Relay) {
    let queue = Arc::new(Queue { state: Mutex::default(), added: Condvar::new() });
    let writer = Writer(queue.clone());
    let sink = Box::new(move |event| writer.push(event, most));
    (sink, Relay(queue))
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Number of readers that wait: a writer without one makes no system call.
    waiting: usize,
    /// Time of the last [`Relay::all_while`].
    read: Option<Instant>,
    /// Set once the sink is dropped.
    ended: bool,
}

struct Queue {
    state: Mutex<State>,
    added: Condvar,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer(Arc<Queue>);

impl Writer {
    fn push(&self, event: Event, most: usize) {
        let mut state = self.0.state();
        let full = state.events.len() >= most;
        if let Some(event) = if full { merged(state.events.back_mut(), event) } else { Some(event) } {
            state.events.push_back(event);
        }
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.0.added.notify_one();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.added.notify_all();
    }
}

/// Appends an event to the one before it if both are pieces of one answer; returns the event otherwise.
fn merged(last: Option<&mut Event>, event: Event) -> Option<Event> {
    match (last, event) {
        (
            Some(Event::Piece { answer, text, ids, logprobs }),
            Event::Piece { answer: next, text: more, ids: more_ids, logprobs: more_logprobs },
        ) if *answer == next => {
            text.push_str(&more);
            ids.extend(more_ids);
            logprobs.extend(more_logprobs);
            None
        }
        (_, event) => Some(event),
    }
}

/// The reader's end of a queue.
pub struct Relay(Arc<Queue>);

impl Relay {
    /// The next event; waits for it. `None` once all have been read and the request has ended, or once `wanted`, which
    /// is asked several times a second while there is none, has returned false.
    pub fn next_while(&self, wanted: &dyn Fn() -> bool) -> Option<Event> {
        self.waited(wanted)?.events.pop_front()
    }

    /// All events that have come; waits for the first. `None` as in [`Relay::next_while`]. Reads are at least [`APART`]
    /// apart, so that a fast model wakes its reader once for several tokens.
    pub fn all_while(&self, wanted: &dyn Fn() -> bool) -> Option<VecDeque<Event>> {
        let rest = self.0.state().read.map_or(Duration::ZERO, |read| APART.saturating_sub(read.elapsed()));
        thread::sleep(rest);
        let mut state = self.waited(wanted)?;
        state.read = Some(Instant::now());
        Some(mem::take(&mut state.events))
    }

    /// The queue, once it has an event.
    fn waited(&self, wanted: &dyn Fn() -> bool) -> Option<MutexGuard<'_, State>> {
        let mut state = self.0.state();
        while state.events.is_empty() {
            if state.ended {
                return None;
            }
            state.waiting += 1;
            let waited = self.0.added.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            state.waiting -= 1;
            if waited.1.timed_out() && state.events.is_empty() && !wanted() {
                return None;
            }
        }
        Some(state)
    }
}

impl Iterator for Relay {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_while(&|| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::Stop;

    fn piece(answer: usize, text: &str) -> Event {
        Event::Piece { answer, text: text.into(), ids: vec![text.len() as u32], logprobs: Vec::new() }
    }

    #[test]
    fn a_slow_reader_gets_larger_pieces_and_loses_nothing() {
        let (mut sink, relay) = relay(2);
        for event in [piece(0, "a"), piece(0, "bc"), piece(0, "def"), piece(1, "x"), piece(1, "yz")] {
            sink(event);
        }
        sink(Event::Ended { answer: 0, stop: Stop::Length });
        drop(sink);
        let read: Vec<String> = relay
            .map(|event| match event {
                Event::Piece { answer, text, ids, .. } => format!("{answer}{text}{ids:?}"),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(read, ["0a[1]", "0bcdef[2, 3]", "1xyz[1, 2]", "Ended { answer: 0, stop: Length }"]);
    }

    #[test]
    fn a_reader_waits_until_the_request_ends_or_is_not_wanted() {
        let (mut sink, relay) = relay(2);
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            sink(piece(0, "late"));
        });
        assert!(relay.next_while(&|| true).is_some());
        writer.join().unwrap();
        assert!(relay.next_while(&|| true).is_none());
        let (_sink, open) = super::relay(2);
        assert!(open.next_while(&|| false).is_none());
    }

    #[test]
    fn events_that_have_come_are_read_at_once() {
        let (mut sink, relay) = relay(8);
        for event in [piece(0, "a"), piece(0, "bc"), piece(1, "x")] {
            sink(event);
        }
        assert_eq!(relay.all_while(&|| false).map(|events| events.len()), Some(3));
        sink(piece(0, "d"));
        let began = Instant::now();
        assert_eq!(relay.all_while(&|| false).map(|events| events.len()), Some(1));
        assert!(began.elapsed() > APART / 2);
        drop(sink);
        assert!(relay.all_while(&|| true).is_none());
    }
}
