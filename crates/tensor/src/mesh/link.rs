//! The transport of tensors between ranks.
//!
//! A rank is one thread with its machine and pool. The n-th message sent to a rank is matched with the n-th receive
//! that it starts from that sender, in whatever order they are waited for. Each message carries a description, so that
//! ranks whose programs have diverged get an error instead of mixing up data.
//!
//! A wait has a deadline and also ends when a rank gives up. After a failure nothing more is moved and every wait ends
//! at once: a step continues with meaningless values and calls [`Link::check`] before its update.

use std::fmt;
use std::time::Duration;

use crate::{DType, Device, Tensor};

/// Description of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// The operation that sends or waits.
    pub op: &'static str,
    /// The operation's layer, -1 outside the blocks.
    pub layer: i32,
    /// The collective.
    pub collective: &'static str,
    /// Number of elements.
    pub len: usize,
    /// Type of the elements.
    pub dtype: DType,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What { op, layer, collective, len, dtype } = self;
        write!(f, "{collective} of {len} {dtype:?} in {op}")?;
        if *layer >= 0 { write!(f, " of layer {layer}") } else { Ok(()) }
    }
}

/// A rank that others wait for and that is not waiting itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Absent {
    /// The rank.
    pub rank: usize,
    /// Seconds since it last sent, received or waited.
    pub silent_s: f64,
    /// Description of that operation; empty if there was none.
    pub last: String,
}

fn missing_in_words(missing: &[Absent]) -> String {
    let one = |Absent { rank, silent_s, last }: &Absent| {
        if last.is_empty() {
            format!("rank {rank} was never heard of")
        } else {
            format!("rank {rank} was last heard of {silent_s:.1} s ago in {last}")
        }
    };
    missing.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Failure of a link. Every rank sees the first one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages show what the fields are.
pub enum LinkError {
    /// Nothing arrived in time.
    #[error(
        "rank {rank} waited {seconds:.1} s for rank {peer} in {what}: it is gone, hangs, or is slower than mesh.timeout_s allows"
    )]
    TimedOut { rank: usize, peer: usize, what: String, seconds: f64 },
    /// Nothing arrived in time, and the link knows which ranks are missing.
    #[error(
        "rank {rank} waited {seconds:.1} s in {what} ({section}) and {}: gone, hanging, or slower than mesh.timeout_s allows",
        missing_in_words(missing)
    )]
    Missing {
        rank: usize,
        what: String,
        /// Section of the run: its setup, a step.
        section: &'static str,
        seconds: f64,
        missing: Vec<Absent>,
    },
    /// Two ranks are not at the same point of the same program.
    #[error("rank {rank} expects {expected} from rank {peer}, which sent {found}: their programs differ")]
    Mismatch { rank: usize, peer: usize, expected: String, found: String },
    /// A rank ended the run.
    #[error("rank {rank} ended the run: {reason}")]
    Aborted { rank: usize, reason: String },
}

/// Bytes transferred over a link, and seconds waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes sent by this rank.
    pub sent_bytes: u64,
    /// Bytes received by this rank.
    pub received_bytes: u64,
    /// Seconds spent waiting.
    pub wait_s: f64,
}

/// The collective that messages belong to.
#[derive(Clone, Copy, Debug)]
pub struct Among<'a> {
    /// The group's name.
    pub group: &'a str,
    /// Its ranks, ascending.
    pub ranks: &'a [usize],
    /// The collective.
    pub collective: &'static str,
    /// True if this rank sends now.
    pub sends: bool,
}

/// A transfer in flight. Dropping it without waiting abandons it and frees its tensor.
pub trait Flight {
    /// The retire point: from here on the tensor may be used; after a receive it holds the sent elements.
    fn wait(self: Box<Self>);
}

/// One rank's end of the interconnect. It belongs to the rank's issuing thread.
pub trait Link {
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn ranks(&self) -> usize;
    /// Sets the collective that the next sends and receives belong to, and whether there are sends, for links that
    /// predict times.
    fn among(&self, _: &Device, _: Among<'_>) {}
    /// Starts sending a tensor; until the flight is waited for, the tensor may be read but not written.
    fn send(&self, device: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight>;
    /// Starts receiving into a tensor without gaps; until the flight is waited for, the tensor may not be used.
    fn receive(&self, device: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight>;
    /// The first failure of any rank, if there was one.
    fn check(&self) -> Result<(), LinkError>;
    /// Ends the run for all ranks; the first reason counts.
    fn abort(&self, reason: &str);
    /// Totals so far.
    fn traffic(&self) -> Traffic;
    /// Enters a section of the run with a deadline of its own (`None`: the link's). Ignored by links that have one
    /// deadline for everything.
    fn section(&self, _name: &'static str, _deadline: Option<Duration>) {}
    /// After a failure: waits for all ranks to arrive here and restarts, with nothing in flight and no failure.
    ///
    /// # Errors
    /// The failure, if the link cannot restart or a rank does not arrive; the run is then over.
    fn rejoin(&self) -> Result<(), LinkError> {
        self.check()
    }
}
