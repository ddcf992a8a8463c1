//! A link with no peers: one rank of any mesh on the machine without data.
//!
//! If the machine's profile describes the interconnect, messages overlap with the compute: all ranks run the same
//! program at the same pace, so what this rank sends at some point others send to it at that point. Only stages of a
//! pipeline are at different points; the simulation of all stages times what they pass on, and here it takes no time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::link::{Among, Flight, Link, LinkError, Traffic, What};
use crate::lines::Arrival;
use crate::loan::LoanedTensor;
use crate::{Device, Fabric, Machine, Ride, Ring, Tensor};

/// Collectives that all members run together, as a ring would.
const TOGETHER: [&str; 6] =
    ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "gather parameters", "gather weights"];
/// Messages between pipeline stages.
const STAGES: [&str; 2] = ["forward", "backward"];

/// Counts the bytes that a rank would send and receive.
pub struct CountingLink {
    rank: usize,
    ranks: usize,
    traffic: Rc<Cell<Traffic>>,
    current: RefCell<Current>,
    /// Cache by name, number of members and first member, as groups recur.
    rings: RefCell<BTreeMap<(String, usize, usize), Ring>>,
}

/// The current collective.
#[derive(Default)]
struct Current {
    /// The ring, for a collective of all members together.
    ring: Option<Ring>,
    timed: bool,
}

impl CountingLink {
    /// One rank's end of a link between `ranks` ranks.
    pub fn new(rank: usize, ranks: usize) -> CountingLink {
        let (traffic, current, rings) = (Rc::default(), RefCell::default(), RefCell::default());
        CountingLink { rank, ranks, traffic, current, rings }
    }

    fn count(&self, sent: u64, received: u64) {
        let mut traffic = self.traffic.get();
        traffic.sent_bytes += sent;
        traffic.received_bytes += received;
        self.traffic.set(traffic);
    }

    /// Cost of a message to or from `peer`, on a machine that predicts times.
    fn ride(&self, fabric: &Fabric, peer: usize, bytes: u64) -> Ride {
        match self.current.borrow().ring {
            Some(ring) => ring.ride(bytes),
            None => fabric.message(self.rank, peer, bytes),
        }
    }

    /// When a message will be through, with the clock that times it.
    fn arrival(&self, device: &Device, peer: usize, bytes: u64, inwards: bool) -> Option<SimulatedArrival> {
        let clock = device.machine.clock()?;
        let fabric = device.machine.profile().fabric.as_ref().filter(|_| self.current.borrow().timed)?;
        let ride = self.ride(fabric, peer, bytes);
        let arrival = clock.message(&ride, inwards, fabric.copied)?;
        Some(SimulatedArrival { arrival, machine: device.machine.clone() })
    }
}

struct SimulatedArrival {
    arrival: Arrival,
    machine: Arc<dyn Machine>,
}

/// Until its retire point, a transfer keeps its tensor's storage alive and a receive blocks its use, as on every link.
struct SimulatedTransfer {
    timed: Option<SimulatedArrival>,
    _sent: Option<Tensor>,
    _coming: Option<LoanedTensor>,
}

impl Flight for SimulatedTransfer {
    fn wait(self: Box<Self>) {
        if let Some(SimulatedArrival { arrival, machine }) = &self.timed
            && let Some(clock) = machine.clock()
        {
            clock.arrive(arrival);
        }
    }
}

impl Link for CountingLink {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn among(&self, device: &Device, among: Among<'_>) {
        let Among { group, ranks, collective, sends } = among;
        if let Some(clock) = device.machine.clock() {
            clock.among(group, collective, sends);
        }
        let timed = !STAGES.contains(&collective);
        let fabric = device.machine.profile().fabric.filter(|_| TOGETHER.contains(&collective));
        let ring = fabric.map(|fabric| {
            let key = (group.to_string(), ranks.len(), ranks.first().copied().unwrap_or_default());
            *self.rings.borrow_mut().entry(key).or_insert_with(|| fabric.ring(ranks, self.rank))
        });
        *self.current.borrow_mut() = Current { ring, timed };
    }

    fn send(&self, device: &Device, to: usize, src: &Tensor, _: What) -> Box<dyn Flight> {
        self.count(src.bytes(), 0);
        let timed = self.arrival(device, to, src.bytes(), false);
        Box::new(SimulatedTransfer { timed, _sent: Some(src.clone()), _coming: None })
    }

    fn receive(&self, device: &Device, from: usize, dst: &Tensor, _: What) -> Box<dyn Flight> {
        self.count(0, dst.bytes());
        let timed = self.arrival(device, from, dst.bytes(), true);
        Box::new(SimulatedTransfer { timed, _sent: None, _coming: Some(LoanedTensor::new(dst.clone())) })
    }

    fn check(&self) -> Result<(), LinkError> {
        Ok(())
    }

    fn abort(&self, _: &str) {}

    fn traffic(&self) -> Traffic {
        self.traffic.get()
    }
}
