//! The shape of a product of groups, by which its plans are found.

use super::handles::Candidate;
use super::recent::Recent;
use super::shape::Element;

/// Products of one kind, one per group, as cuBLASLt sees them: `D = op(first) op(second)`, all column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Groups {
    /// Number of groups.
    pub count: u32,
    /// Type of both operands.
    pub input: Element,
    /// Type of the result.
    pub output: Element,
    /// Transposes the first operand's bytes.
    pub first_trans: bool,
    /// Transposes the second operand's bytes.
    pub second_trans: bool,
    /// Approximate rows and columns of a result and summed size, as hints.
    pub likely: [u64; 3],
}

/// Plans by groups; `None` for those that the library refuses.
pub(super) type GroupedPlans = Recent<Groups, Option<Candidate>>;
