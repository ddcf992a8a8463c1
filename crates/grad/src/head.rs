//! The language-model head with its loss, over tiles of tokens: the logits of a whole sequence never exist.
//!
//! With constant weights per token the gradients are computed in the forward pass ([`Head::loss`]); objectives whose
//! weights depend on the log-probabilities use [`Head::losses`] first and [`Head::weighted_backward`] after.

use std::ops::Range;

use fathom_tensor::{Category, CrossEntropy, DType, MatMul, Tensor};

use crate::params::{Grads, ParamId, Weights};
use crate::tape::Scope;
use crate::tiles;

#[cfg(test)]
mod tests;

/// What happens to logits on the way to the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadUse {
    /// Multiplies the logits.
    pub scale: f32,
    /// `cap tanh(x / cap)`; 0 for none.
    pub softcap: f32,
    /// Weight of the squared log-partition (PaLM's z-loss).
    pub z_loss: f32,
}

impl Default for HeadUse {
    fn default() -> HeadUse {
        HeadUse { scale: 1.0, softcap: 0.0, z_loss: 0.0 }
    }
}

/// Targets of a micro batch.
pub struct Labels {
    /// i32 [1, t]; below zero: no loss.
    pub ids: Tensor,
    /// f32 [1, t]: weight of each token's loss; one if absent.
    pub weights: Option<Tensor>,
}

/// The output projection.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// [vocab, d].
    pub weight: ParamId,
    /// What follows.
    pub how: HeadUse,
}

/// Bytes that a tile of f32 logits should not exceed.
const TILE_BYTES: usize = 32 << 20;
/// Bytes that the gradients of some tiles should not exceed where they are narrower than f32: the more tokens they
/// cover, the less often the head's main gradient is read and written.
const GRADIENT_BYTES: usize = 64 << 20;

impl Head {
    /// Tokens of a tile: a multiple of 128 whose f32 logits stay within 32 MiB, and at least 128.
    pub fn tile_rows(vocab: usize) -> usize {
        (TILE_BYTES / (4 * vocab) / 128 * 128).max(128)
    }

    /// Tokens whose gradients are kept together: whole tiles.
    fn gradient_rows(vocab: usize, dtype: DType) -> usize {
        let tile = Head::tile_rows(vocab);
        match dtype {
            DType::F32 => tile,
            narrow => (GRADIENT_BYTES / (narrow.bytes() * vocab) / tile * tile).max(tile),
        }
    }

    fn tiles(tokens: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
        (0..tokens).step_by(rows).map(move |start| start..tokens.min(start + rows))
    }

    /// The projection's weight, in memory until the result is dropped.
    fn weight<'a>(&self, scope: &Scope<'a>) -> Weights<'a> {
        let weights = scope.params.fetch(scope.device, [self.weight]);
        weights.wait();
        weights
    }

    /// f32 logits [t, vocab] of x [t, d], after scale and cap. For generation and inspection.
    pub fn logits(&self, scope: &Scope<'_>, x: &Tensor) -> Tensor {
        let vocab = scope.params.shape(self.weight)[0];
        let _weights = self.weight(scope);
        let logits = self.project(scope, x);
        let HeadUse { scale, softcap, .. } = self.how;
        if scale != 1.0 || softcap != 0.0 {
            // One pass of the loss's own kernel would give the loss as well; only the transform is wanted.
            scope.device.machine.scale(&logits, scale, &logits);
            if softcap != 0.0 {
                scope.device.machine.softcap(&logits, softcap);
            }
        }
        assert_eq!(logits.shape(), [x.rows(), vocab]);
        logits
    }

    /// Raw f32 logits of a tile.
    fn project(&self, scope: &Scope<'_>, x: &Tensor) -> Tensor {
        let device = scope.device;
        device.pool.enter("head", -1);
        let weight = &scope.params.tensor(self.weight);
        let logits = device.empty(x.rows(), weight.rows(), DType::F32, Category::Activations);
        self.matmul(
            scope,
            MatMul { a: x, a_trans: false, b: weight, b_trans: true, c: &logits, accumulate: false },
        );
        let flops = 2 * (x.len() * weight.rows()) as u64;
        scope.counters.add(flops, flops);
        logits
    }

    fn matmul(&self, scope: &Scope<'_>, op: MatMul<'_>) {
        let bytes = scope.device.machine.profile().workspace(&op.desc());
        let ws = scope.device.empty(1, bytes as usize, DType::U8, Category::Workspace);
        scope.counters.span("head", " matmul", -1, || scope.device.machine.matmul(&op, &ws));
    }

    /// Per-token losses of x [t, d] into `losses` f32 [1, t] (ignored tokens get 0); no gradients.
    pub fn losses(&self, scope: &Scope<'_>, x: &Tensor, labels: &Labels, losses: &Tensor) {
        let vocab = scope.params.shape(self.weight)[0];
        let _weights = self.weight(scope);
        for rows in Head::tiles(x.rows(), Head::tile_rows(vocab)) {
            let logits = self.project(scope, &x.view_rows(rows.clone()));
            self.cross_entropy(scope, labels, losses, rows, &logits, None);
        }
    }

    /// Losses as [`Head::losses`], and in the same pass the gradient of their weighted sum: adds to the head's main
    /// gradient and returns that of x. The forward pass with this side effect is never replayed.
    pub fn loss(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        labels: &Labels,
        losses: &Tensor,
        grads: &mut Grads,
    ) -> Tensor {
        let device = scope.device;
        let _weights = self.weight(scope);
        let weight = &scope.params.tensor(self.weight);
        device.pool.enter("head", -1);
        let dx = device.empty(x.rows(), x.cols(), x.dtype(), Category::Activations);
        let rows = Head::gradient_rows(weight.rows(), x.dtype());
        tiles::each(device, scope.counters, x.rows(), rows, |rows| {
            let dlogits = self.dlogits(scope, x, labels, losses, rows.clone());
            let x = x.view_rows(rows.clone());
            let flops = 2 * (x.len() * weight.rows()) as u64;
            let dx = dx.view_rows(rows);
            self.matmul(
                scope,
                MatMul { a: &dlogits, a_trans: false, b: weight, b_trans: false, c: &dx, accumulate: false },
            );
            scope.counters.add(flops, flops);
            if let Some(dw) = grads.get(self.weight) {
                self.matmul(
                    scope,
                    MatMul { a: &dlogits, a_trans: true, b: &x, b_trans: false, c: dw, accumulate: true },
                );
                scope.counters.add(flops, flops);
            }
        });
        dx
    }

    /// Gradients of the logits of some tokens, stored like x, tile by tile; f32 ones take the logits' place.
    fn dlogits(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        labels: &Labels,
        losses: &Tensor,
        rows: Range<usize>,
    ) -> Tensor {
        let vocab = scope.params.shape(self.weight)[0];
        let device = scope.device;
        if x.dtype() == DType::F32 {
            let logits = self.project(scope, &x.view_rows(rows.clone()));
            self.cross_entropy(scope, labels, losses, rows, &logits, Some(&logits));
            return logits;
        }
        device.pool.enter("head", -1);
        let dlogits = device.empty(rows.len(), vocab, x.dtype(), Category::Activations);
        tiles::each(device, scope.counters, rows.len(), Head::tile_rows(vocab), |tile| {
            let tokens = rows.start + tile.start..rows.start + tile.end;
            let logits = self.project(scope, &x.view_rows(tokens.clone()));
            self.cross_entropy(scope, labels, losses, tokens, &logits, Some(&dlogits.view_rows(tile)));
        });
        dlogits
    }

    /// The general path's second half: like [`Head::loss`], with weights that were computed from [`Head::losses`].
    /// The logits are computed again, tile by tile.
    pub fn weighted_backward(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        labels: &Labels,
        grads: &mut Grads,
    ) -> Tensor {
        let scratch = scope.device.empty(1, x.rows(), DType::F32, Category::Activations);
        self.loss(scope, x, labels, &scratch, grads)
    }

    fn cross_entropy(
        &self,
        scope: &Scope<'_>,
        labels: &Labels,
        losses: &Tensor,
        rows: Range<usize>,
        logits: &Tensor,
        dlogits: Option<&Tensor>,
    ) {
        let HeadUse { scale, softcap, z_loss } = self.how;
        let loss = &losses.view_cols(rows.clone());
        let ids = &labels.ids.view_cols(rows.clone());
        let weights = labels.weights.as_ref().map(|weights| weights.view_cols(rows));
        let weights = weights.as_ref();
        let op = CrossEntropy { logits, labels: ids, weights, loss, dlogits, scale, softcap, z_loss };
        scope.counters.span("head", " loss", -1, || scope.device.machine.cross_entropy(&op));
    }
}
