//! Effects of adapters on rows of a batch, as data. Operations apply them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::Tensor;

use crate::low_rank::{MOST_RUNS, Runs};
use crate::param_id::ParamId;

/// The effect of an adapter on a projection.
#[derive(Default)]
pub struct RowTerm {
    /// Its term or factors.
    pub(crate) kind: Option<TermKind>,
    /// [1, columns of the whole weight]: replaces the weight's bias.
    pub(crate) bias: Option<Tensor>,
}

impl From<TermKind> for RowTerm {
    fn from(kind: TermKind) -> RowTerm {
        RowTerm { kind: Some(kind), bias: None }
    }
}

/// Kind of an effect.
pub(crate) enum TermKind {
    Low(LowTerm),
    Factors(FactorTerm),
}

/// A low-rank term.
pub(crate) struct LowTerm {
    /// Factor of A and B together, for each run.
    pub scales: [f32; MOST_RUNS],
    /// The columns on this rank.
    pub runs: Runs,
    /// A [runs x rank, in].
    pub a: Tensor,
    /// B [columns of all runs, rank].
    pub b: Tensor,
    /// [1, columns of all runs].
    pub bias: Option<Tensor>,
    /// f32 [1, columns of all runs]: column factors applied before the weight's bias is added (DoRA).
    pub lengths: Option<Tensor>,
}

/// Factors of columns (IA3).
pub(crate) struct FactorTerm {
    pub runs: Runs,
    /// [1, columns of all runs].
    pub factors: Tensor,
    /// True if factors apply to the input of the product, not to the result.
    pub input: bool,
}

/// The effects of an adapter, by weight.
pub type Terms = BTreeMap<ParamId, RowTerm>;

/// Rows of a batch that have an adapter's terms.
pub struct RowTerms {
    /// The rows.
    pub rows: Range<usize>,
    /// The terms.
    pub terms: Rc<Terms>,
}

impl RowTerm {
    /// True if it has no effect.
    pub fn is_nothing(&self) -> bool {
        self.kind.is_none() && self.bias.is_none()
    }

    /// Everything on which the work on a machine without data depends.
    fn sizes(&self) -> [u64; 5] {
        let own = u64::from(self.bias.is_some());
        match &self.kind {
            Some(TermKind::Low(LowTerm { runs, a, lengths, bias, .. })) => {
                let kind = 1 + u64::from(lengths.is_some()) + 2 * u64::from(bias.is_some());
                [kind, own, a.rows() as u64, runs.len() as u64, runs.columns() as u64]
            }
            Some(TermKind::Factors(FactorTerm { runs, input, .. })) => {
                [5 + u64::from(*input), own, 0, runs.len() as u64, runs.columns() as u64]
            }
            None => [0, own, 0, 0, 0],
        }
    }
}

impl RowTerms {
    /// Everything on which the work on a machine without data depends, as numbers.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        let of = |(id, term): (&ParamId, &RowTerm)| [u64::from(id.0)].into_iter().chain(term.sizes());
        [self.rows.start, self.rows.end]
            .into_iter()
            .map(|row| row as u64)
            .chain(self.terms.iter().flat_map(of))
    }
}
