//! The cross-entropy of labels, with the z-loss of the head, over a tile of logits.

use fathom_tensor::{CrossEntropy, Spread as Vocabulary, Tensor};

use super::{Head, HeadUse, LossTerm, Measures, Tile, TileLoss, TileTerm};

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
        let Some((Measures { sums, of }, found)) = &measured else { return };
        let (machine, tokens) = (&tile.scope.device.machine, tile.tokens.clone());
        let [entropies, hits] = [0, 1].map(|row| found.view_rows(row..row + 1));
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

    fn gradient(&self, tile: &Tile<'_>, term: &TileTerm, to: Option<&Tensor>) -> Tensor {
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
    /// The kernel, over the vocabulary of all ranks; `measures` as [`CrossEntropy::measures`].
    pub(super) fn cross_entropy(
        &self,
        tile: &Tile<'_>,
        loss: &Tensor,
        (weights, dlogits): (Option<&Tensor>, Option<&Tensor>),
        measures: Option<&Tensor>,
    ) {
        let HeadUse { scale, softcap, z_loss } = self.how;
        let (scope, logits, labels) = (tile.scope, tile.logits, &tile.ids());
        let spread = self.statistics(scope, (labels, measures), logits);
        let spread = spread.as_ref().map(|all| Vocabulary { first: self.first, stats: None, all: Some(all) });
        let op =
            CrossEntropy { logits, labels, weights, loss, dlogits, scale, softcap, z_loss, spread, measures };
        scope.counters.span("head", " loss", -1, || scope.device.machine.cross_entropy(&op));
    }
}
