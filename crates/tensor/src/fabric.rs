//! Model of the interconnect, as plain data: lines within a node and between nodes, and how long a message occupies
//! them.
//!
//! There are two rules, by collective. *Together* (all-gather, reduce-scatter, all-reduce, broadcast): whatever
//! messages the program sends, they are counted as a ring's, which is optimal in bytes (Patarasu and Yuan, 2009;
//! Thakur, Rabenseifner and Gropp, 2005): a rank moves (n - 1) / n of the whole. Within a node that is at the rate of
//! the node's line. Over several nodes, a group with g ranks on each runs g rings, each of which leaves the node over
//! another rank's adapter, so the rate is that of g adapters, and at most the node's line (NCCL's bus bandwidth;
//! nccl-tests, PERFORMANCE.md). The latency is that of a tree, one hop for each doubling. *Each to its own*
//! (all-to-all, rings of keys and values, stages): a message takes the node's line if both ends are on one node, else
//! the sender's adapter out and the receiver's in.

use serde::{Deserialize, Serialize};

/// A rank's line; each direction is independent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Bytes per second, in each direction.
    pub bytes_per_s: f64,
    /// Seconds from the end of sending to the end of receiving.
    pub latency_s: f64,
}

/// Lines between ranks, which are numbered node after node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fabric {
    /// Ranks per node.
    pub node_ranks: usize,
    /// Line between ranks of one node.
    pub node: Line,
    /// Line between nodes; every rank has its own adapter.
    pub network: Line,
    /// The receiver copies from the sender's memory when it waits, so no transfer overlaps with its work: ranks that
    /// are threads of one process.
    #[serde(default)]
    pub copied: bool,
}

/// Cost of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ride {
    /// True if the message leaves the node.
    pub network: bool,
    /// Seconds that the message occupies a line.
    pub busy_s: f64,
    /// Seconds from then to arrival.
    pub latency_s: f64,
}

impl Fabric {
    /// Fabric of threads of one process over this line.
    pub fn threads(line: Line) -> Fabric {
        Fabric { node_ranks: 1 << 16, node: line, network: line, copied: true }
    }

    /// Index of a rank's node.
    pub fn node_of(&self, rank: usize) -> usize {
        rank / self.node_ranks.max(1)
    }

    /// A point-to-point message between two ranks.
    pub fn message(&self, from: usize, to: usize, bytes: u64) -> Ride {
        let network = self.node_of(from) != self.node_of(to);
        let line = if network { self.network } else { self.node };
        Ride { network, busy_s: line.busy_s(bytes), latency_s: line.latency_s }
    }

    /// The line of `rank` in a ring of these members.
    pub fn ring(&self, members: &[usize], rank: usize) -> Ring {
        let here = members.iter().filter(|other| self.node_of(**other) == self.node_of(rank)).count();
        let network = here < members.len();
        let line = if network {
            let bytes_per_s = (here as f64 * self.network.bytes_per_s).min(self.node.bytes_per_s);
            Line { bytes_per_s, ..self.network }
        } else {
            self.node
        };
        let hops = members.len().next_power_of_two().trailing_zeros();
        Ring { network, line: Line { latency_s: f64::from(hops) * line.latency_s, ..line } }
    }

    /// One of the n - 1 messages between `rank` and the other members in a collective of the group.
    pub fn together(&self, members: &[usize], rank: usize, bytes: u64) -> Ride {
        self.ring(members, rank).ride(bytes)
    }
}

/// A rank's line in a group's collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ring {
    /// True if the ring leaves the node.
    pub network: bool,
    /// Rate, and the latency of a whole collective.
    pub line: Line,
}

impl Ring {
    /// One message of a collective.
    pub fn ride(&self, bytes: u64) -> Ride {
        Ride { network: self.network, busy_s: self.line.busy_s(bytes), latency_s: self.line.latency_s }
    }
}

impl Line {
    fn busy_s(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DGX: Fabric = Fabric {
        node_ranks: 8,
        node: Line { bytes_per_s: 400.0, latency_s: 1.0 },
        network: Line { bytes_per_s: 50.0, latency_s: 4.0 },
        copied: false,
    };

    #[test]
    fn a_group_takes_the_line_it_lies_on() {
        // (members, rank, rate, over the network, latency)
        let all: Vec<usize> = (0..16).collect();
        let cases: [(&[usize], usize, f64, bool, f64); 4] = [
            (&[0, 1, 2, 3], 1, 400.0, false, 2.0),
            // One rank per node: one adapter each.
            (&[3, 11, 19, 27], 11, 50.0, true, 8.0),
            // Two per node: two rings over two adapters.
            (&[0, 4, 8, 12], 8, 100.0, true, 8.0),
            // All eight adapters are as fast as the node's line.
            (&all, 5, 400.0, true, 16.0),
        ];
        for (members, rank, rate, network, latency_s) in cases {
            let expected = Ride { network, busy_s: 800.0 / rate, latency_s };
            assert_eq!(DGX.together(members, rank, 800), expected, "{members:?}");
        }
        assert_eq!(DGX.message(0, 7, 800), Ride { network: false, busy_s: 2.0, latency_s: 1.0 });
        assert_eq!(DGX.message(7, 8, 800), Ride { network: true, busy_s: 16.0, latency_s: 4.0 });
    }
}
