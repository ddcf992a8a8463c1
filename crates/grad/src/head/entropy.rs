//! The entropy of the distributions at labels, over a tile of logits.

use fathom_tensor::{Category, DType, Diverged, Known, Tensor};

use super::divergence::{Compared, placed};
use super::{Head, HeadUse, Tile, TileLoss, TileTerm};

/// The entropy in nats of the distribution at each label; a sum in which its weight is above 0 makes distributions sharper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntropyLoss {
    /// Divides the logits.
    pub temperature: f64,
}

impl TileLoss for EntropyLoss {
    fn name(&self) -> &'static str {
        "entropy"
    }

    fn losses(&self, tile: &Tile<'_>, losses: &Tensor) {
        let found = tile.rows(2);
        tile.head.at(self.temperature).cross_entropy(tile, losses, (None, None), Some(&found));
        tile.scope.device.machine.copy(&found.view_rows(0..1), losses);
    }

    /// The derivative of the entropy H of a distribution p by a logit is `-p_i (log p_i + H)`. That is minus the one of the divergence
    /// `sum p log(p / u)` from a uniform u.
    fn gradient(&self, tile: &Tile<'_>, term: &TileTerm, to: Option<&Tensor>) -> Tensor {
        if let Some(losses) = &term.losses {
            self.losses(tile, losses);
        }
        let (scope, device) = (tile.scope, tile.scope.device);
        let [rows, columns] = tile.logits.shape();
        let uniform = Head { how: HeadUse::default(), ..*tile.head };
        let gradient = device.zeros(rows, columns, DType::F32, Category::Activations);
        let compared =
            Compared { tile, head: tile.head.at(self.temperature), logits: tile.logits, beta: 1.0 };
        let stats = compared.statistics();
        let of_uniform = uniform.all_statistics(scope, &tile.ids(), &gradient);
        let known = Known::Whole { logits: &gradient, stats: &of_uniform, scale: 1.0, softcap: 0.0 };
        let (loss, weights) = (&tile.rows(1), &term.weights(tile));
        let out = Diverged { loss, dlogits: &gradient, weights, factor: -term.factor };
        compared.run(&stats, known, out);
        placed(tile, gradient, to)
    }
}
