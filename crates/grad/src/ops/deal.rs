//! Exchanges between ranks that share documents (context parallel), for operations that read rows in order: each rank gets
//! all rows of some heads, and returns its results. DeepSpeed-Ulysses does the same for attention (Jacobs et al., 2023).

use std::ops::Range;

use fathom_tensor::Tensor;

use super::circle::{Columns, Return, assemble, deliver};
use super::only;
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, Val};

/// Columns of a value, as heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// All of them.
    pub columns: usize,
    /// Those of one head.
    pub width: usize,
}

impl HeadColumns {
    /// Number of columns that each of `ranks` ranks gets; with more ranks than heads, several get the same head.
    pub(crate) fn own(&self, ranks: usize) -> usize {
        Columns::Heads(self.width).of(self.columns, ranks, 0).len()
    }
}

/// Positions of parts with these numbers of columns, side by side.
pub(crate) fn ranges(columns: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |columns| {
        end += columns;
        end - columns..end
    };
    columns.into_iter().map(range).collect()
}

/// A value as an operation that reads rows in order has it: where ranks share documents, all rows of the stream and this
/// rank's heads ([`crate::Ctx::to_heads`]).
pub(super) fn in_order(x: &Exec<'_>, value: &Tensor) -> Tensor {
    let cp = x.batch.context.as_ref().map_or(1, crate::Context::dealt);
    if cp == 1 { value.clone() } else { value.reshape(value.rows() * cp, value.cols() / cp) }
}

/// This rank's columns of a weight with one for each head.
pub(super) fn own_heads(x: &Exec<'_>, weight: &Tensor) -> Tensor {
    match x.batch.context.as_ref().filter(|context| context.dealt() > 1) {
        Some(context) => weight.view_cols(Columns::Heads(1).of_member(weight.cols(), context.whole())),
        None => weight.clone(),
    }
}

struct ToHeads {
    names: Vec<&'static str>,
    /// The parts of each value.
    parts: Vec<Vec<HeadColumns>>,
    cp: usize,
}

struct ToTokens {
    name: &'static str,
    width: usize,
}

impl Ctx<'_> {
    /// Number of ranks that share the batch's documents and deal heads; one where they pass states.
    pub fn sharers(&self) -> usize {
        self.spread.cp
    }

    /// Gives each of the ranks that share documents all rows of some heads, in stream order. A value [t, c], of parts with
    /// heads, becomes one of [t, c']: all ranks' columns, c / ranks each, and a multiple where there are more ranks than
    /// heads. It holds [t x ranks, c' / ranks], as [`Ctx::conv`], [`Ctx::ssd`] and [`Ctx::delta`] read it. Must be outside
    /// rows regions. One rank keeps the values.
    ///
    /// # Panics
    /// If parts do not add up to a value's columns, or their heads do not divide.
    #[track_caller]
    pub fn to_heads<const N: usize>(
        &mut self,
        names: [&'static str; N],
        values: [Val; N],
        parts: [&[HeadColumns]; N],
    ) -> [Val; N] {
        let cp = self.sharers();
        if cp == 1 {
            return values;
        }
        let op = ToHeads { names: names.to_vec(), parts: parts.map(<[_]>::to_vec).to_vec(), cp };
        let outs = self.apply(op, &values, &[]);
        std::array::from_fn(|value| outs[value])
    }

    /// Returns each rank its rows of a result [t, c] that the ranks have computed by heads of `width` columns.
    ///
    /// # Panics
    /// If heads do not divide.
    #[track_caller]
    pub fn to_tokens(&mut self, name: &'static str, value: Val, width: usize) -> Val {
        if self.sharers() == 1 {
            return value;
        }
        let (heads, cp) = (self.desc(value).cols / width, self.sharers());
        assert!(heads.is_multiple_of(cp), "{name}: {heads} heads on {cp} ranks");
        only(self.apply(ToTokens { name, width }, &[value], &[]))
    }
}

#[track_caller]
fn whole<'a>(x: &Exec<'a>, op: &str) -> &'a crate::context::Circle {
    let batch: &'a crate::Batch = x.batch;
    let Some(context) = &batch.context else { panic!("{op}: no ranks share the batch") };
    context.whole()
}

impl ToHeads {
    /// Each part of the values, with its columns.
    fn each<'a>(&self, values: &[&'a Tensor]) -> Vec<(Tensor, Columns)> {
        let of = |(value, parts): (&&'a Tensor, &Vec<HeadColumns>)| -> Vec<(Tensor, Columns)> {
            let columns = ranges(parts.iter().map(|part| part.columns));
            let part = |(part, columns): (&HeadColumns, Range<usize>)| {
                (value.view_cols(columns), Columns::Heads(part.width))
            };
            parts.iter().zip(columns).map(part).collect()
        };
        values.iter().zip(&self.parts).flat_map(of).collect()
    }

    /// This rank's columns of each part, in the values that have all rows.
    fn dealt(&self, x: &Exec<'_>, value: usize, dealt: &Tensor) -> Vec<Tensor> {
        let dealt = in_order(x, dealt);
        let columns = ranges(self.parts[value].iter().map(|part| part.own(self.cp)));
        columns.into_iter().map(|columns| dealt.view_cols(columns)).collect()
    }
}

impl Op for ToHeads {
    fn name(&self) -> &'static str {
        "to heads"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let out = |((name, parts), desc): ((&&'static str, &Vec<HeadColumns>), &Desc)| {
            let fits = |part: &HeadColumns| {
                let heads = part.columns / part.width.max(1);
                let divides = heads.is_multiple_of(self.cp) || heads > 0 && self.cp.is_multiple_of(heads);
                heads * part.width == part.columns && divides
            };
            let columns: usize = parts.iter().map(|part| part.columns).sum();
            assert!(
                columns == desc.cols && parts.iter().all(fits),
                "to heads {name}: [t, {}] of {parts:?} on {} ranks",
                desc.cols,
                self.cp
            );
            let own: usize = parts.iter().map(|part| part.own(self.cp)).sum();
            Out::new(name, self.cp * own, desc.dtype)
        };
        self.names.iter().zip(&self.parts).zip(ins).map(out).collect()
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let parts = self.each(&ins.iter().collect::<Vec<_>>());
        let parts: Vec<(&Tensor, Columns)> = parts.iter().map(|(part, columns)| (part, *columns)).collect();
        let dealt = assemble(x, whole(x, self.name()), "all_to_all", &parts);
        let into = (0..outs.len()).flat_map(|value| self.dealt(x, value, &outs[value]));
        dealt.iter().zip(into).for_each(|(from, into)| x.device.machine.copy(from, &into));
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let mut all = Vec::new();
        for (value, (dy, dx)) in dy.iter().zip(dx).enumerate() {
            let (Some(dx), parts) = (dx, &self.parts[value]) else { continue };
            let columns = ranges(parts.iter().map(|part| part.columns));
            let targets = columns.into_iter().map(|columns| dx.tensor.view_cols(columns));
            match dy {
                Some(dy) => all.extend(
                    self.dealt(x, value, dy)
                        .into_iter()
                        .zip(targets)
                        .zip(parts)
                        .map(|((part, target), of)| (part, Columns::Heads(of.width), target)),
                ),
                None => targets.for_each(|target| x.device.machine.zero(&target)),
            }
        }
        let returns: Vec<Return<'_>> =
            all.iter().map(|(part, columns, target)| Return { part, columns: *columns, target }).collect();
        if !returns.is_empty() {
            deliver(x, whole(x, self.name()), "all_to_all", &returns);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

impl Op for ToTokens {
    fn name(&self) -> &'static str {
        "to tokens"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        super::like(self.name, ins[0])
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let (part, columns) = (&in_order(x, &ins[0]), Columns::Heads(self.width));
        deliver(x, whole(x, self.name()), "all_to_all", &[Return { part, columns, target: &outs[0] }]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        let parts = assemble(x, whole(x, self.name()), "all_to_all", &[(dy, Columns::Heads(self.width))]);
        x.device.machine.copy(&parts[0], &in_order(x, &dx.tensor));
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
