//! Messages between ranks on the clock of a machine without data: when each was sent, when it arrives, and the log of
//! both while a summary is made ([`crate::Summary`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;
use crate::mesh::Mesh;
use crate::summary::Tick;
use crate::{Ride, Times};

/// The clock's state of messages. One thread at a time uses it.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    state: Mutex<State>,
    logging: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// For each group and collective, when its sends were last issued.
    given: Vec<(String, &'static str, f64)>,
    /// When the other side of the current collective issued what arrives.
    now: f64,
    log: Option<Log>,
    /// Number of logs so far.
    logs: u32,
    /// Arrival times of the messages of a summary that is being repeated.
    moments: Vec<[f64; 2]>,
}

/// Events since a summary was started.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub ticks: Vec<Tick>,
    /// Number of this log.
    number: u32,
    /// Messages started, and messages waited for.
    started: u32,
    waited: u32,
    /// True if something happened that a summary cannot repeat.
    spoiled: bool,
}

impl Log {
    /// True if the ticks describe all that happened.
    pub fn is_whole(&self) -> bool {
        !self.spoiled && self.started == self.waited
    }
}

/// A message in transit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// When the message is through, and how long its receiver then works, counted from then or from when it waits.
    moment: [f64; 2],
    /// Log in which the message was started, and its number there.
    logged: Option<(u32, u32)>,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a log.
    pub fn begin(&self) {
        let mut state = self.state();
        state.logs += 1;
        state.log = Some(Log { number: state.logs, ..Log::default() });
        self.logging.store(true, Ordering::Relaxed);
    }

    /// Ends the log and returns it.
    pub fn end(&self) -> Log {
        self.logging.store(false, Ordering::Relaxed);
        self.state().log.take().unwrap_or_default()
    }

    /// Records a tick if a log is being made.
    pub fn log(&self, tick: impl FnOnce() -> Tick) {
        if self.logging.load(Ordering::Relaxed)
            && let Some(log) = &mut self.state().log
        {
            log.ticks.push(tick());
        }
    }

    /// Marks the log as incomplete: something happened that ticks do not describe.
    pub fn spoil(&self) {
        if self.logging.load(Ordering::Relaxed)
            && let Some(log) = &mut self.state().log
        {
            log.spoiled = true;
        }
    }
}

impl State {
    /// Makes the following messages part of a group's collective, by index.
    fn give(&mut self, key: usize, keeps: bool, now: f64) {
        if !keeps {
            self.given[key].2 = now;
        }
        self.now = self.given[key].2;
    }
}

impl Clock {
    /// Makes the following messages part of this collective; `sends` is whether this rank sends now.
    pub(crate) fn among(&self, group: &str, collective: &'static str, sends: bool) {
        let (now, state) = (self.now(), &mut *self.lines.state());
        let known = state.given.iter().position(|(name, of, _)| *of == collective && name == group);
        let key = known.unwrap_or(state.given.len());
        if known.is_none() {
            state.given.push((group.to_string(), collective, now));
        }
        // A receive without a send counts from when this rank gave its own part, except in a broadcast, where it gives
        // nothing.
        let keeps = !sends && collective != "broadcast";
        state.give(key, keeps, now);
        if let Some(log) = &mut state.log {
            log.ticks.push(Tick::Give { key, keeps });
        }
    }

    /// A message sent at `given`, out or in: when it is through, and how long its receiver works from then or from when
    /// it waits; `None` if the sender takes no part in it.
    fn travel(&self, ride: &Ride, inwards: bool, copied: bool, given: f64) -> Option<[f64; 2]> {
        match (inwards, copied) {
            // The sender takes no part in it.
            (false, true) => None,
            (true, true) => Some([given + ride.latency_s, ride.busy_s]),
            (true, false) => Some([self.ride(ride, true, given) + ride.latency_s, 0.0]),
            (false, false) => Some([self.ride(ride, false, self.now()), 0.0]),
        }
    }

    /// A message of the current collective.
    pub(crate) fn message(&self, ride: &Ride, inwards: bool, copied: bool) -> Option<Arrival> {
        let mut state = self.lines.state();
        let moment = self.travel(ride, inwards, copied, state.now)?;
        let logged = state.log.as_mut().map(|log| {
            log.ticks.push(Tick::Message { ride: *ride, inwards, copied });
            log.started += 1;
            (log.number, log.started - 1)
        });
        Some(Arrival { moment, logged })
    }

    fn land(&self, [moment, copy_s]: [f64; 2]) {
        self.wait_for_rank(moment.max(self.now()) + copy_s);
    }

    /// The retire point of a message.
    pub(crate) fn arrive(&self, arrival: &Arrival) {
        self.land(arrival.moment);
        if let Some(log) = &mut self.lines.state().log {
            match arrival.logged {
                Some((own, number)) if own == log.number => {
                    log.ticks.push(Tick::Arrive(number));
                    log.waited += 1;
                }
                _ => log.spoiled = true,
            }
        }
    }

    /// Repeats what was recorded; counters of the mesh are kept in `mesh`.
    pub(crate) fn repeat(&self, ticks: &[Tick], mesh: &Mesh) {
        let state = &mut *self.lines.state();
        let mut moments = std::mem::take(&mut state.moments);
        moments.clear();
        let mut marks: Vec<(Times, Vec<Option<f64>>)> = Vec::new();
        let mut started = 0.0;
        for tick in ticks {
            match *tick {
                Tick::Spend(part, seconds) => self.add(part, seconds),
                Tick::Give { key, keeps } => state.give(key, keeps, self.now()),
                Tick::Message { ride, inwards, copied } => {
                    moments.extend(self.travel(&ride, inwards, copied, state.now));
                }
                Tick::Arrive(number) => self.land(moments[number as usize]),
                Tick::Wait => started = self.now(),
                Tick::Waited(key) => mesh.count_wait(key, self.now() - started),
                Tick::Mark => marks.push((self.times(), mesh.counted().1)),
                Tick::Repeat(times) => {
                    if let Some((passed, waits)) = marks.pop() {
                        mesh.repeat_waits(&waits, times as u64);
                        self.add_times(&(self.times() - passed), times);
                    }
                }
            }
        }
        state.moments = moments;
    }
}
