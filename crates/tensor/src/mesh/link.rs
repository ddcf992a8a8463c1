//! What carries tensors between ranks.
//!
//! A rank is one thread with its machine and pool. The n-th message sent to a rank is the n-th that it begins to receive from
//! there, in whatever order they are waited for; each says what it is, so that ranks whose programs went apart get an error
//! instead of mixing up data.
//!
//! A wait has a deadline and ends when somebody gives up. After a failure nothing is moved any more and every wait ends at
//! once: a step goes on with values that mean nothing, and asks [`Link::check`] before its update.

use std::fmt;
use std::time::Duration;

use crate::{DType, Device, Tensor};

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// The operation that sends or waits.
    pub op: &'static str,
    /// Its layer, -1 outside the blocks.
    pub layer: i32,
    /// The collective.
    pub collective: &'static str,
    /// Number of elements.
    pub len: usize,
    /// Their type.
    pub dtype: DType,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What { op, layer, collective, len, dtype } = self;
        write!(f, "{collective} of {len} {dtype:?} in {op}")?;
        if *layer >= 0 { write!(f, " of layer {layer}") } else { Ok(()) }
    }
}

/// A rank that others wait for, and that itself does not wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Absent {
    /// Which.
    pub rank: usize,
    /// Seconds since it last sent, received or waited.
    pub silent_s: f64,
    /// What that was for; empty if there was nothing yet.
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

/// Why a link gave up. Every rank sees the first failure.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// Nothing came in time.
    #[error(
        "rank {rank} waited {seconds:.1} s for rank {peer} in {what}: it is gone, hangs, or is slower than mesh.timeout_s allows"
    )]
    TimedOut {
        /// Who waited.
        rank: usize,
        /// For whom.
        peer: usize,
        /// In what.
        what: String,
        /// How long.
        seconds: f64,
    },
    /// Nothing came in time, and the link knows who is not there.
    #[error(
        "rank {rank} waited {seconds:.1} s in {what} ({section}) and {}: gone, hanging, or slower than mesh.timeout_s allows",
        missing_in_words(missing)
    )]
    Missing {
        /// Who waited.
        rank: usize,
        /// In what.
        what: String,
        /// What the run was doing: its setup, a step.
        section: &'static str,
        /// How long.
        seconds: f64,
        /// Who is not there.
        missing: Vec<Absent>,
    },
    /// Two ranks are not at the same point of the same program.
    #[error("rank {rank} expects {expected} from rank {peer}, which sent {found}: their programs differ")]
    Mismatch {
        /// Who received.
        rank: usize,
        /// Who sent.
        peer: usize,
        /// What it expected.
        expected: String,
        /// What came.
        found: String,
    },
    /// A rank ended the run.
    #[error("rank {rank} ended the run: {reason}")]
    Aborted {
        /// Which.
        rank: usize,
        /// Why.
        reason: String,
    },
}

/// Bytes that went through a link, and seconds waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Sent by this rank.
    pub sent_bytes: u64,
    /// Received by it.
    pub received_bytes: u64,
    /// Seconds that its waits took.
    pub wait_s: f64,
}

/// The collective that messages are part of.
#[derive(Clone, Copy, Debug)]
pub struct Among<'a> {
    /// The group's name.
    pub group: &'a str,
    /// Its ranks, ascending.
    pub ranks: &'a [usize],
    /// The collective.
    pub collective: &'static str,
    /// This rank sends now.
    pub sends: bool,
}

/// A transfer under way. Dropped without waiting, it is given up and its tensor is free again.
pub trait Flight {
    /// The retire point: from here on the tensor may be used (of a receive: holds what was sent).
    fn wait(self: Box<Self>);
}

/// One rank's end of what connects all. It belongs to the rank's issuing thread.
pub trait Link {
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn ranks(&self) -> usize;
    /// Says which collective of which ranks the next sends and receives belong to, and whether there are sends: for links that
    /// predict times.
    fn among(&self, _: &Device, _: Among<'_>) {}
    /// Begins to send a tensor; until the flight is waited for it may be read and not written.
    fn send(&self, device: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight>;
    /// Begins to receive into a tensor without gaps; until the flight is waited for it may not be used.
    fn receive(&self, device: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight>;
    /// The first failure of any rank, if there was one.
    ///
    /// # Errors
    /// That failure.
    fn check(&self) -> Result<(), LinkError>;
    /// Ends the run for all ranks; the first reason counts.
    fn abort(&self, reason: &str);
    /// What went through so far.
    fn traffic(&self) -> Traffic;
    /// From here on this rank is in a section of the run that has a deadline of its own (`None`: the link's). A link that has one
    /// deadline for everything takes no notice.
    fn section(&self, _name: &'static str, _deadline: Option<Duration>) {}
    /// After a failure: waits for all ranks to come here and restarts, with nothing under way and no failure.
    ///
    /// # Errors
    /// The failure, if the link cannot do this or a rank does not come: then the run is over.
    fn rejoin(&self) -> Result<(), LinkError> {
        self.check()
    }
}
