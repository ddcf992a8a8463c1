//! Causal depthwise convolution over the rows of each document, as before a state-space layer's scan (Gu and Dao,
//! "Mamba", 2023), with or without a SiLU.

use std::ops::Range;

use fathom_tensor::{Conv as Call, ConvBackward, ConvOperands, DocumentRuns, Tensor};

use super::borders;
use super::circle::Columns;
use super::deal::{HeadColumns, in_order, ranges};
use super::{documents, like, only};
use crate::context::Pieces;
use crate::op::{Backward, Desc, Dx, Exec, Flops, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Batch, Ctx, ParamId, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Variant of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvUse<'a> {
    /// Whether the result is `x sigmoid(x)` of the sum.
    pub silu: bool,
    /// Name of its state in generation, [taps - 1, c]: the last rows of the input.
    pub state: &'static str,
    /// The columns as heads, as ranks that share documents have dealt them ([`Ctx::to_heads`]).
    pub parts: &'a [HeadColumns],
}

struct Conv {
    name: &'static str,
    silu: bool,
    state: &'static str,
    parts: Vec<HeadColumns>,
    cp: usize,
}

/// One call's columns of a value, and its rows of the weight.
struct Part {
    columns: Range<usize>,
    rows: Range<usize>,
}

impl Ctx<'_> {
    /// `act(bias + sum over k of weight[c, k] u[t - taps + 1 + k, c])` for u [t, c], weight [c, taps] and bias [1, c];
    /// rows before a document are zero. Rows are read in order, so this must be outside rows regions.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn conv(
        &mut self,
        name: &'static str,
        u: Val,
        weight: ParamId,
        bias: Option<ParamId>,
        how: ConvUse<'_>,
    ) -> Val {
        let params: Vec<ParamId> = [weight].into_iter().chain(bias).collect();
        let (ConvUse { silu, state, parts }, cp) = (how, self.sharers());
        only(self.apply(Conv { name, silu, state, parts: parts.to_vec(), cp }, &[u], &params))
    }
}

impl Conv {
    /// The calls of this rank: one, or one for each part of a weight of which it has some rows.
    fn calls(&self, x: &Exec<'_>, channels: usize) -> Vec<Part> {
        let Some(context) = x.batch.context.as_ref().filter(|context| context.dealt() > 1) else {
            return vec![Part { columns: 0..channels, rows: 0..channels }];
        };
        let columns = ranges(self.parts.iter().map(|part| part.own(self.cp)));
        let all = ranges(self.parts.iter().map(|part| part.columns));
        let call = |((part, columns), all): ((&HeadColumns, Range<usize>), Range<usize>)| {
            let own = Columns::Heads(part.width).of_member(part.columns, context.whole());
            Part { columns, rows: all.start + own.start..all.start + own.end }
        };
        self.parts.iter().zip(columns).zip(all).map(call).collect()
    }

    /// Operands of a call over rows of these documents.
    fn call<'a>(&self, u: &'a Tensor, params: &'a [Tensor], documents: &'a DocumentRuns) -> ConvOperands<'a> {
        ConvOperands { u, weight: &params[0], bias: params.get(1), silu: self.silu, documents }
    }

    /// Replaces the results of the first rows of pieces by those with the rows before them.
    fn mend(&self, x: &Exec<'_>, pieces: &Pieces, (u, out): (&Tensor, &Tensor), params: &[Tensor]) {
        let (seams, rows, results) =
            (&pieces.seams, borders::gather(x, pieces, u), borders::room(x, pieces, u));
        assert!(params[0].cols() <= seams.reach + 1, "conv {}: seams of {} rows", self.name, seams.reach);
        if !seams.own.is_empty() {
            let of = self.call(&rows, params, &seams.documents);
            x.device.machine.conv(&Call { of, states: &[], out: &results });
        }
        for seam in &seams.own {
            let from = results.view_rows(seam.at.clone());
            x.device.machine.copy(&from, &out.view_rows(seam.own.clone()));
        }
    }

    /// The gradients of rows of pieces. Those of the first rows' results, which depend on the rows before the piece, are
    /// held back, and passed through a call of their own with these.
    fn backward_of_pieces(&self, x: &Exec<'_>, pieces: &Pieces, params: &[Tensor], of: &ConvBackward<'_>) {
        let (machine, seams) = (&x.device.machine, &pieces.seams);
        let (rows, dy) = (borders::gather(x, pieces, of.of.u), borders::room(x, pieces, of.dy));
        let du = of.du.map(|du| borders::room(x, pieces, du));
        if !seams.own.is_empty() {
            machine.zero(&dy);
        }
        let each = |copy: &dyn Fn(&Tensor, &Tensor)| {
            for seam in &seams.own {
                copy(&of.dy.view_rows(seam.own.clone()), &dy.view_rows(seam.at.clone()));
            }
        };
        each(&|own, held| {
            machine.copy(own, held);
            machine.zero(own);
        });
        machine.conv_backward(of);
        each(&|own, held| machine.copy(held, own));
        if !seams.own.is_empty() {
            let first = self.call(&rows, params, &seams.documents);
            machine.conv_backward(&ConvBackward { of: first, dy: &dy, du: du.as_ref(), ..*of });
        }
        if let (Some(terms), Some(du)) = (&du, of.du) {
            borders::scatter(x, pieces, terms, du);
        }
    }

    /// The gradients that are wanted.
    fn backward(
        &self,
        x: &Exec<'_>,
        saved: &SavedValues,
        (dy, du): (&Tensor, Option<&Tensor>),
        dw: OptGrads<'_>,
    ) {
        let [dweight, dbias] = [0, 1].map(|index| dw.get(index).and_then(Option::as_ref));
        if let Some(pieces) = borders::pieces(x) {
            let of = self.call(saved.input(0), &saved.params, documents(x, "conv"));
            let call = ConvBackward { of, dy, du, dweight, dbias };
            return self.backward_of_pieces(x, pieces, &saved.params, &call);
        }
        let [u, dy] = [saved.input(0), dy].map(|value| in_order(x, value));
        let du = du.map(|du| in_order(x, du));
        for Part { columns, rows } in self.calls(x, saved.params[0].rows()) {
            let [u, dy] = [&u, &dy].map(|value| value.view_cols(columns.clone()));
            let du = du.as_ref().map(|du| du.view_cols(columns));
            let weight = saved.params[0].view_rows(rows.clone());
            let bias = saved.params.get(1).map(|bias| bias.view_cols(rows.clone()));
            let dweight = dweight.map(|dweight| dweight.view_rows(rows.clone()));
            let dbias = dbias.map(|dbias| dbias.view_cols(rows));
            let (silu, documents) = (self.silu, documents(x, "conv"));
            let of = ConvOperands { u: &u, weight: &weight, bias: bias.as_ref(), silu, documents };
            let (du, dweight, dbias) = (du.as_ref(), dweight.as_ref(), dbias.as_ref());
            x.device.machine.conv_backward(&ConvBackward { of, dy: &dy, du, dweight, dbias });
        }
    }
}

impl Op for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let ([cols, taps], name) = (params[0], self.name);
        let dealt = self.cp * self.parts.iter().map(|part| part.own(self.cp)).sum::<usize>();
        let fits = ins[0].cols == if self.cp == 1 { cols } else { dealt };
        let fits = fits && params[1..].iter().all(|bias| *bias == [1, cols]);
        assert!(fits, "conv {name}: u [t, {}], weights {params:?}", ins[0].cols);
        assert!((2..=8).contains(&taps), "conv {name}: {taps} taps; there can be 2 to 8");
        like(name, ins[0])
    }

    fn saves(&self, _: Want) -> Saves {
        Saves { ins: vec![0], outs: vec![] }
    }

    fn backward(&self) -> Backward {
        Backward { together: true, ..Backward::PLAIN }
    }

    fn flops(&self, rows: usize, ins: &[Desc], params: &[[usize; 2]], _: &Batch) -> Flops {
        let product = 2 * (rows * ins[0].cols * params[0][1]) as u64;
        Flops { forward: product, input: product, weight: product, extra: product }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let states = super::states(x, "conv", self.state);
        let [u, out] = [&ins[0], &outs[0]].map(|value| in_order(x, value));
        for Part { columns, rows } in self.calls(x, params[0].rows()) {
            let [u, out] = [&u, &out].map(|value| value.view_cols(columns.clone()));
            let weight = params[0].view_rows(rows.clone());
            let bias = params.get(1).map(|bias| bias.view_cols(rows));
            let (silu, documents) = (self.silu, documents(x, "conv"));
            let of = ConvOperands { u: &u, weight: &weight, bias: bias.as_ref(), silu, documents };
            x.device.machine.conv(&Call { of, states: &states, out: &out });
        }
        if let Some(pieces) = borders::pieces(x) {
            self.mend(x, pieces, (&u, &out), params);
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let Some(dy) = &dy[0] {
            let dw = std::mem::take(&mut x.dw);
            self.backward(x, saved, (dy, dx[0].as_ref().map(|dx| &dx.tensor)), &dw);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let Some(dy) = &dy[0] {
            self.backward(x, saved, (dy, None), dw);
        }
    }
}
