//! Keys and values of latent attention (DeepSeek-V2, 2024, section 2.1): each head's own part of the key and its value
//! come from one projection; the rotated part of the key is shared by all heads. Heads are `[rotated | own]`; values
//! are padded with zeros to the size of a key, and trimmed after attention.

use std::ops::Range;

use fathom_tensor::{Category, Combine, Tensor};

use super::only;
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::ops::rope::RopeUse;
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentUse {
    /// Heads.
    pub heads: usize,
    /// Columns of a head's own part of the key.
    pub own: usize,
    /// Columns of the rotated part.
    pub rotated: usize,
    /// Columns of a value; at most as many as in a key.
    pub value: usize,
    /// Index of the batch's rotary table.
    pub table: usize,
    /// True if pairs of the rotation are adjacent columns.
    pub interleaved: bool,
}

impl LatentUse {
    /// Columns of a key, and of a padded value.
    pub fn head_dim(&self) -> usize {
        self.rotated + self.own
    }

    /// The rotation of a query's heads.
    pub fn rope(&self) -> RopeUse {
        RopeUse { table: self.table, head_dim: self.head_dim(), interleaved: self.interleaved }
    }

    /// The rotation of the shared part of keys.
    fn shared_rope(&self) -> RopeUse {
        RopeUse { head_dim: self.rotated, ..self.rope() }
    }

    /// Columns of a head: its own key and its value in the projection, the shared and its own part in the key.
    fn columns(&self, head: usize) -> [Range<usize>; 4] {
        let (from, to) = (head * (self.own + self.value), head * self.head_dim());
        [
            from..from + self.own,
            from + self.own..from + self.own + self.value,
            to..to + self.rotated,
            to + self.rotated..to + self.head_dim(),
        ]
    }
}

struct Latent {
    names: [&'static str; 2],
    how: LatentUse,
}

struct Trim {
    name: &'static str,
    heads: usize,
    cols: usize,
}

impl Ctx<'_> {
    /// Keys and values [t, heads x head_dim] from the projection `kv` [t, heads x (own + value)] and the shared part
    /// `rotated` [t, rotated], which is rotated here.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn latent(&mut self, names: [&'static str; 2], kv: Val, rotated: Val, how: LatentUse) -> [Val; 2] {
        let outs = self.apply(Latent { names, how }, &[kv, rotated], &[]);
        [outs[0], outs[1]]
    }

    /// The first `cols` columns of each head: x [t, heads x head_dim] to [t, heads x cols].
    ///
    /// # Panics
    /// If x has fewer, or the heads do not divide it.
    #[track_caller]
    pub fn trim(&mut self, name: &'static str, x: Val, heads: usize, cols: usize) -> Val {
        only(self.apply(Trim { name, heads, cols }, &[x], &[]))
    }
}

/// Columns of a view.
fn part(x: &Tensor, cols: Range<usize>) -> Tensor {
    x.view_cols(cols)
}

impl Op for Latent {
    fn name(&self) -> &'static str {
        "latent"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let LatentUse { heads, own, rotated, value, .. } = self.how;
        let fits = ins[0].cols == heads * (own + value) && ins[1].cols == rotated && value <= own + rotated;
        assert!(fits, "latent: kv [t, {}], shared [t, {}], {:?}", ins[0].cols, ins[1].cols, self.how);
        self.names.map(|name| Out::new(name, heads * self.how.head_dim(), ins[0].dtype)).to_vec()
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let (kv, [k, v]) = (&ins[0], [&outs[0], &outs[1]]);
        let machine = &x.device.machine;
        let turned = x.device.empty(k.rows(), self.how.rotated, k.dtype(), Category::Workspace);
        self.how.shared_rope().run(x, &ins[1], &turned, false, false);
        if self.how.value < self.how.head_dim() {
            machine.zero(v);
        }
        for head in 0..self.how.heads {
            let [own, value, shared, into] = self.how.columns(head);
            let end = shared.start + self.how.value;
            machine.copy(&part(kv, own), &part(k, into));
            machine.copy(&turned, &part(k, shared.clone()));
            machine.copy(&part(kv, value), &part(v, shared.start..end));
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dk), Some(dv)) = (&dy[0], &dy[1]) else { return };
        let (machine, LatentUse { heads, rotated, value, .. }) = (&x.device.machine, self.how);
        if let Some(dkv) = &dx[0] {
            for head in 0..heads {
                let [own, values, shared, from] = self.how.columns(head);
                machine.copy(&part(dk, from), &part(&dkv.tensor, own));
                machine.copy(&part(dv, shared.start..shared.start + value), &part(&dkv.tensor, values));
            }
        }
        if let Some(dshared) = &dx[1] {
            let scratch = |cols| x.device.empty(dk.rows(), cols, dk.dtype(), Category::Workspace);
            let (each, sum) = (scratch(heads * rotated), scratch(rotated));
            for head in 0..heads {
                let [.., shared, _] = self.how.columns(head);
                machine.copy(&part(dk, shared), &part(&each, head * rotated..(head + 1) * rotated));
            }
            machine.combine(&Combine { y: &each, weights: None, out: &sum });
            self.how.shared_rope().run(x, &sum, &dshared.tensor, true, false);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

impl Trim {
    /// Copies each head's columns out of `wide`, or into it.
    fn each(&self, wide: &Tensor, copy: impl Fn(Tensor, Range<usize>)) {
        let size = wide.cols() / self.heads;
        for head in 0..self.heads {
            let from = head * size..head * size + self.cols;
            copy(part(wide, from), head * self.cols..(head + 1) * self.cols);
        }
    }
}

impl Op for Trim {
    fn name(&self) -> &'static str {
        "trim"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let (cols, heads) = (ins[0].cols, self.heads);
        let fits = heads > 0 && cols.is_multiple_of(heads) && self.cols <= cols / heads;
        assert!(fits, "trim {}: {} of x [t, {cols}] with {heads} heads", self.name, self.cols);
        vec![Out::new(self.name, heads * self.cols, ins[0].dtype)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        self.each(&ins[0], |from, cols| x.device.machine.copy(&from, &part(&outs[0], cols)));
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            x.device.machine.zero(&dx.tensor);
            self.each(&dx.tensor, |into, cols| x.device.machine.copy(&part(dy, cols), &into));
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
