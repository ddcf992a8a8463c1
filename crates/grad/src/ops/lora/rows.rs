//! Adapters of some rows: a batch has rows of several adapters over one base, and rows without one. There is one
//! product with the weight, for all rows; then each adapter's terms are added to its rows, or its factors multiply
//! their columns, each with its own rank, scale, magnitudes or factors, and its own bias if it replaces the weight's. A
//! row's result equals, to the bit, that of [`Ctx::lora`](crate::Ctx::lora), [`Ctx::rescale`](crate::Ctx::rescale) and
//! [`Ctx::factors`](crate::Ctx::factors).
//!
//! Over tensor parallel ranks a term is sharded like its weight: for a sharded output it is added to a rank's own
//! columns, and if products are summed over the ranks it is a part of the sum.

use std::ops::Range;

use fathom_tensor::{Category, DType, Device, Tensor};

use super::Lora;
use crate::graph::Spread;
use crate::low_rank::{LinearCut, LoraUse, Runs};
use crate::op::Exec;
use crate::ops::rescale::inverse_lengths;
use crate::param_id::ParamId;
use crate::params::Params;
use crate::row_terms::{FactorTerm, LowTerm, RowTerm, RowTerms, TermKind};

/// Sharding of a projection, and the number of ranks.
pub type RowCut = (LinearCut, usize);

impl LowTerm {
    fn new(lora: LoraUse, (cut, ranks): RowCut, params: &Params) -> LowTerm {
        let LoraUse { a, b, scales, runs, bias, .. } = lora;
        let runs = if cut == LinearCut::Columns { runs.part(ranks) } else { runs };
        let [a, b] = [a, b].map(|id| params.tensor(id));
        LowTerm { scales, runs, a, b, bias: bias.map(|id| params.tensor(id)), lengths: None }
    }

    /// The operation that adds it.
    fn op(&self) -> Lora {
        Lora {
            name: "rows",
            cut: LinearCut::Whole,
            spread: Spread::NONE,
            scales: self.scales,
            runs: self.runs,
            has_bias: false,
            low_bias: None,
            drops: None,
            narrow: None,
        }
    }
}

/// f32 [1, columns of all runs]: the column factors that magnitudes yield for the directions of a low-rank term plus
/// `weight`, packed or not. If ranks have some columns of the weight each, all of them have to call this.
pub fn length_factors(
    device: &Device,
    (lora, lengths): (LoraUse, ParamId),
    weight: ParamId,
    cut: RowCut,
    params: &Params,
) -> Tensor {
    let low = LowTerm::new(lora, cut, params);
    let (weight, lengths) = (params.operand(weight), params.tensor(lengths));
    let of = (low.runs, low.scales, cut.0 == LinearCut::Rows && cut.1 > 1);
    let inverse = inverse_lengths(device, of, [&low.a, &low.b, &weight]);
    let factors = device.empty(1, lengths.cols(), DType::F32, Category::Params);
    device.machine.multiply(&inverse, &lengths, &factors);
    factors
}

impl RowTerm {
    /// A low-rank term with these weights, which are in memory.
    pub fn low(lora: LoraUse, cut: RowCut, params: &Params) -> RowTerm {
        TermKind::Low(LowTerm::new(lora, cut, params)).into()
    }

    /// A low-rank term with magnitudes [1, columns of all runs] of the directions of it plus `weight`, packed or not.
    /// Column factors are computed here and kept; if ranks have some columns of the weight each, all of them have to
    /// call this.
    pub fn rescaled(
        device: &Device,
        (lora, lengths): (LoraUse, ParamId),
        weight: ParamId,
        cut: RowCut,
        params: &Params,
    ) -> RowTerm {
        let kept = length_factors(device, (lora, lengths), weight, cut, params);
        let low = LowTerm::new(lora, cut, params);
        TermKind::Low(LowTerm { lengths: Some(kept), ..low }).into()
    }

    /// Factors [1, columns of all runs] of columns of the result, or of the input.
    pub fn factors(
        (factors, runs, input): (ParamId, Runs, bool),
        (cut, ranks): RowCut,
        params: &Params,
    ) -> RowTerm {
        let own = if input { LinearCut::Rows } else { LinearCut::Columns };
        let runs = if cut == own { runs.part(ranks) } else { runs };
        TermKind::Factors(FactorTerm { runs, factors: params.tensor(factors), input }).into()
    }

    /// Replaces the weight's bias by one [1, columns of the whole weight].
    pub fn with_bias(self, bias: ParamId, params: &Params) -> RowTerm {
        RowTerm { bias: Some(params.tensor(bias)), ..self }
    }
}

/// `rows` with the columns of each run multiplied by its factors.
fn multiply_columns(device: &Device, runs: Runs, factors: &Tensor, rows: &Tensor) {
    let mut first = 0;
    for (at, columns) in runs.iter() {
        let own = rows.view_cols(at..at + columns);
        device.machine.multiply(&own, &factors.view_cols(first..first + columns), &own);
        first += columns;
    }
}

impl Exec<'_> {
    /// The input of the current product: `from`, or a copy in which some rows are multiplied by factors.
    pub(crate) fn begin_rows(&self, from: &Tensor) -> Tensor {
        let mut copy = None;
        self.each_term(|term, rows| {
            let Some(TermKind::Factors(FactorTerm { runs, factors, input: true })) = &term.kind else {
                return;
            };
            let copy = copy.get_or_insert_with(|| {
                let copy = self.device.empty(from.rows(), from.cols(), from.dtype(), Category::Workspace);
                self.device.machine.copy(from, &copy);
                copy
            });
            multiply_columns(self.device, *runs, factors, &copy.view_rows(rows));
        });
        copy.unwrap_or_else(|| from.clone())
    }

    /// Adds the rows' low-rank terms to the result of the current product.
    pub(crate) fn add_row_terms(&self, from: &Tensor, to: &Tensor) {
        self.each_term(|term, rows| {
            if let Some(TermKind::Low(low @ LowTerm { a, b, .. })) = &term.kind {
                low.op().add_term(self, &from.view_rows(rows.clone()), [a, b], &to.view_rows(rows));
            }
        });
    }

    /// Multiplies columns of the whole result, before the weight's bias.
    pub(crate) fn rescale_rows(&self, to: &Tensor) {
        self.each_term(|term, rows| {
            if let Some(TermKind::Low(LowTerm { runs, lengths: Some(lengths), .. })) = &term.kind {
                multiply_columns(self.device, *runs, lengths, &to.view_rows(rows));
            }
        });
    }

    /// Adds the weight's bias to the whole result, or an adapter's own bias to its rows.
    pub(crate) fn add_biases(&self, to: &Tensor, bias: &Tensor) {
        let (mut own, mut from) = (Vec::new(), 0);
        self.each_term(|term, rows| own.extend(term.bias.clone().map(|bias| (rows, bias))));
        own.sort_by_key(|(rows, _)| rows.start);
        let add = |rows: Range<usize>, bias: &Tensor| {
            if !rows.is_empty() {
                self.device.machine.add_bias(&to.view_rows(rows), bias);
            }
        };
        for (rows, own) in own {
            add(from..rows.start, bias);
            from = rows.end;
            add(rows, &own);
        }
        add(from..to.rows(), bias);
    }

    /// Steps after the weight's bias: biases of terms, and factors of the result.
    pub(crate) fn finish_rows(&self, to: &Tensor) {
        self.each_term(|term, rows| match &term.kind {
            Some(TermKind::Low(low @ LowTerm { bias: Some(bias), .. })) => {
                low.op().add_low_bias(self, bias, &to.view_rows(rows));
            }
            Some(TermKind::Factors(FactorTerm { runs, factors, input: false })) => {
                multiply_columns(self.device, *runs, factors, &to.view_rows(rows));
            }
            _ => {}
        });
    }

    /// The terms of the current weight, each with its rows of the tile.
    fn each_term(&self, mut work: impl FnMut(&RowTerm, Range<usize>)) {
        let (Some(weight), tile) = (self.weight, &self.rows) else { return };
        for RowTerms { rows, terms } in &self.batch.terms {
            let (first, end) = (rows.start.max(tile.start), rows.end.min(tile.end));
            if let Some(term) = terms.get(&weight).filter(|_| first < end) {
                work(term, first - tile.start..end - tile.start);
            }
        }
    }
}
