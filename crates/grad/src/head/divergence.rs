//! The divergence from a teacher's distributions, over a tile of logits. The teacher's logits exist for the same tile alone.

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Divergence, DivergenceOutput, TeacherLogits, Tensor};

use super::{Head, HeadUse, LossTerm, Teacher, Tile, TileLoss};

/// The divergence of each label's distribution from the teacher's ([`Divergence`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DivergenceLoss {
    /// Mixture of both directions: 0 for forward, 1 for reverse divergence.
    pub beta: f32,
    /// Divides the logits of both models.
    pub temperature: f64,
}

impl TileLoss for DivergenceLoss {
    fn name(&self) -> &'static str {
        "divergence"
    }

    fn losses(&self, tile: &Tile<'_>, losses: &Tensor) {
        self.gradient(tile, &LossTerm::of(self, losses), None);
    }

    /// The gradient takes the place of the teacher's logits.
    fn gradient(&self, tile: &Tile<'_>, term: &LossTerm<'_>, to: Option<&Tensor>) -> Tensor {
        let student = (&tile.head.at(self.temperature), self.beta);
        match (tile.labels.teacher, &tile.taught_by) {
            (Some(Teacher::Model { head, scope: of, .. }), Some(x)) => {
                let head = head.at(self.temperature);
                let (known, columns) = (head.project(of, x), tile.logits.cols());
                assert!(
                    known.cols() == columns || tile.scope.device.mesh.group(&[Axis::Tp]).size() == 1,
                    "distillation: {} rows of the teacher's vocabulary and {columns} of the student's are not alike on their ranks",
                    known.cols(),
                );
                let logits = &known.view_cols(0..known.cols().min(columns));
                let stats = &head.all_statistics(tile.scope, &tile.ids(), logits);
                let HeadUse { scale, softcap, .. } = head.how;
                let teacher = TeacherLogits::Whole { logits, stats, scale, softcap };
                diverge(tile, student, (teacher, logits), (term, to))
            }
            (Some(Teacher::Best { ids, logps, rest }), _) => {
                let [ids, logps] = &[ids, logps].map(|of| of.view_rows(tile.tokens.clone()));
                diverge(
                    tile,
                    student,
                    (TeacherLogits::Best { ids, logps, rest }, &tile.like_logits()),
                    (term, to),
                )
            }
            _ => panic!("divergence: there is no teacher, or its hidden states are missing"),
        }
    }
}

/// The divergence of the columns that both sides have, with its gradient in place of the teacher's logits; where it is wanted elsewhere
/// it has zeros in the columns that are left out. The student's head is at the temperature.
pub(super) fn diverge(
    tile: &Tile<'_>,
    (student, beta): (&Head, f32),
    (teacher, gradient): (TeacherLogits<'_>, &Tensor),
    (term, to): (&LossTerm<'_>, Option<&Tensor>),
) -> Tensor {
    let (device, labels) = (tile.scope.device, &tile.ids());
    let (machine, common) = (&device.machine, gradient.cols());
    let logits = &tile.logits.view_cols(0..common);
    let stats = &student.all_statistics(tile.scope, labels, logits);
    let parts = &device.empty(teacher.parts(), logits.rows(), DType::F32, Category::Comm);
    let HeadUse { scale, softcap, .. } = student.how;
    let first = student.first;
    let op = Divergence { logits, stats, scale, softcap, teacher, labels, first, beta, parts, out: None };
    let run = |op: &Divergence<'_>| {
        tile.scope.counters.span("head", " divergence", -1, || machine.divergence(op));
    };
    run(&op);
    device.mesh.group(&[Axis::Tp]).all_reduce(device, parts);
    let (loss, weights) = (&term.room(tile), &term.some_weights(tile));
    let out = DivergenceOutput { loss, dlogits: gradient, weights, factor: term.factor };
    run(&Divergence { out: Some(out), ..op });
    let Some(to) = to else { return gradient.clone() };
    machine.copy(gradient, &to.view_cols(0..common));
    if common < to.cols() {
        machine.zero(&to.view_cols(common..to.cols()));
    }
    to.clone()
}
