//! A head that also learns from a teacher: for each tile of logits, the divergence from the teacher's distribution, and
//! its gradient together with that of the cross-entropy. The teacher's logits exist only for the same tile.

use std::ops::Range;

use fathom_tensor::mesh::Axis;
use fathom_tensor::{
    Category, DType, Divergence, DivergenceOutput, Spread as Vocabulary, TeacherLogits, Tensor,
};

use super::{Head, HeadUse, Labels};
use crate::grads::Grads;
use crate::params::Weights;
use crate::tape::Scope;

/// Inputs of learning from a teacher.
#[derive(Clone, Copy)]
pub struct Taught<'a> {
    /// The teacher.
    pub teacher: Teacher<'a>,
    /// f32 [1, t], in the order of the labels: weight of each token's divergence.
    pub weights: &'a Tensor,
    /// f32 [1, t]: the divergence of each token; ignored ones get 0.
    pub losses: &'a Tensor,
    /// Mixture: 0 for forward, 1 for reverse divergence ([`Divergence`]).
    pub beta: f32,
    /// Divides the logits of both models.
    pub temperature: f64,
    /// Multiplies the gradient.
    pub factor: f32,
}

/// Source of a teacher's distribution.
#[derive(Clone, Copy)]
pub enum Teacher<'a> {
    /// Another model's head, over hidden states [t, d] of the same rows. If the numbers of its rows and the student's
    /// differ, the common first rows are compared.
    Model {
        /// Its head.
        head: Head,
        /// Its weights.
        scope: &'a Scope<'a>,
        /// Its hidden states.
        x: &'a Tensor,
    },
    /// Its best tokens at the temperature, in the order of the labels.
    Best {
        /// i32 [t, k].
        ids: &'a Tensor,
        /// f32 [t, k].
        logps: &'a Tensor,
        /// True if the remaining mass is one more token.
        rest: bool,
    },
    /// The uniform distribution: the reverse divergence from it is the logarithm of the vocabulary's size minus the
    /// entropy.
    Uniform,
}

impl<'a> Teacher<'a> {
    /// The weights of its head, in memory until the result is dropped.
    pub(super) fn weights(&self) -> Option<Weights<'a>> {
        match self {
            Teacher::Model { head, scope, .. } => Some(head.weights(scope)),
            Teacher::Best { .. } | Teacher::Uniform => None,
        }
    }

    /// Its hidden states for these rows of this rank, and of the ranks that share them.
    pub(super) fn collect(&self, rows: Range<usize>) -> Option<Tensor> {
        match self {
            Teacher::Model { head, scope, x } => Some(head.collect(scope, &x.view_rows(rows))),
            Teacher::Best { .. } | Teacher::Uniform => None,
        }
    }
}

impl Head {
    /// [`Head::weighted_backward`] together with the gradient of a weighted sum of entropies: `weights`, f32 [1, t] in
    /// the order of the labels, multiply the entropy H of each label's distribution p, whose derivative by a logit is
    /// `-p_i (log p_i + H)`. That is the negative derivative of the divergence `sum p log(p / u)` from a uniform u.
    pub fn weighted_backward_with_entropy(
        &self,
        scope: &Scope<'_>,
        x: &Tensor,
        (labels, weights): (&Labels, &Tensor),
        grads: &mut Grads,
    ) -> Tensor {
        let row = || scope.device.empty(1, weights.cols(), DType::F32, Category::Activations);
        let (losses, apart) = (row(), row());
        let teacher = Teacher::Uniform;
        let taught = Taught { teacher, weights, losses: &apart, beta: 1.0, temperature: 1.0, factor: -1.0 };
        self.loss_and_divergence(scope, x, (labels, &losses, &taught), grads)
    }

    /// Losses of a tile, and the gradient of both by its logits, which it replaces. `tokens` are the tile's range in
    /// the labels, `of_teacher` the teacher's hidden states.
    pub(super) fn taught(
        &self,
        scope: &Scope<'_>,
        (labels, losses, tokens): (&Labels, &Tensor, Range<usize>),
        logits: &Tensor,
        (taught, of_teacher): (&Taught<'_>, Option<&Tensor>),
    ) {
        let device = scope.device;
        let gradient =
            self.diverge(scope, &labels.ids.view_cols(tokens.clone()), logits, (taught, of_teacher, &tokens));
        self.cross_entropy(scope, labels, losses, tokens, logits, Some(logits));
        let common = &logits.view_cols(0..gradient.cols());
        scope.counters.span("head", " loss", -1, || device.machine.add(common, &gradient, common));
    }

    /// The divergence of a tile, and its gradient, f32 [r, common columns].
    fn diverge(
        &self,
        scope: &Scope<'_>,
        ids: &Tensor,
        logits: &Tensor,
        (taught, of_teacher, tokens): (&Taught<'_>, Option<&Tensor>, &Range<usize>),
    ) -> Tensor {
        let (device, rows) = (scope.device, logits.rows());
        let student = self.at(taught.temperature);
        let (teacher, gradient) = match (&taught.teacher, of_teacher) {
            (Teacher::Model { head, scope: of, .. }, Some(x)) => {
                let head = head.at(taught.temperature);
                let known = head.project(of, x);
                assert!(
                    known.cols() == logits.cols() || device.mesh.group(&[Axis::Tp]).size() == 1,
                    "distillation: {} rows of the teacher's vocabulary and {} of the student's are not alike on their ranks",
                    known.cols(),
                    logits.cols()
                );
                let common = known.view_cols(0..known.cols().min(logits.cols()));
                (Some(head), common)
            }
            (Teacher::Uniform, _) => {
                let head = Head { how: HeadUse::default(), ..*self };
                (Some(head), device.zeros(rows, logits.cols(), DType::F32, Category::Activations))
            }
            _ => (None, device.empty(rows, logits.cols(), DType::F32, Category::Activations)),
        };
        let logits = &logits.view_cols(0..gradient.cols());
        let stats = student.known(scope, ids, logits);
        let of_teacher = teacher.map(|head| (head, head.known(scope, ids, &gradient)));
        let best = match taught.teacher {
            Teacher::Best { ids, logps, rest } => {
                Some((ids.view_rows(tokens.clone()), logps.view_rows(tokens.clone()), rest))
            }
            Teacher::Model { .. } | Teacher::Uniform => None,
        };
        let teacher = match (&best, &of_teacher) {
            (Some((ids, logps, rest)), _) => TeacherLogits::Best { ids, logps, rest: *rest },
            (None, Some((head, stats))) => TeacherLogits::Whole {
                logits: &gradient,
                stats,
                scale: head.how.scale,
                softcap: head.how.softcap,
            },
            (None, None) => panic!("distillation: a teacher's hidden states are missing"),
        };
        let parts = device.empty(teacher.parts(), rows, DType::F32, Category::Comm);
        let op = Divergence {
            logits,
            stats: &stats,
            scale: student.how.scale,
            softcap: student.how.softcap,
            teacher,
            labels: ids,
            first: self.first,
            beta: taught.beta,
            parts: &parts,
            out: None,
        };
        let run = |op: &Divergence<'_>| {
            scope.counters.span("head", " divergence", -1, || device.machine.divergence(op));
        };
        run(&op);
        device.mesh.group(&[Axis::Tp]).all_reduce(device, &parts);
        let loss = &taught.losses.view_cols(tokens.clone());
        let weights = &taught.weights.view_cols(tokens.clone());
        let out = DivergenceOutput { loss, dlogits: &gradient, weights, factor: taught.factor };
        run(&Divergence { out: Some(out), ..op });
        gradient
    }

    /// Statistics of a tile from all ranks, f32 [2 x ranks, r], even if one rank has the whole vocabulary.
    fn known(&self, scope: &Scope<'_>, labels: &Tensor, logits: &Tensor) -> Tensor {
        if let Some(all) = self.statistics(scope, (labels, None), logits) {
            return all;
        }
        let empty = |rows| scope.device.empty(rows, logits.rows(), DType::F32, Category::Comm);
        let (stats, loss) = (empty(2), empty(1));
        let spread = Vocabulary { first: self.first, stats: Some(&stats), all: None };
        self.own_statistics(scope, (labels, logits, &loss), (spread, None));
        stats
    }
}
