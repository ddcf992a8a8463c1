//! Messages on the clock: when they are sent, and when they arrive.

use crate::clock::Clock;
use crate::lines::Arrival;
use crate::mesh::Mesh;
use crate::tick::Tick;
use crate::{Ride, Times};

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
