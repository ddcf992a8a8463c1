//! The circle of ranks that attention goes round, and the steps of each.

use std::ops::Range;

use fathom_tensor::Mask;
use fathom_tensor::mesh::Group;

use super::layout::ContextLayout;

/// Positions of some of a rank's rows among those of its circle.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Rows on the rank.
    pub own: Range<usize>,
    /// Rows in the circle's part.
    pub part: Range<usize>,
}

/// Ranks that combine their tokens in stream order.
pub(crate) struct Circle {
    /// The ranks.
    pub group: Group,
    /// Positions of rows, by member.
    pub runs: Vec<Vec<Run>>,
    /// Total number of tokens.
    pub tokens: usize,
}

impl Circle {
    pub(crate) fn new(group: Group, layout: &ContextLayout, members: &[usize]) -> Circle {
        let part = layout.part(members);
        let runs = |member: &usize| {
            let mut own = 0;
            let run = |range: &Range<usize>| {
                own += range.len();
                Run { own: own - range.len()..own, part: part.rows(range) }
            };
            layout.ranges(*member).iter().map(run).collect()
        };
        Circle { group, runs: members.iter().map(runs).collect(), tokens: part.len() }
    }
}

/// Circles of ranks that scatter heads among themselves, in a ring around which keys and values are sent.
pub(crate) struct Ring {
    /// This rank's circle.
    pub inner: Circle,
    /// The ranks with the same heads, by circle.
    pub outer: Group,
    /// By window and step: step s has the keys of the circle s before this one.
    pub steps: Vec<Vec<Step>>,
}

/// The keys that a circle's queries attend to in one step.
pub(crate) struct Step {
    pub mask: Mask,
    /// Own rows to send to the circle equally far ahead.
    pub give: Vec<Range<usize>>,
    /// Rows to receive, one range per message, as they lie in one buffer.
    pub take: Vec<Range<usize>>,
}

impl Step {
    /// Number of rows to receive.
    pub fn rows(&self) -> usize {
        self.take.last().map_or(0, |last| last.end)
    }

    /// Number of own rows to send.
    pub fn given(&self) -> usize {
        self.give.iter().map(Range::len).sum()
    }
}

/// The keys of all ranks in stream order, of this stream or of another.
pub(crate) struct GatheredKeys {
    /// All ranks.
    pub circle: Circle,
    /// Masks by window; for another stream, the only one.
    pub masks: Vec<Mask>,
}
