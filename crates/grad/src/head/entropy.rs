//! The entropy of the distributions at labels, over a tile of logits.

use fathom_tensor::{Category, DType, TeacherLogits, Tensor};

use super::divergence::diverge;
use super::{Head, HeadUse, LossTerm, Tile, TileLoss};

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
    fn gradient(&self, tile: &Tile<'_>, term: &LossTerm<'_>, to: Option<&Tensor>) -> Tensor {
        if let Some(losses) = &term.losses {
            self.losses(tile, losses);
        }
        let [rows, columns] = tile.logits.shape();
        let uniform = Head { how: HeadUse::default(), ..*tile.head };
        let gradient = tile.scope.device.zeros(rows, columns, DType::F32, Category::Activations);
        let stats = uniform.all_statistics(tile.scope, &tile.ids(), &gradient);
        let known = TeacherLogits::Whole { logits: &gradient, stats: &stats, scale: 1.0, softcap: 0.0 };
        let term = LossTerm { factor: -term.factor, losses: None, ..term.clone() };
        diverge(tile, (&tile.head.at(self.temperature), 1.0), (known, &gradient), (&term, to))
    }
}
