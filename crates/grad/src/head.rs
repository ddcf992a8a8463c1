//! The language-model head with its loss, over tiles of tokens: the logits of a whole sequence never exist.
//!
//! With constant weights per token the gradients are computed in the forward pass ([`Head::loss`]); objectives whose
//! weights depend on the log-probabilities use [`Head::losses`] first and [`Head::weighted_backward`] afterwards.
//!
//! Tensor parallel ranks each have some rows of the projection (vocabulary parallel): for each tile, every rank
//! computes its columns of the logits, and two numbers per token are exchanged before the loss is known.

use std::ops::Range;

use fathom_tensor::choice::LeaveOut;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{
    Category, CrossEntropy, DType, Machine, MatMul, OpDesc, SUM_CHUNK, Spread as Vocabulary, Tensor,
};

use crate::grads::Grads;
use crate::params::{ParamId, Weights};
use crate::tape::Scope;
use crate::tiles;

mod order;
mod projections;
mod scores;
mod taught;
#[cfg(test)]
mod taught_tests;
mod term;
#[cfg(test)]
mod tests;

pub use projections::{ProjectedState, Projecting, Projections};
pub use scores::Scores;
pub use taught::{Taught, Teacher};

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

/// Targets of a micro-batch.
pub struct Labels {
    /// i32 [1, t]; below zero: no loss.
    pub ids: Tensor,
    /// f32 [1, t]: weight of each token's loss; one if absent.
    pub weights: Option<Tensor>,
    /// u8 [t, vocab / 8, rounded up]: bit masks of the tokens from which each label was sampled
    /// ([`fathom_tensor::choice::Choose::kept`]), over which alone the softmax is taken; all if absent.
    pub kept: Option<Tensor>,
    /// Label metrics to compute.
    pub measures: Option<Measures>,
}

impl Labels {
    /// Labels with weight one over the whole vocabulary, without metrics.
    pub fn plain(ids: Tensor) -> Labels {
        Labels { ids, weights: None, kept: None, measures: None }
    }
}

/// Label metrics: sums over tokens with labels, computed in the same pass over their logits.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    /// f32 [2, 1], accumulators: the entropy of the softmax in nats, and 1 if the label has the largest logit.
    pub sums: Option<Tensor>,
    /// f32 [1, t], in the order of the labels: weight of the second metric; one if absent.
    pub of: Option<Tensor>,
    /// f32 [1, t], in the order of the labels: the entropy at each token; 0 without a label.
    pub each: Option<Tensor>,
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

    fn tiles(tokens: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
        (0..tokens).step_by(rows).map(move |start| start..tokens.min(start + rows))
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

    /// Per-token losses of x [t, d] into `losses` f32 [1, t] (ignored tokens get 0), without gradients. Labels and
    /// losses are in [`Head::order`].
    pub fn losses(&self, scope: &Scope<'_>, x: &Tensor, labels: &Labels, losses: &Tensor) {
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
        for rows in Head::tiles(x.rows(), (outer / share).max(1)) {
            let x = self.collect(scope, &x.view_rows(rows.clone()));
            for tile in Head::tiles(x.rows(), inner) {
                let tokens = rows.start * share + tile.start..rows.start * share + tile.end;
                let logits = self.project(scope, &x.view_rows(tile));
                self.leave_out(scope, labels, &tokens, &logits);
                self.cross_entropy(scope, labels, losses, tokens, &logits, None);
            }
        }
    }

    /// [`Head::losses`], with the gradient of their weighted sum in the same pass: adds to the head's main gradient and
    /// returns that of x. The forward pass with this side effect is never replayed.
    pub fn loss(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        labels: &Labels,
        losses: &Tensor,
        grads: &mut Grads,
    ) -> Tensor {
        self.learn(scope, x, (labels, losses, None), grads)
    }

    /// [`Head::loss`] together with the divergence from a teacher: the gradient is that of both.
    pub fn loss_and_divergence(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        (labels, losses, taught): (&Labels, &Tensor, &Taught<'_>),
        grads: &mut Grads,
    ) -> Tensor {
        self.learn(scope, x, (labels, losses, Some(taught)), grads)
    }

    fn learn(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        (labels, losses, taught): (&Labels, &Tensor, Option<&Taught<'_>>),
        grads: &mut Grads,
    ) -> Tensor {
        let device = scope.device;
        let (_weights, _of_teacher) = (self.weights(scope), taught.map(|taught| taught.teacher.weights()));
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
            let taught = taught.map(|taught| (taught, taught.teacher.collect(rows.clone())));
            let dlogits = self.dlogits(scope, &x, (labels, losses, tokens), taught);
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

    /// Gradients of the logits of the tokens of x, which are `rows` of the labels, stored like x, tile by tile; f32
    /// ones replace the logits.
    fn dlogits(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        (labels, losses, rows): (&Labels, &Tensor, Range<usize>),
        taught: Option<(&Taught<'_>, Option<Tensor>)>,
    ) -> Tensor {
        // The gradient replaces the logits of a tile, or goes to the caller's buffer.
        let tile_gradient = |logits: &Tensor, tile: Range<usize>, to: &Tensor| {
            let tokens = rows.start + tile.start..rows.start + tile.end;
            self.leave_out(scope, labels, &tokens, logits);
            let Some((taught, x)) = &taught else {
                return self.cross_entropy(scope, labels, losses, tokens, logits, Some(to));
            };
            let x = x.as_ref().map(|x| x.view_rows(tile));
            self.taught(scope, (labels, losses, tokens), logits, (taught, x.as_ref()));
            if to.address() != logits.address() {
                scope.device.machine.copy(logits, to);
            }
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

    /// The general path's second half: like [`Head::loss`], with weights computed from [`Head::losses`]. The logits are
    /// recomputed, tile by tile.
    pub fn weighted_backward(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        labels: &Labels,
        grads: &mut Grads,
    ) -> Tensor {
        let tokens = x.rows() * scope.spread().share();
        let scratch = scope.device.empty(1, tokens, DType::F32, Category::Activations);
        self.loss(scope, x, labels, &scratch, grads)
    }

    /// Excludes the tokens from which a tile's labels were not sampled.
    fn leave_out(&self, scope: &Scope<'_>, labels: &Labels, rows: &Range<usize>, logits: &Tensor) {
        let Some(kept) = &labels.kept else { return };
        let op = LeaveOut { logits, kept: &kept.view_rows(rows.clone()), first: self.first };
        scope.counters.span("head", " loss", -1, || scope.device.machine.leave_out(&op));
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
        let weights = labels.weights.as_ref().map(|weights| weights.view_cols(rows.clone()));
        let weights = weights.as_ref();
        let measured = labels.measures.as_ref().map(|measures| (measures, self.found(scope, rows.len())));
        let measures = measured.as_ref().map(|(_, found)| found);
        let spread = self.statistics(scope, (ids, measures), logits);
        let spread = spread.as_ref().map(|all| Vocabulary { first: self.first, stats: None, all: Some(all) });
        let op = CrossEntropy {
            logits,
            labels: ids,
            weights,
            loss,
            dlogits,
            scale,
            softcap,
            z_loss,
            spread,
            measures,
        };
        let machine = &scope.device.machine;
        scope.counters.span("head", " loss", -1, || machine.cross_entropy(&op));
        let Some((Measures { sums, of, each }, found)) = &measured else { return };
        let [entropies, hits] = [0, 1].map(|row| found.view_rows(row..row + 1));
        if let Some(each) = each {
            machine.copy(&entropies, &each.view_cols(rows.clone()));
        }
        let Some(sums) = sums else { return };
        if let Some(of) = of {
            machine.multiply(&hits, &of.view_cols(rows), &hits);
        }
        machine.sum(&entropies, &sums.view_rows(0..1));
        machine.sum(&hits, &sums.view_rows(1..2));
    }

    /// A buffer for the label metrics of a tile's tokens.
    fn found(&self, scope: &Scope<'_>, tokens: usize) -> Tensor {
        scope.device.empty(2, tokens, DType::F32, Category::Activations)
    }

    /// The statistics of a tile's tokens from all ranks, f32 [2 x ranks, r], with metrics [4 x ranks, r]; `None` if one
    /// rank has the whole vocabulary.
    fn statistics(
        &self,
        scope: &Scope<'_>,
        (labels, measures): (&Tensor, Option<&Tensor>),
        logits: &Tensor,
    ) -> Option<Tensor> {
        let (device, group) = (scope.device, scope.device.mesh.group(&[Axis::Tp]));
        if group.size() == 1 {
            return None;
        }
        let tokens = logits.rows();
        let empty = |rows| device.empty(rows, tokens, DType::F32, Category::Comm);
        let each = if measures.is_some() { 4 } else { 2 };
        let (stats, all, loss) = (empty(each), empty(each * group.size()), empty(1));
        let spread = Vocabulary { first: self.first, stats: Some(&stats), all: None };
        self.own_statistics(scope, (labels, logits, &loss), (spread, measures));
        let parts: Vec<Tensor> =
            (0..group.size()).map(|rank| all.view_rows(each * rank..each * (rank + 1))).collect();
        group.all_gather(device, &stats, &parts).wait();
        Some(all)
    }

    /// This rank's part of the statistics.
    fn own_statistics(
        &self,
        scope: &Scope<'_>,
        (labels, logits, loss): (&Tensor, &Tensor, &Tensor),
        (spread, measures): (Vocabulary<'_>, Option<&Tensor>),
    ) {
        let HeadUse { scale, softcap, z_loss } = self.how;
        let (weights, dlogits, spread) = (None, None, Some(spread));
        let op =
            CrossEntropy { logits, labels, weights, loss, dlogits, scale, softcap, z_loss, spread, measures };
        scope.counters.span("head", " loss", -1, || scope.device.machine.cross_entropy(&op));
    }
}
