//! The sum of losses that a head minimises, tile by tile.

use std::ops::Range;

use fathom_tensor::choice::LeaveOut;
use fathom_tensor::{Category, DType, MatMul, Tensor};

use super::{Head, Labels, LossTerm, Tile};
use crate::grads::Grads;
use crate::scope::Scope;
use crate::tiles;

impl Head {
    /// The losses of x [t, d] that terms want, without gradients. Labels and losses are in [`Head::order`].
    pub fn losses(&self, scope: &Scope<'_>, x: &Tensor, labels: &Labels<'_>, terms: &[LossTerm<'_>]) {
        let vocab = scope.params.shape(self.weight)[0];
        let share = scope.spread().share();
        let _weights = self.weights(scope);
        let inner = Head::tile_rows(scope.device.machine.as_ref(), vocab);
        // With shared rows, the order of tokens is that of the gradients' tiles.
        let outer = if share > 1 {
            Head::gradient_rows(scope.device.machine.as_ref(), vocab, x.dtype())
        } else {
            inner
        };
        for rows in tiles::all(x.rows(), (outer / share).max(1)) {
            let x = self.collect(scope, &x.view_rows(rows.clone()));
            let taught_by = labels.teacher.and_then(|teacher| teacher.collect(rows.clone()));
            for tile in tiles::all(x.rows(), inner) {
                let tokens = rows.start * share + tile.start..rows.start * share + tile.end;
                let logits = &self.project(scope, &x.view_rows(tile.clone()));
                let taught_by = taught_by.as_ref().map(|x| x.view_rows(tile));
                let measures = labels.measures.as_ref();
                let mut tile = Tile { head: self, scope, logits, labels, tokens, taught_by, measures };
                self.leave_out(&tile);
                for term in terms {
                    let losses = term.losses.as_ref().map(|to| to.view_cols(tile.tokens.clone()));
                    losses.iter().for_each(|losses| term.loss.losses(&tile, losses));
                    tile.measures = None;
                }
            }
        }
    }

    /// The gradient of the sum of all terms: adds to the head's own and returns that of x; and in the same pass the losses that
    /// terms want, as [`Head::losses`]. The forward pass with this side effect is never replayed.
    pub fn loss(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        labels: &Labels<'_>,
        terms: &[LossTerm<'_>],
        grads: &mut Grads,
    ) -> Tensor {
        let device = scope.device;
        let (_weights, _of_teacher) = (self.weights(scope), labels.teacher.map(|teacher| teacher.weights()));
        let weight = &scope.params.tensor(self.weight);
        // The segment before the head finishes the head's gradient with its own.
        grads.enter(device, &self.ids().collect::<Vec<_>>());
        device.pool.enter("head", -1);
        let dx = device.empty(x.rows(), x.cols(), x.dtype(), Category::Activations);
        let share = scope.spread().share();
        let rows =
            (Head::gradient_rows(scope.device.machine.as_ref(), weight.rows(), x.dtype()) / share).max(1);
        let mut received = grads.receive(device, self.weight, true);
        let mut of_term = self.receive_term(scope, grads);
        let of_bias = self.bias.and_then(|bias| grads.receive(device, bias, false));
        tiles::each(device, scope.counters, x.rows(), rows, |rows| {
            let tokens = rows.start * share..rows.end * share;
            let x = self.collect(scope, &x.view_rows(rows.clone()));
            let taught_by = labels.teacher.and_then(|teacher| teacher.collect(rows.clone()));
            let dlogits = self.dlogits(scope, (&x, taught_by.as_ref()), (labels, tokens), terms);
            let flops = 2 * (x.len() * weight.rows()) as u64;
            self.input_gradient(scope, &dlogits, weight, &dx.view_rows(rows));
            scope.counters.add(flops, flops);
            if let Some((c, adds)) = &mut received {
                let accumulate = std::mem::replace(adds, true);
                self.matmul(
                    scope,
                    MatMul { a: &dlogits, a_trans: true, b: &x, b_trans: false, c, accumulate },
                );
                scope.counters.add(flops, flops);
            }
            if let Some(of_term) = &mut of_term {
                of_term.add(self, scope, &dlogits, &x);
            }
            if let Some((dbias, _)) = &of_bias {
                device.machine.bias_backward(&dlogits, dbias);
            }
        });
        dx
    }

    /// Gradients of the logits of the tokens of x, which are `rows` of the labels, stored like x, tile by tile; f32
    /// ones replace the logits.
    fn dlogits(
        &self,
        scope: &Scope<'_>,
        (x, taught_by): (&Tensor, Option<&Tensor>),
        (labels, rows): (&Labels<'_>, Range<usize>),
        terms: &[LossTerm<'_>],
    ) -> Tensor {
        // The gradient replaces the logits of a tile, or goes to the caller's buffer.
        let tile_gradient = |logits: &Tensor, tile: Range<usize>, to: &Tensor| {
            let tokens = rows.start + tile.start..rows.start + tile.end;
            let taught_by = taught_by.map(|x| x.view_rows(tile));
            let measures = labels.measures.as_ref();
            let tile = Tile { head: self, scope, logits, labels, tokens, taught_by, measures };
            self.leave_out(&tile);
            add_up(tile, terms, to);
        };
        let vocab = scope.params.shape(self.weight)[0];
        let device = scope.device;
        if x.dtype() == DType::F32 {
            let logits = self.project(scope, x);
            tile_gradient(&logits, 0..rows.len(), &logits);
            return logits;
        }
        device.pool.enter("head", -1);
        let dlogits = device.empty(rows.len(), vocab, x.dtype(), Category::Activations);
        let tile_rows = Head::tile_rows(scope.device.machine.as_ref(), vocab);
        tiles::each(device, scope.counters, rows.len(), tile_rows, |tile| {
            let logits = self.project(scope, &x.view_rows(tile.clone()));
            tile_gradient(&logits, tile.clone(), &dlogits.view_rows(tile));
        });
        dlogits
    }

    /// Excludes the tokens from which a tile's labels were not sampled.
    fn leave_out(&self, tile: &Tile<'_>) {
        let Some(kept) = &tile.labels.kept else { return };
        let kept = &kept.view_rows(tile.tokens.clone());
        let op = LeaveOut { logits: tile.logits, kept, first: self.first };
        tile.scope.counters.span("head", " loss", -1, || tile.scope.device.machine.leave_out(&op));
    }
}

/// The gradient of the sum of all terms of a tile. That of the first takes the logits' place, so the others come before it; of those at
/// most two are in memory.
fn add_up(tile: Tile<'_>, terms: &[LossTerm<'_>], to: &Tensor) {
    let (scope, machine) = (tile.scope, &tile.scope.device.machine);
    let [first, others @ ..] = terms else { panic!("head: a gradient of no loss") };
    let rest = Tile { measures: None, ..tile.clone() };
    let add = |sum: &Tensor, more: &Tensor| {
        let common = &sum.view_cols(0..more.cols());
        scope.counters.span("head", " loss", -1, || machine.add(common, more, common));
    };
    let of =
        |term: &LossTerm<'_>, tile: &Tile<'_>, to| term.loss.gradient(tile, &term.view(&tile.tokens), to);
    let others = others.iter().map(|term| of(term, &rest, None)).reduce(|a, b| {
        let (wide, narrow) = if a.cols() < b.cols() { (b, a) } else { (a, b) };
        add(&wide, &narrow);
        wide
    });
    let Some(others) = others else {
        of(first, &tile, Some(to));
        return;
    };
    of(first, &tile, Some(tile.logits));
    add(tile.logits, &others);
    if to.address() != tile.logits.address() {
        machine.copy(tile.logits, to);
    }
}
