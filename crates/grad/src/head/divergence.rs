//! The divergence from a teacher's distributions, over a tile of logits. The teacher's logits exist for the same tile alone.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Diverged, Divergence, Known, Tensor};

use super::{Head, Teacher, Tile, TileLoss, TileTerm};

/// The divergence of each label's distribution from the teacher's ([`Divergence`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DivergenceLoss {
    /// Of the mixture: 0 for forward, 1 for reverse divergence.
    pub beta: f32,
    /// Divides the logits of both.
    pub temperature: f64,
}

impl TileLoss for DivergenceLoss {
    fn name(&self) -> &'static str {
        "divergence"
    }

    fn losses(&self, tile: &Tile<'_>, losses: &Tensor) {
        let term = TileTerm { losses: Some(losses.clone()), weights: None, factor: 1.0 };
        self.gradient(tile, &term, None);
    }

    /// The gradient takes the place of the teacher's logits.
    fn gradient(&self, tile: &Tile<'_>, term: &TileTerm, to: Option<&Tensor>) -> Tensor {
        let Some(teacher) = &tile.labels.teacher else { panic!("divergence: there is no teacher") };
        let scope = tile.scope;
        let (head, gradient) = match (teacher, &tile.taught_by) {
            (Teacher::Model { head, scope: of, .. }, Some(x)) => {
                let head = head.at(self.temperature);
                let known = head.project(of, x);
                assert!(
                    known.cols() == tile.logits.cols() || scope.device.mesh.group(&[Axis::Tp]).size() == 1,
                    "distillation: {} rows of the teacher's vocabulary and {} of the student's are not alike on their ranks",
                    known.cols(),
                    tile.logits.cols()
                );
                (Some(head), known.view_cols(0..known.cols().min(tile.logits.cols())))
            }
            (Teacher::Model { .. }, None) => panic!("divergence: a teacher's hidden states are missing"),
            (Teacher::Best { .. }, _) => (None, tile.like_logits()),
        };
        let logits = &tile.logits.view_cols(0..gradient.cols());
        let compared = Compared { tile, head: tile.head.at(self.temperature), logits, beta: self.beta };
        let stats = compared.statistics();
        let of_teacher = head.map(|head| (head, head.all_statistics(scope, &tile.ids(), &gradient)));
        let best = match teacher {
            Teacher::Best { ids, logps, rest } => {
                Some((ids.view_rows(tile.tokens.clone()), logps.view_rows(tile.tokens.clone()), rest))
            }
            Teacher::Model { .. } => None,
        };
        let known = match (&best, &of_teacher) {
            (Some((ids, logps, rest)), _) => Known::Best { ids, logps, rest: **rest },
            (None, Some((head, stats))) => {
                Known::Whole { logits: &gradient, stats, scale: head.how.scale, softcap: head.how.softcap }
            }
            (None, None) => panic!("divergence: a teacher's hidden states are missing"),
        };
        let (loss, weights) = (&term.room(tile), &term.weights(tile));
        let out = Diverged { loss, dlogits: &gradient, weights, factor: term.factor };
        compared.run(&stats, known, out);
        placed(tile, gradient, to)
    }
}

/// One side of a comparison of two distributions.
pub(super) struct Compared<'a> {
    pub tile: &'a Tile<'a>,
    /// At the temperature.
    pub head: Head,
    /// The columns that both have.
    pub logits: &'a Tensor,
    pub beta: f32,
}

impl Compared<'_> {
    /// Those of all ranks.
    pub fn statistics(&self) -> Tensor {
        self.head.all_statistics(self.tile.scope, &self.tile.ids(), self.logits)
    }

    /// The kernel, in both its passes.
    pub fn run(&self, stats: &Tensor, teacher: Known<'_>, out: Diverged<'_>) {
        let Compared { tile, head, logits, beta } = *self;
        let (device, labels) = (tile.scope.device, &tile.ids());
        let parts = device.empty(teacher.parts(), logits.rows(), DType::F32, Category::Comm);
        let op = Divergence {
            logits,
            stats,
            scale: head.how.scale,
            softcap: head.how.softcap,
            teacher,
            labels,
            first: head.first,
            beta,
            parts: &parts,
            out: None,
        };
        let run = |op: &Divergence<'_>| {
            tile.scope.counters.span("head", " divergence", -1, || device.machine.divergence(op));
        };
        run(&op);
        device.mesh.group(&[Axis::Tp]).all_reduce(device, &parts);
        run(&Divergence { out: Some(out), ..op });
    }
}

/// A gradient where it is wanted, with zeros in columns that it leaves out.
pub(super) fn placed(tile: &Tile<'_>, gradient: Tensor, to: Option<&Tensor>) -> Tensor {
    let Some(to) = to else { return gradient };
    let machine = &tile.scope.device.machine;
    machine.copy(&gradient, &to.view_cols(0..gradient.cols()));
    if gradient.cols() < to.cols() {
        machine.zero(&to.view_cols(gradient.cols()..to.cols()));
    }
    to.clone()
}
