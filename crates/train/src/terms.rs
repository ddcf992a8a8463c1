//! From the hidden states of a micro batch to the gradient of the objective's terms by them.

use fathom_grad::{Grads, Labels, LossTerm, Measures, Scope, TileLoss};
use fathom_model::Model;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::loaded::{DeviceMicroBatch, StepObjective};
use crate::objective::{Answers, LabelMetrics, ObjectiveSum, Weigh, WeightedLoss};
use crate::teacher::TeacherOutputs;

/// A term with weights of this rank's tokens, and where its losses go, both in the order of the head.
fn in_head<'a>(term: &'a WeightedLoss, weights: Option<Tensor>, losses: Option<&Tensor>) -> LossTerm<'a> {
    LossTerm { loss: &*term.loss, weights, factor: term.weight as f32, losses: losses.cloned() }
}

/// Hidden states as f32.
pub(crate) fn states(device: &Device, y: &Tensor) -> Tensor {
    let states = device.empty(y.rows(), y.cols(), DType::F32, Category::Activations);
    device.machine.copy(y, &states);
    states
}

impl DeviceMicroBatch<'_> {
    /// The gradient of the objective with respect to the hidden states `y` of this rank's tokens, [t, d]. Adds the
    /// head's own gradients to `grads` and the objective to its sums; `asked` is the result of [`DeviceMicroBatch::ask`]. The
    /// z-loss applies only to objectives with constant weights.
    pub fn minimise(
        &self,
        model: &Model,
        minimised: &StepObjective<'_>,
        scope: &Scope<'_>,
        (y, asked): (&Tensor, Option<&TeacherOutputs>),
        grads: &mut Grads,
    ) -> Tensor {
        if let Some(weigh) = minimised.goal.objective.weigh() {
            return self.minimise_weighed(model, (minimised, weigh), scope, y, grads);
        }
        // With constant weights, one pass over the logits is enough.
        let of_teacher = self.of_teacher(minimised, scope);
        let teacher = self.teacher(minimised, (of_teacher.as_ref(), asked));
        let terms = minimised.goal.objective.terms();
        let chosen = self.chosen.as_ref();
        let own = chosen.map(|chosen| chosen.gather(scope.device, y));
        let y = own.as_ref().unwrap_or(y);
        let losses = self.rows(scope.device, terms.len());
        let measures = self.measures(scope.device, minimised);
        let labels = Labels { measures, teacher, ..self.labels.clone() };
        let with = terms.iter().zip(&losses);
        let all: Vec<LossTerm<'_>> =
            with.map(|(term, losses)| in_head(term, self.weights.clone(), Some(losses))).collect();
        let dy = model.head(minimised.z_loss).loss(scope, y, &labels, &all, grads);
        if let (Some(projections), Some(asked)) = (model.projections(), asked) {
            projections.learn(scope, &asked.projected.take(), grads);
        }
        self.add_up(scope.device, minimised, &terms, &losses);
        drop(own);
        chosen.map_or_else(|| dy.clone(), |chosen| chosen.scatter(scope.device, &dy))
    }

    /// Adds the terms to the objective's sum, and to those that are reported.
    fn add_up(
        &self,
        device: &Device,
        minimised: &StepObjective<'_>,
        terms: &[WeightedLoss],
        losses: &[Tensor],
    ) {
        let (machine, objective) = (&device.machine, &minimised.goal.objective);
        // The weighted sum is what `dy` differentiates; a weight of one changes no bit.
        if let Some(weights) = &self.weights {
            losses.iter().for_each(|losses| machine.multiply(losses, weights, losses));
        }
        if let ([term], [losses]) = (terms, losses)
            && term.weight == 1.0
        {
            return machine.sum(losses, minimised.loss);
        }
        device.pool.enter("objective", -1);
        let (sum, reported) = (device.empty(1, 1, DType::F32, Category::Data), objective.measures().len());
        for (index, (term, losses)) in terms.iter().zip(losses).enumerate() {
            machine.zero(&sum);
            machine.sum(losses, &sum);
            if let Some(sums) = minimised.terms.filter(|_| index < reported) {
                let reported = &sums.view_rows(index..index + 1);
                machine.add(reported, &sum, reported);
            }
            machine.scale(&sum, term.weight as f32, &sum);
            machine.add(minimised.loss, &sum, minimised.loss);
        }
        if machine.has_data() && device.mesh.index(Axis::Cp) == 0 {
            let count = objective.count(self.micro);
            minimised.metrics.borrow_mut()[..reported].iter_mut().for_each(|sum| sum[1] += count);
        }
    }

    /// With weights that follow from the losses: those first, then the gradient in a second pass over the logits.
    fn minimise_weighed(
        &self,
        model: &Model,
        (minimised, weigh): (&StepObjective<'_>, &dyn Weigh),
        scope: &Scope<'_>,
        y: &Tensor,
        grads: &mut Grads,
    ) -> Tensor {
        let (device, head) = (scope.device, model.head(0.0));
        let terms = minimised.goal.objective.terms();
        let values = if weigh.states() {
            Some(states(device, y))
        } else {
            weigh.scores().then(|| model.scores().values(scope, y))
        };
        let losses = self.rows(device, terms.len());
        if !terms.is_empty() {
            let labels = Labels { measures: self.measures(device, minimised), ..self.labels.clone() };
            let with = terms.iter().zip(&losses);
            let all: Vec<LossTerm<'_>> =
                with.map(|(term, losses)| in_head(term, None, Some(losses))).collect();
            head.losses(scope, y, &labels, &all);
        }
        let weighed = self.weigh(scope, weigh, (&terms, &losses, values.as_ref()), minimised);
        drop(losses);
        let learned = terms.iter().enumerate().filter(|(_, term)| term.weight != 0.0);
        let weights = |index: usize| Some(self.own(device, weighed.by(index), self.losses.cols()));
        let all: Vec<LossTerm<'_>> =
            learned.map(|(index, term)| in_head(term, weights(index), None)).collect();
        let dy = if all.is_empty() {
            device.zeros(y.rows(), y.cols(), y.dtype(), Category::Activations)
        } else {
            head.loss(scope, y, &self.labels, &all, grads)
        };
        if let Some(values) = values {
            let dvalues = self.own_scores(scope, &weighed.scores, values.cols());
            if weigh.states() {
                device.machine.copy(&dvalues, &dy);
                return dy;
            }
            model.scores().backward(scope, y, &dvalues, &dy, grads);
        }
        dy
    }

    /// f32 [1, t] for each of so many terms.
    fn rows(&self, device: &Device, terms: usize) -> Vec<Tensor> {
        let more = || device.empty(1, self.losses.cols(), DType::F32, Category::Data);
        (0..terms).map(|index| if index == 0 { self.losses.clone() } else { more() }).collect()
    }

    /// Accumulators for label metrics, if there are any; also adds to their denominators.
    fn measures(&self, device: &Device, minimised: &StepObjective<'_>) -> Option<Measures> {
        let StepObjective { goal, metrics, terms: Some(terms), .. } = *minimised else { return None };
        let (measured, micro) = (goal.measured(), self.micro);
        if measured == LabelMetrics::Nothing {
            return None;
        }
        let (first, chosen) = (goal.sums() - 2, measured.chosen(micro));
        if device.machine.has_data() && device.mesh.index(Axis::Cp) == 0 {
            let labelled = |at: &usize| micro.labels[*at] >= 0;
            let counts = |at: &usize| chosen.as_ref().is_none_or(|chosen| chosen[*at] != 0.0);
            let all = (0..micro.labels.len()).filter(labelled);
            let mut sums = metrics.borrow_mut();
            sums[first][1] += all.clone().count() as f64;
            sums[first + 1][1] += all.filter(counts).count() as f64;
        }
        let of = chosen.map(|chosen| self.own(device, &chosen, self.losses.cols()));
        Some(Measures { sums: terms.view_rows(first..first + 2), of, hits: None })
    }

    /// A loss of all labels of the stream, in its order; nothing on a machine without data.
    pub fn losses(&self, model: &Model, scope: &Scope<'_>, y: &Tensor, loss: &dyn TileLoss) -> Vec<f32> {
        model.head(0.0).losses(scope, y, &self.labels, &[LossTerm::of(loss, &self.losses)]);
        self.stream(scope.device, &self.losses, 0, 1)
    }

    /// Weighs this micro-batch by the objective; zeros on a machine without data.
    fn weigh(
        &self,
        scope: &Scope<'_>,
        weigh: &dyn Weigh,
        (terms, losses, values): (&[WeightedLoss], &[Tensor], Option<&Tensor>),
        minimised: &StepObjective<'_>,
    ) -> ObjectiveSum {
        let device = scope.device;
        device.pool.enter("objective", -1);
        let losses: Vec<Vec<f32>> = losses.iter().map(|losses| self.stream(device, losses, 0, 1)).collect();
        let scores = values.map_or_else(Vec::new, |values| self.scores(scope, values));
        let loss = device.zeros(1, 1, DType::F32, Category::Data);
        let mut weighed = ObjectiveSum::default();
        if device.machine.has_data() {
            let (first, others) = losses.split_first().map_or((&[][..], &[][..]), |(a, b)| (a, b));
            let (padding, at_first) = (self.padding, self.at_first);
            let of = Answers::of(self.micro, first);
            let answers = Answers { others, scores: &scores, padding, at_first, ..of };
            weighed = weigh.weigh(&answers);
            let mut learned = terms.iter().enumerate().filter(|(_, term)| term.weight != 0.0);
            let fit = weighed.scores.len() == scores.len()
                && learned.all(|(index, _)| weighed.by(index).len() == losses[index].len());
            assert!(fit, "objective: it gives a derivative for each score, and for each token of its terms");
            // Ranks that share a stream have the same sums; only the first of them counts.
            if device.mesh.index(Axis::Cp) == 0 {
                device.machine.write(&loss, &(weighed.loss as f32).to_le_bytes());
                for (sum, more) in minimised.metrics.borrow_mut().iter_mut().zip(&weighed.metrics) {
                    *sum = [sum[0] + more[0], sum[1] + more[1]];
                }
            }
        }
        device.machine.sum(&loss, minimised.loss);
        weighed
    }
}
