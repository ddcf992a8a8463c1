//! Low-rank terms of some rows alone: a batch has rows of several adapters over one base, and rows of none. The product with the weight
//! is one, of all rows; then each adapter's rows get its term, `scale (x A^T) B^T`, whose rank and scale are its own. A row's result is,
//! to the bit, what [`Ctx::lora`](crate::Ctx::lora) gives it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::Tensor;

use super::{LinearCut, Lora, LoraUse};
use crate::graph::Spread;
use crate::op::Exec;
use crate::params::{ParamId, Params};

/// The term of a projection.
pub struct RowTerm {
    lora: Lora,
    /// A [runs x rank, in].
    a: Tensor,
    /// B [columns of all runs, rank].
    b: Tensor,
    /// [1, columns of all runs].
    bias: Option<Tensor>,
}

/// An adapter's terms, by the weights that they add to.
pub type Terms = BTreeMap<ParamId, RowTerm>;

/// Rows of a batch that have an adapter's terms.
pub struct RowTerms {
    /// Which.
    pub rows: Range<usize>,
    /// The terms.
    pub terms: Rc<Terms>,
}

impl RowTerm {
    /// Of these weights, which are in memory.
    pub fn new(lora: LoraUse, params: &Params) -> RowTerm {
        let LoraUse { a, b, scales, runs, bias, .. } = lora;
        let [a, b] = [a, b].map(|id| params.tensor(id));
        let lora = Lora {
            name: "rows",
            cut: LinearCut::Whole,
            spread: Spread::NONE,
            scales,
            runs,
            has_bias: false,
            low_bias: None,
            drops: None,
            narrow: None,
        };
        RowTerm { lora, a, b, bias: bias.map(|id| params.tensor(id)) }
    }
}

impl RowTerms {
    /// All that the work on a machine without data depends on, as numbers.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        let of = |(id, term): (&ParamId, &RowTerm)| [u64::from(id.0), term.a.rows() as u64];
        [self.rows.start, self.rows.end]
            .into_iter()
            .map(|row| row as u64)
            .chain(self.terms.iter().flat_map(of))
    }
}

impl Exec<'_> {
    /// Adds to rows of the result of the product at hand the terms that they have.
    pub(crate) fn add_row_terms(&self, from: &Tensor, to: &Tensor) {
        self.each_term(|term, rows| {
            term.lora.add_term(self, &from.view_rows(rows.clone()), [&term.a, &term.b], &to.view_rows(rows));
        });
    }

    /// The same of the terms' biases, which come after the weight's.
    pub(crate) fn add_row_biases(&self, to: &Tensor) {
        self.each_term(|term, rows| {
            if let Some(bias) = &term.bias {
                term.lora.add_low_bias(self, bias, &to.view_rows(rows));
            }
        });
    }

    /// The terms of the weight at hand, each with its rows of the tile.
    fn each_term(&self, work: impl Fn(&RowTerm, Range<usize>)) {
        let (Some(weight), tile) = (self.weight, &self.rows) else { return };
        for RowTerms { rows, terms } in &self.batch.terms {
            let (first, end) = (rows.start.max(tile.start), rows.end.min(tile.end));
            if let Some(term) = terms.get(&weight).filter(|_| first < end) {
                work(term, first - tile.start..end - tile.start);
            }
        }
    }
}
