//! The cross-entropy of labels, with the z-loss of the head, over a tile of logits.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, CrossEntropy, DType, Tensor, VocabularyShare as Vocabulary};

use super::{Head, HeadUse, LossTerm, Measures, Tile, TileLoss};
use crate::scope::Scope;

/// Minus the natural logarithm of each label's probability, and the head's z-loss. What is measured at labels is found with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyLoss {
    /// Divides the logits.
    pub temperature: f64,
}

impl CrossEntropyLoss {
    /// At temperature 1.
    pub const PLAIN: CrossEntropyLoss = CrossEntropyLoss { temperature: 1.0 };

    fn run(&self, tile: &Tile<'_>, losses: &Tensor, (weights, dlogits): (Option<&Tensor>, Option<&Tensor>)) {
        let measured = tile.measures.map(|measures| (measures, tile.rows(2)));
        let found = measured.as_ref().map(|(_, found)| found);
        tile.head.at(self.temperature).cross_entropy(tile, losses, (weights, dlogits), found);
        let Some((Measures { sums, of, hits: each }, found)) = &measured else { return };
        let (machine, tokens) = (&tile.scope.device.machine, tile.tokens.clone());
        let [entropies, hits] = [0, 1].map(|row| found.view_rows(row..row + 1));
        if let Some(each) = each {
            machine.copy(&hits, &each.view_cols(tokens.clone()));
        }
        if let Some(of) = of {
            machine.multiply(&hits, &of.view_cols(tokens), &hits);
        }
        machine.sum(&entropies, &sums.view_rows(0..1));
        machine.sum(&hits, &sums.view_rows(1..2));
    }
}

impl TileLoss for CrossEntropyLoss {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn losses(&self, tile: &Tile<'_>, losses: &Tensor) {
        self.run(tile, losses, (None, None));
    }

    fn gradient(&self, tile: &Tile<'_>, term: &LossTerm<'_>, to: Option<&Tensor>) -> Tensor {
        let to = to.cloned().unwrap_or_else(|| tile.like_logits());
        self.run(tile, &term.room(tile), (term.products(tile).as_ref(), Some(&to)));
        to
    }
}

impl LossTerm<'static> {
    /// The cross-entropy of all tokens alike, their losses into f32 [1, t].
    pub fn cross_entropy(losses: &Tensor) -> LossTerm<'static> {
        LossTerm::of(&CrossEntropyLoss::PLAIN, losses)
    }
}

impl Head {
    /// The loss over the vocabulary of all ranks; `measures` as [`CrossEntropy::measures`].
    pub(super) fn cross_entropy(
        &self,
        tile: &Tile<'_>,
        loss: &Tensor,
        (weights, dlogits): (Option<&Tensor>, Option<&Tensor>),
        measures: Option<&Tensor>,
    ) {
        let (scope, logits, labels) = (tile.scope, tile.logits, &tile.ids());
        let spread = self.statistics(scope, (labels, measures), logits);
        let spread = spread.as_ref().map(|all| Vocabulary { first: self.first, stats: None, all: Some(all) });
        let op = self.op(labels, logits, loss);
        run(scope, &CrossEntropy { weights, dlogits, spread, measures, ..op });
    }

    /// The statistics of a tile's tokens from all ranks, f32 [2 x ranks, r], with metrics [4 x ranks, r]; `None` if one
    /// rank has the whole vocabulary.
    pub(super) fn statistics(
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
        run(scope, &CrossEntropy { spread: Some(spread), measures, ..self.op(labels, logits, &loss) });
        let parts: Vec<Tensor> =
            (0..group.size()).map(|rank| all.view_rows(each * rank..each * (rank + 1))).collect();
        group.all_gather(device, &stats, &parts).wait();
        Some(all)
    }

    /// The same, f32 [2 x ranks, r], also where one rank has the whole vocabulary.
    pub(super) fn all_statistics(&self, scope: &Scope<'_>, labels: &Tensor, logits: &Tensor) -> Tensor {
        if let Some(all) = self.statistics(scope, (labels, None), logits) {
            return all;
        }
        let empty = |rows| scope.device.empty(rows, logits.rows(), DType::F32, Category::Comm);
        let (stats, loss) = (empty(2), empty(1));
        let spread = Vocabulary { first: self.first, stats: Some(&stats), all: None };
        run(scope, &CrossEntropy { spread: Some(spread), ..self.op(labels, logits, &loss) });
        stats
    }

    /// The operation of a tile without gradients.
    fn op<'t>(&self, labels: &'t Tensor, logits: &'t Tensor, loss: &'t Tensor) -> CrossEntropy<'t> {
        let HeadUse { scale, softcap, z_loss } = self.how;
        let (weights, dlogits, spread, measures) = (None, None, None, None);
        CrossEntropy { logits, labels, weights, loss, dlogits, scale, softcap, z_loss, spread, measures }
    }
}

fn run(scope: &Scope<'_>, op: &CrossEntropy<'_>) {
    scope.counters.span("head", " loss", -1, || scope.device.machine.cross_entropy(op));
}
