//! Clock of a machine without data: sums what a roofline predicts for each call.
//!
//! An operation takes the longer of its arithmetic and its memory traffic. Transfers wait in queues of their own, first
//! come first served, overlapped with the compute. A retire point before its transfer's end waits: that is the
//! predicted stall (of the disk and the host) or exposed communication (of the lines between ranks). The clock knows
//! only rates and sizes; the program decides which calls are made, and when.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lines::Lines;
use crate::tick::{Tick, TimeKind};
use crate::times::Times;
use crate::{DType, Rates, Ride};

/// Bound of a call in addition to memory traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    /// FLOPs of a matrix product of this type.
    MatMul(f64, DType),
    /// Attention, pairs of the mask counted once.
    Attention {
        flops: f64,
        /// Pairs of a query and a key row, once for each head.
        pairs: f64,
        /// The backward pass.
        backward: bool,
    },
    /// Functions of single elements or rows.
    Elementwise,
    /// Nothing.
    Memory,
}

/// Transfer route out of or into the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Memory to disk.
    DiskWrite,
    /// Disk to memory; waits behind writes.
    DiskRead,
    /// Machine to host.
    HostWrite,
    /// Host to machine; both directions of the link work simultaneously.
    HostRead,
}

/// Times by category, and when each queue becomes idle. One thread at a time adds to them.
#[derive(Debug)]
pub struct Clock {
    rates: Rates,
    times: [Seconds; TimeKind::ALL.len()],
    /// Order: disk, to the host, from the host; within the node out and in, over the network out and in.
    free_at: [Seconds; 7],
    /// State of messages, and the log of a summary that is being made.
    pub(crate) lines: Lines,
}

/// Bits of an f64. Only the thread that issues work writes, so plain loads and stores suffice.
#[derive(Debug, Default)]
struct Seconds(AtomicU64);

impl Seconds {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn add(&self, value: f64) {
        self.set(self.get() + value);
    }
}

impl Clock {
    /// Creates a clock at zero.
    pub fn new(rates: Rates) -> Clock {
        Clock { rates, times: Default::default(), free_at: Default::default(), lines: Lines::default() }
    }

    /// The rates that the clock counts with.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Seconds since the beginning.
    pub fn now(&self) -> f64 {
        self.times().elapsed_s()
    }

    /// Seconds since the beginning by category.
    pub fn times(&self) -> Times {
        Times::of(|part| self.times[part as usize].get())
    }

    pub(crate) fn add(&self, part: TimeKind, seconds: f64) {
        self.times[part as usize].add(seconds);
    }

    /// Adds repeated work without running it: `repeats` times `delta`, which has run at least once.
    pub fn add_times(&self, delta: &Times, repeats: usize) {
        let more = *delta * repeats as f64;
        let (now, passed) = (self.now(), more.elapsed_s());
        // One loop body may use both directions of a link; each direction is assumed to have half of the work.
        let [host, node, network] = [delta.host_s, delta.node_s, delta.network_s].map(|both| both / 2.0);
        let busy = [delta.disk_s, host, host, node, node, network, network];
        for (queue, busy_s) in self.free_at.iter().zip(busy).filter(|(_, busy_s)| *busy_s > 0.0) {
            let backlog = queue.get() - now;
            // The backlog of a queue slower than the compute grows; a faster one keeps what one body leaves.
            let left = (backlog + repeats as f64 * busy_s - passed).max(backlog.min(busy_s));
            queue.set(now + passed + left);
        }
        TimeKind::ALL.into_iter().for_each(|part| self.add(part, more.get(part)));
    }

    /// Runs a call: the longer of its arithmetic and its traffic of `bytes` through memory.
    pub(crate) fn run(&self, work: Work, bytes: u64) {
        self.run_times(work, bytes, 1);
    }

    /// Runs a number of identical calls.
    pub(crate) fn run_times(&self, work: Work, bytes: u64, times: usize) {
        let rates = &self.rates;
        let rate = match work {
            Work::Elementwise => rates.elementwise_bytes_per_s,
            _ => rates.memory_bytes_per_s,
        };
        let memory_s = bytes as f64 / rate + rates.call_s;
        let (part, work_s) = match work {
            Work::MatMul(flops, DType::Bf16 | DType::F16) => {
                (TimeKind::MatMul, flops / rates.matmul_bf16_flops_per_s)
            }
            Work::MatMul(flops, _) => (TimeKind::MatMul, flops / rates.matmul_f32_flops_per_s),
            Work::Attention { flops, pairs, backward } => {
                (TimeKind::Attention, rates.attention_s(flops, pairs, backward))
            }
            Work::Elementwise | Work::Memory => (TimeKind::Memory, 0.0),
        };
        self.spend(part, memory_s.max(work_s) * times as f64);
    }

    /// Adds the seconds of a call.
    pub(crate) fn spend(&self, part: TimeKind, seconds: f64) {
        self.add(part, seconds);
        self.lines.log(|| Tick::Spend(part, seconds));
    }

    /// Starts a transfer of bytes; returns when it will end.
    pub fn begin(&self, way: Way, bytes: u64) -> f64 {
        self.lines.spoil();
        let (queue, part, rate) = match way {
            Way::DiskWrite => (0, TimeKind::Disk, self.rates.disk_write_bytes_per_s),
            Way::DiskRead => (0, TimeKind::Disk, self.rates.disk_read_bytes_per_s),
            Way::HostWrite => (1, TimeKind::Host, self.rates.host_bytes_per_s),
            Way::HostRead => (2, TimeKind::Host, self.rates.host_bytes_per_s),
        };
        // An unmeasured rate costs nothing; the plan reports that.
        let busy_s = if rate > 0.0 { bytes as f64 / rate } else { 0.0 };
        self.add(part, busy_s);
        let end = self.free_at[queue].get().max(self.now()) + busy_s;
        self.free_at[queue].set(end);
        end
    }

    /// Moves a message over one of the rank's lines, out or in, no earlier than `from`; returns when the line becomes
    /// idle.
    pub fn ride(&self, ride: &Ride, inwards: bool, from: f64) -> f64 {
        let queue = &self.free_at[3 + 2 * usize::from(ride.network) + usize::from(inwards)];
        self.add(if ride.network { TimeKind::Network } else { TimeKind::Node }, ride.busy_s);
        let end = queue.get().max(from) + ride.busy_s;
        queue.set(end);
        end
    }

    /// The retire point of a message that arrives at `moment`.
    pub fn wait_for_rank(&self, moment: f64) {
        self.add(TimeKind::Exposed, (moment - self.now()).max(0.0));
    }

    /// The retire point of a transfer that ends at `moment`; returns the seconds waited.
    pub fn wait_until(&self, moment: f64) -> f64 {
        self.lines.spoil();
        let stall_s = (moment - self.now()).max(0.0);
        self.add(TimeKind::Stall, stall_s);
        stall_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Clock {
        Clock::new(Rates {
            matmul_bf16_flops_per_s: 1e9,
            matmul_f32_flops_per_s: 5e8,
            attention_forward_flops_per_s: 4e8,
            attention_backward_flops_per_s: 2e8,
            memory_bytes_per_s: 1e6,
            elementwise_bytes_per_s: 5e5,
            disk_write_bytes_per_s: 100.0,
            disk_read_bytes_per_s: 50.0,
            host_bytes_per_s: 10.0,
            ..Rates::default()
        })
    }

    #[test]
    fn a_call_takes_the_longer_of_arithmetic_and_traffic() {
        let clock = clock();
        clock.run(Work::MatMul(2e9, DType::Bf16), 1_000_000);
        clock.run(Work::MatMul(1e9, DType::F32), 3_000_000);
        let attention = |backward| Work::Attention { flops: 4e8, pairs: 0.0, backward };
        clock.run(attention(false), 0);
        clock.run(attention(true), 0);
        clock.run(Work::Memory, 300_000);
        clock.run(Work::Elementwise, 100_000);
        let times = Times { matmul_s: 5.0, attention_s: 3.0, memory_s: 0.5, ..Times::default() };
        assert_eq!((clock.times(), clock.now()), (times, 8.5));
    }

    #[test]
    fn transfers_queue_next_to_the_compute_and_retire_points_wait() {
        let clock = clock();
        let first = clock.begin(Way::DiskWrite, 200);
        let second = clock.begin(Way::DiskRead, 100);
        assert_eq!((first, second), (2.0, 4.0));
        clock.run(Work::Memory, 3_000_000);
        assert_eq!((clock.wait_until(first), clock.wait_until(second)), (0.0, 1.0));
        // The directions of the host link do not wait for each other.
        assert_eq!((clock.begin(Way::HostWrite, 10), clock.begin(Way::HostRead, 10)), (5.0, 5.0));
        assert_eq!(clock.times().elapsed_s(), 4.0);
    }

    #[test]
    fn lines_work_during_the_compute() {
        let clock = clock();
        let ride = |network, busy_s| Ride { network, busy_s, latency_s: 0.0 };
        // Directions and lines do not wait for each other; messages of one line do.
        assert_eq!(clock.ride(&ride(false, 2.0), false, 0.0), 2.0);
        assert_eq!(clock.ride(&ride(false, 1.0), false, 0.0), 3.0);
        assert_eq!(clock.ride(&ride(false, 1.0), true, 0.5), 1.5);
        assert_eq!(clock.ride(&ride(true, 5.0), true, 0.0), 5.0);
        clock.run(Work::Memory, 2_000_000);
        clock.wait_for_rank(1.5);
        clock.wait_for_rank(5.0);
        let times = clock.times();
        assert_eq!((times.node_s, times.network_s, times.exposed_s, clock.now()), (4.0, 5.0, 3.0, 5.0));
    }

    #[test]
    fn repeats_are_added_without_running() {
        let (once, often) = (clock(), clock());
        let body = |clock: &Clock| {
            clock.run(Work::Memory, 1_000_000);
            clock.begin(Way::DiskWrite, 50);
        };
        (0..5).for_each(|_| body(&often));
        body(&once);
        once.add_times(&once.times(), 4);
        assert_eq!(once.times(), often.times());
        assert_eq!(once.begin(Way::DiskWrite, 0), often.begin(Way::DiskWrite, 0));
    }
}
