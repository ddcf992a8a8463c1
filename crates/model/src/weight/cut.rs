//! How ranks cut a weight.

/// What tensor parallel ranks compute with a weight that each of them has all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The rows between sub-layers, which they may share: then each has a term of its gradient.
    Rows,
    /// Rows or heads of its own.
    Own,
    /// The same as all others.
    Same,
}

/// How ranks cut a weight.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'a> {
    /// Not at all.
    Whole(Seen),
    /// Each of some groups of rows is parted: `[q, k, v]`, `[gate, up]`.
    Rows(&'a [usize]),
    /// The columns of a matrix that many are summed by.
    Cols,
    /// Some of this many experts, whose rows lie on top of each other.
    Experts(usize, Inside<'a>),
}

/// How ranks cut what they have of an expert.
#[derive(Clone, Copy, Debug)]
pub enum Inside<'a> {
    /// Not at all.
    Whole,
    /// Groups of its rows.
    Rows(&'a [usize]),
    /// Columns.
    Cols,
}
