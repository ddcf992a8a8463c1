//! Events of the clock.

use crate::Ride;

/// Category of seconds: the fields of [`Times`](crate::Times).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TimeKind {
    MatMul,
    Attention,
    Memory,
    Disk,
    Host,
    Stall,
    Node,
    Network,
    Exposed,
}

impl TimeKind {
    pub(crate) const ALL: [TimeKind; 9] = [
        TimeKind::MatMul,
        TimeKind::Attention,
        TimeKind::Memory,
        TimeKind::Disk,
        TimeKind::Host,
        TimeKind::Stall,
        TimeKind::Node,
        TimeKind::Network,
        TimeKind::Exposed,
    ];
}

/// An event of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tick {
    /// A call.
    Spend(TimeKind, f64),
    /// The following messages belong to this collective, by its number in the clock.
    Give { key: usize, keeps: bool },
    /// A message of that collective.
    Message { ride: Ride, inwards: bool, copied: bool },
    /// The retire point of a message, by its number.
    Arrive(u32),
    /// Start of a retire point for several messages.
    Wait,
    /// End of the retire point; the number of the group's collective in the mesh.
    Waited(usize),
    /// Start of a repeated part.
    Mark,
    /// The part since the mark is counted this many more times.
    Repeat(usize),
}
