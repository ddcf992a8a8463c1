//! What tensor parallel ranks, which have some columns of the logits each, tell each other of a tile before a loss is known.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, CrossEntropy, DType, Spread as Vocabulary, Tensor};

use super::{Head, HeadUse};
use crate::tape::Scope;

impl Head {
    /// What all ranks know of a tile's tokens, f32 [2 x ranks, r], with measures [4 x ranks, r]; `None` where one rank has the whole
    /// vocabulary.
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
        self.own_statistics(scope, (labels, logits, &loss), (spread, measures));
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
        self.own_statistics(scope, (labels, logits, &loss), (spread, None));
        stats
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
