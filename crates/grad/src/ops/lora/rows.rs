//! Adapters of some rows: a batch has rows of several adapters over one base, and rows without one. There is one
//! product with the weight, for all rows; then each adapter's terms are added to its rows, or its factors multiply
//! their columns, each with its own rank, scale, magnitudes or factors, and its own bias if it replaces the weight's. A
//! row's result equals, to the bit, that of [`Ctx::lora`](crate::Ctx::lora), [`Ctx::rescale`](crate::Ctx::rescale) and
//! [`Ctx::factors`](crate::Ctx::factors).
//!
//! Over tensor parallel ranks a term is sharded like its weight: for a sharded output it is added to a rank's own
//! columns, and if products are summed over the ranks it is a part of the sum.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::{Category, DType, Device, Tensor};

use super::{LinearCut, Lora, LoraUse, Runs};
use crate::graph::Spread;
use crate::op::Exec;
use crate::ops::rescale::inverse_lengths;
use crate::param_id::ParamId;
use crate::params::Params;

/// The effect of an adapter on a projection.
#[derive(Default)]
pub struct RowTerm {
    /// Its term or factors.
    kind: Option<Kind>,
    /// [1, columns of the whole weight]: replaces the weight's bias.
    bias: Option<Tensor>,
}

impl From<Kind> for RowTerm {
    fn from(kind: Kind) -> RowTerm {
        RowTerm { kind: Some(kind), bias: None }
    }
}

enum Kind {
    Low(Low),
    Factors(Factors),
}

/// A low-rank term.
struct Low {
    lora: Box<Lora>,
    /// A [runs x rank, in].
    a: Tensor,
    /// B [columns of all runs, rank].
    b: Tensor,
    /// [1, columns of all runs].
    bias: Option<Tensor>,
    /// f32 [1, columns of all runs]: column factors applied before the weight's bias is added (DoRA).
    lengths: Option<Tensor>,
}

/// Factors of columns (IA3).
struct Factors {
    runs: Runs,
    /// [1, columns of all runs].
    factors: Tensor,
    /// True if factors apply to the input of the product, not to the result.
    input: bool,
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

/// Sharding of a projection, and the number of ranks.
pub type RowCut = (LinearCut, usize);

impl Low {
    fn new(lora: LoraUse, (cut, ranks): RowCut, params: &Params) -> Low {
        let LoraUse { a, b, scales, runs, bias, .. } = lora;
        let [a, b] = [a, b].map(|id| params.tensor(id));
        let lora = Lora {
            name: "rows",
            cut: LinearCut::Whole,
            spread: Spread::NONE,
            scales,
            runs: if cut == LinearCut::Columns { runs.part(ranks) } else { runs },
            has_bias: false,
            low_bias: None,
            drops: None,
            narrow: None,
        };
        Low { lora: Box::new(lora), a, b, bias: bias.map(|id| params.tensor(id)), lengths: None }
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
    let low = Low::new(lora, cut, params);
    let (weight, lengths) = (params.operand(weight), params.tensor(lengths));
    let of = (low.lora.runs, low.lora.scales, cut.0 == LinearCut::Rows && cut.1 > 1);
    let inverse = inverse_lengths(device, of, [&low.a, &low.b, &weight]);
    let factors = device.empty(1, lengths.cols(), DType::F32, Category::Params);
    device.machine.multiply(&inverse, &lengths, &factors);
    factors
}

impl RowTerm {
    /// A low-rank term with these weights, which are in memory.
    pub fn low(lora: LoraUse, cut: RowCut, params: &Params) -> RowTerm {
        Kind::Low(Low::new(lora, cut, params)).into()
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
        let low = Low::new(lora, cut, params);
        Kind::Low(Low { lengths: Some(kept), ..low }).into()
    }

    /// Factors [1, columns of all runs] of columns of the result, or of the input.
    pub fn factors(
        (factors, runs, input): (ParamId, Runs, bool),
        (cut, ranks): RowCut,
        params: &Params,
    ) -> RowTerm {
        let own = if input { LinearCut::Rows } else { LinearCut::Columns };
        let runs = if cut == own { runs.part(ranks) } else { runs };
        Kind::Factors(Factors { runs, factors: params.tensor(factors), input }).into()
    }

    /// Replaces the weight's bias by one [1, columns of the whole weight].
    pub fn with_bias(self, bias: ParamId, params: &Params) -> RowTerm {
        RowTerm { bias: Some(params.tensor(bias)), ..self }
    }

    /// True if it has no effect.
    pub fn is_nothing(&self) -> bool {
        self.kind.is_none() && self.bias.is_none()
    }

    /// Everything on which the work on a machine without data depends.
    fn sizes(&self) -> [u64; 5] {
        let own = u64::from(self.bias.is_some());
        match &self.kind {
            Some(Kind::Low(Low { lora, a, lengths, bias, .. })) => {
                let kind = 1 + u64::from(lengths.is_some()) + 2 * u64::from(bias.is_some());
                [kind, own, a.rows() as u64, lora.runs.len() as u64, lora.runs.columns() as u64]
            }
            Some(Kind::Factors(Factors { runs, input, .. })) => {
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
            let Some(Kind::Factors(Factors { runs, factors, input: true })) = &term.kind else { return };
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
            if let Some(Kind::Low(Low { lora, a, b, .. })) = &term.kind {
                lora.add_term(self, &from.view_rows(rows.clone()), [a, b], &to.view_rows(rows));
            }
        });
    }

    /// Multiplies columns of the whole result, before the weight's bias.
    pub(crate) fn rescale_rows(&self, to: &Tensor) {
        self.each_term(|term, rows| {
            if let Some(Kind::Low(Low { lora, lengths: Some(lengths), .. })) = &term.kind {
                multiply_columns(self.device, lora.runs, lengths, &to.view_rows(rows));
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
            Some(Kind::Low(Low { lora, bias: Some(bias), .. })) => {
                lora.add_low_bias(self, bias, &to.view_rows(rows));
            }
            Some(Kind::Factors(Factors { runs, factors, input: false })) => {
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
