//! Statistics of the engine, for metrics, plans and traces.

use std::time::Instant;

use super::tag::Tag;

/// Totals since the engine was opened. All but `stall_s` are the same on a machine without data, whose clock predicts
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Bytes written, as stored, without padding to pages.
    pub written_bytes: u64,
    /// Bytes read, as stored, without padding to pages.
    pub read_bytes: u64,
    /// Number of writes.
    pub num_writes: u64,
    /// Number of reads.
    pub num_reads: u64,
    /// Seconds waited at retire points.
    pub stall_s: f64,
    /// Bytes of the file in use now, in whole pages.
    pub live_bytes: u64,
    /// Most bytes of the file in use at once.
    pub peak_live_bytes: u64,
    /// The smallest sufficient capacity: the highest end so far.
    pub peak_reserved_bytes: u64,
}

impl Stats {
    /// The sum of two engines' totals.
    pub fn plus(&self, other: &Stats) -> Stats {
        Stats {
            written_bytes: self.written_bytes + other.written_bytes,
            read_bytes: self.read_bytes + other.read_bytes,
            num_writes: self.num_writes + other.num_writes,
            num_reads: self.num_reads + other.num_reads,
            stall_s: self.stall_s + other.stall_s,
            live_bytes: self.live_bytes + other.live_bytes,
            peak_live_bytes: self.peak_live_bytes + other.peak_live_bytes,
            peak_reserved_bytes: self.peak_reserved_bytes + other.peak_reserved_bytes,
        }
    }
}

/// Kind of a recorded span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory to file.
    Write,
    /// File to memory.
    Read,
    /// The issuing thread waited at a retire point.
    Stall,
}

/// One transfer, or one wait, of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Kind of the span.
    pub kind: Kind,
    /// Identifies the value.
    pub tag: Tag,
    /// Bytes moved, as stored.
    pub bytes: u64,
    /// When it was issued.
    pub issued: Instant,
    /// When a worker began its first piece.
    pub began: Instant,
    /// When its last piece ended.
    pub ended: Instant,
}
