//! Splits of a weight among ranks.

/// Input, on tensor-parallel ranks, of a weight that each has whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSharing {
    /// The rows between sub-layers, which ranks may split: then each has a term of its gradient.
    Rows,
    /// Rows or heads of its own.
    Own,
    /// The same as on all other ranks.
    Same,
}

/// Split of a weight among ranks.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'a> {
    /// Not split.
    Whole(InputSharing),
    /// Each of some groups of rows is split: `[q, k, v]`, `[gate, up]`.
    Rows(&'a [usize]),
    /// Columns, along which products sum.
    Cols,
    /// Some of this many experts, whose rows are stacked.
    Experts(usize, Inside<'a>),
}

/// Split of an expert among ranks.
#[derive(Clone, Copy, Debug)]
pub enum Inside<'a> {
    /// Not split.
    Whole,
    /// Groups of its rows.
    Rows(&'a [usize]),
    /// Columns.
    Cols,
}
