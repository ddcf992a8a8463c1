//! The language-model head with its losses, over tiles of tokens: the logits of a whole sequence never exist.
//!
//! A sum of losses is minimised, each a [`TileLoss`]. With constant weights per token the gradients are computed in the forward pass
//! ([`Head::loss`]); objectives whose weights depend on the losses use [`Head::losses`] first and [`Head::loss`] after.
//!
//! Tensor parallel ranks each have some rows of the projection (vocabulary parallel): for each tile, every rank
//! computes its columns of the logits, and two numbers per token are exchanged before the loss is known.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Machine, MatMul, OpDesc, SUM_CHUNK, Tensor};

use crate::param_id::ParamId;
use crate::params::Weights;
use crate::scope::Scope;

mod cross_entropy;
mod divergence;
#[cfg(test)]
mod divergence_tests;
mod entropy;
mod labels;
mod loss;
mod order;
mod projections;
mod scores;
mod term;
#[cfg(test)]
mod tests;
mod tile;

pub use cross_entropy::CrossEntropyLoss;
pub use divergence::DivergenceLoss;
pub use entropy::EntropyLoss;
pub use labels::{Labels, Measures, Teacher};
pub use projections::{ProjectedState, Projections, ResidentProjections};
pub use scores::Scores;
pub use tile::{LossTerm, Tile, TileLoss};

/// Transformation of logits before the loss.
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

/// A low-rank term of the output projection (LoRA; Hu et al., 2021): `scale (x A^T) B^T` is added to the logits.
#[derive(Clone, Copy, Debug)]
pub struct HeadTerm {
    /// [rank, d], whole on every rank.
    pub a: ParamId,
    /// [vocab, rank], for the projection's rows on this rank.
    pub b: ParamId,
    /// Multiplies both together.
    pub scale: f32,
}

/// The output projection.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// [vocab, d].
    pub weight: ParamId,
    /// [1, vocab]: added to the logits before any transformation.
    pub bias: Option<ParamId>,
    /// Transformation of the logits.
    pub how: HeadUse,
    /// Token of the weight's first row: above 0 if the vocabulary is distributed over ranks.
    pub first: usize,
    /// The adapter's term.
    pub term: Option<HeadTerm>,
}

impl Head {
    /// The head of the distribution at a temperature, which divides logits after the cap: `cap tanh(s x / cap) / T` is
    /// that of scale `s / T` and cap `cap / T`.
    pub fn at(mut self, temperature: f64) -> Head {
        if temperature != 1.0 {
            self.how.scale = (f64::from(self.how.scale) / temperature) as f32;
            self.how.softcap = (f64::from(self.how.softcap) / temperature) as f32;
        }
        self
    }

    /// Tokens of a tile: a multiple of 128 whose f32 logits stay within the machine's portion, and at least 128.
    pub fn tile_rows(machine: &dyn Machine, vocab: usize) -> usize {
        let bytes = machine.profile().portions.logits_bytes;
        (bytes / (4 * vocab) / SUM_CHUNK * SUM_CHUNK).max(SUM_CHUNK)
    }

    /// Tokens whose logit gradients are kept together: whole tiles.
    fn gradient_rows(machine: &dyn Machine, vocab: usize, dtype: DType) -> usize {
        let tile = Head::tile_rows(machine, vocab);
        let bytes = machine.profile().portions.logit_grads_bytes;
        match dtype {
            DType::F32 => tile,
            narrow => (bytes / (narrow.bytes() * vocab) / tile * tile).max(tile),
        }
    }

    /// The projection's weight, its bias if there is one, and the adapter's weights.
    fn ids(&self) -> impl Iterator<Item = ParamId> {
        let term = self.term.map(|term| [term.a, term.b]);
        [self.weight].into_iter().chain(self.bias).chain(term.into_iter().flatten())
    }

    /// The projection's weights, in memory until the result is dropped.
    fn weights<'a>(&self, scope: &Scope<'a>) -> Weights<'a> {
        let weights = scope.params.fetch(scope.device, self.ids());
        weights.wait();
        weights
    }

    /// f32 logits [t, vocab] of x [t, d], after scale and cap. For generation and inspection.
    pub fn logits(&self, scope: &Scope<'_>, x: &Tensor) -> Tensor {
        let vocab = scope.params.shape(self.weight)[0];
        let _weights = self.weights(scope);
        let logits = self.project(scope, x);
        let HeadUse { scale, softcap, .. } = self.how;
        if scale != 1.0 || softcap != 0.0 {
            // The loss's own kernel would compute the loss as well, but only the transformation is wanted.
            scope.device.machine.scale(&logits, scale, &logits);
            if softcap != 0.0 {
                scope.device.machine.softcap(&logits, softcap);
            }
        }
        assert_eq!(logits.shape(), [x.rows(), vocab]);
        logits
    }

    /// Raw f32 logits of a tile, with the bias.
    fn project(&self, scope: &Scope<'_>, x: &Tensor) -> Tensor {
        let device = scope.device;
        device.pool.enter("head", -1);
        let (weight, vocab) = (&scope.params.operand(self.weight), scope.params.shape(self.weight)[0]);
        let logits = device.empty(x.rows(), vocab, DType::F32, Category::Activations);
        self.matmul(
            scope,
            MatMul { a: x, a_trans: false, b: weight, b_trans: true, c: &logits, accumulate: false },
        );
        if let Some(term) = self.term {
            self.add_term(scope, &term, x, &logits);
        }
        if let Some(bias) = self.bias {
            device.machine.add_bias(&logits, &scope.params.tensor(bias));
        }
        let flops = 2 * (x.len() * vocab) as u64;
        scope.counters.add(flops, flops);
        logits
    }

    fn matmul(&self, scope: &Scope<'_>, op: MatMul<'_>) {
        let scratch = |desc: OpDesc| {
            let bytes = scope.device.machine.profile().workspace(&desc);
            scope.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
        };
        if let Some(op) = op.packed() {
            let ws = scratch(op.desc());
            let product = || scope.device.machine.packed_matmul(&op, &ws);
            return scope.counters.span("head", " matmul", -1, product);
        }
        let ws = scratch(op.desc());
        scope.counters.span("head", " matmul", -1, || scope.device.machine.matmul(&op, &ws));
    }

    /// The rows of all ranks if each has a share of them.
    fn collect(&self, scope: &Scope<'_>, x: &Tensor) -> Tensor {
        let (device, spread) = (scope.device, scope.spread());
        if spread.share() == 1 {
            return x.clone();
        }
        device.pool.enter("head", -1);
        let all = device.empty(x.rows() * spread.ranks, x.cols(), x.dtype(), Category::Comm);
        let part = |rank: usize| all.view_rows(rank * x.rows()..(rank + 1) * x.rows());
        let parts: Vec<Tensor> = (0..spread.ranks).map(part).collect();
        device.mesh.group(&[Axis::Tp]).all_gather(device, x, &parts).wait();
        all
    }

    /// `dx = dlogits W`, summed over the ranks with the other columns of the logits.
    fn input_gradient(&self, scope: &Scope<'_>, dlogits: &Tensor, weight: &Tensor, dx: &Tensor) {
        let (device, spread) = (scope.device, scope.spread());
        let product = |c: &Tensor| {
            let op = MatMul { a: dlogits, a_trans: false, b: weight, b_trans: false, c, accumulate: false };
            self.matmul(scope, op);
            if let Some(term) = self.term {
                self.add_term_input(scope, &term, dlogits, c);
            }
        };
        if spread.share() == 1 {
            product(dx);
            return device.mesh.group(&[Axis::Tp]).all_reduce(device, dx);
        }
        let all = device.empty(dlogits.rows(), dx.cols(), dx.dtype(), Category::Comm);
        product(&all);
        let part = |rank: usize| all.view_rows(rank * dx.rows()..(rank + 1) * dx.rows());
        let parts: Vec<Tensor> = (0..spread.ranks).map(part).collect();
        device.mesh.group(&[Axis::Tp]).reduce_scatter(device, &parts, dx);
    }
}
