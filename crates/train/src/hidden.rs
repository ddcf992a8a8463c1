//! Distillation of hidden states: at given pairs of layers the student's residual stream learns to match the teacher's
//! (TinyBERT, Jiao and others, 2020; the intermediate states of Minitron's distillation). Distance and gradient are
//! computed during the student's forward pass, and the gradient is added to the stream's in the backward pass. If the
//! teacher's width differs, a projection per pair is trained with the student (equation 8 of TinyBERT), and its output
//! is compared.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_grad::{ProjectedState, Pull, ResidentProjections, Scope};
use fathom_model::{Model, Spec, StateProjections};
use fathom_tensor::{Category, DType, Device, RowDistance, Tensor};

use crate::error::{Error, Result};
use crate::hidden_loss::HiddenLoss;
use crate::in_step::InStep;
use crate::loaded::{DeviceMicroBatch, StepObjective};
use crate::teacher::TeacherOutputs;

/// Refuses pairs of states that cannot be compared in a step.
///
/// # Errors
/// Layers that a model does not have, different widths, ranks that hold only some of the rows, and several blocks
/// recomputed as one.
pub(crate) fn check_hidden(spec: &Spec, teacher: &Spec, how: &InStep) -> Result<()> {
    let Some(hidden) = how.goal.objective.teacher().and_then(|teacher| teacher.hidden) else {
        return Ok(());
    };
    let refuse = |key: &str, message: String| Err(Error::Recipe { key: key.into(), message });
    let layers = [spec.layers.len(), teacher.layers.len()];
    for pair in &hidden.pairs {
        if pair.iter().zip(&layers).any(|(blocks, layers)| blocks > layers) {
            let [student, of_teacher] = *pair;
            let message = format!(
                "has \"{student}:{of_teacher}\", and the student has {} blocks and the teacher {}",
                layers[0], layers[1]
            );
            return refuse("objective.hidden_pairs", message);
        }
    }
    let wanted = (spec.hidden != teacher.hidden)
        .then_some(StateProjections { count: hidden.pairs.len(), columns: teacher.hidden });
    if spec.projections != wanted {
        let message = format!(
            "compares states of {} columns with the teacher's of {}, for which the model has {:?}",
            spec.hidden, teacher.hidden, spec.projections
        );
        return refuse("objective.hidden_pairs", message);
    }
    if wanted.is_some() && !how.goal.trained.is_all() {
        let message = format!(
            "compares states of {} columns with the teacher's of {} through projections, which are trained with all of the model's \
             weights; leave out model.trained and adapter.method, or objective.hidden_pairs",
            spec.hidden, teacher.hidden
        );
        return refuse("objective.hidden_pairs", message);
    }
    if how.ranks.grid.tp > 1 && how.ranks.grid.sequence_parallel {
        let message = "gives each rank some of the rows, and hidden states are compared row by row of whole ones; give false";
        return refuse("mesh.sequence_parallel", message.into());
    }
    if how.places.segment_layers > 1 {
        let message = "recomputes several blocks as one, between which no hidden state is seen; give 1";
        return refuse("activations.recompute_num_layers", message.into());
    }
    Ok(())
}

impl DeviceMicroBatch<'_> {
    /// A callback that compares the student's hidden states with the teacher's states in `asked`, if the objective does
    /// so.
    pub fn pull(
        &self,
        (model, scope): (&Model, &Scope<'_>),
        minimised: &StepObjective<'_>,
        asked: Option<&mut TeacherOutputs>,
    ) -> Option<Pull> {
        let hidden = minimised.goal.objective.teacher()?.hidden?.clone();
        let (labels, weights) = (self.labels.ids.clone(), self.weights.clone()?);
        let (asked, device) = (asked?, scope.device);
        let states = RefCell::new(std::mem::take(&mut asked.states));
        let projecting = model.projections().map(|all| (all.fetch(scope), asked.projected.clone()));
        // Their metrics come after the terms.
        let at = minimised.goal.objective.terms().len();
        let (loss, term) = (minimised.loss.clone(), minimised.terms?.view_rows(at..at + 1));
        let device = device.clone();
        Some(Box::new(move |blocks, x| {
            let row = [&labels, &weights];
            let projecting = projecting.as_ref();
            let compared =
                Comparison { hidden: &hidden, device: &device, row, sums: [&loss, &term], projecting };
            compared.at(blocks, x, &mut states.borrow_mut())
        }))
    }
}

/// Inputs of a comparison.
struct Comparison<'a> {
    hidden: &'a HiddenLoss,
    device: &'a Device,
    /// Labels and weights.
    row: [&'a Tensor; 2],
    /// Sums of the loss and of the mean distance.
    sums: [&'a Tensor; 2],
    /// Projections to the teacher's width, and the list for their inputs and gradients.
    projecting: Option<&'a (ResidentProjections, Rc<RefCell<Vec<ProjectedState>>>)>,
}

impl Comparison<'_> {
    /// The gradient with respect to the stream `x` after `blocks` blocks, if it is compared there. It takes the buffer
    /// of the teacher's state, which is removed from `states`, unless a later pair needs that state.
    fn at(&self, blocks: usize, x: &Tensor, states: &mut BTreeMap<usize, Tensor>) -> Option<Tensor> {
        let Comparison { hidden, device, row: [labels, weights], sums: [loss, term], projecting } = *self;
        let (machine, each) = (&device.machine, 1.0 / hidden.pairs.len() as f64);
        let mut gradient: Option<Tensor> = None;
        for (index, [_, teacher]) in hidden.pairs.iter().enumerate().filter(|(_, pair)| pair[0] == blocks) {
            device.pool.enter("distill", -1);
            let again = hidden.pairs[index + 1..].iter().any(|[_, other]| other == teacher);
            let target = if again { states.get(teacher).cloned() } else { states.remove(teacher) };
            let target = target
                .unwrap_or_else(|| panic!("distillation: the teacher was not asked for block {teacher}"));
            let seen = projecting.map(|(all, _)| all.forward(device, index, x));
            let seen = seen.as_ref().unwrap_or(x);
            let dx = if again {
                device.empty(seen.rows(), seen.cols(), seen.dtype(), Category::Activations)
            } else {
                target.clone()
            };
            let (rows, sum) = (
                device.empty(1, x.rows(), DType::F32, Category::Data),
                device.zeros(1, 1, DType::F32, Category::Data),
            );
            machine.row_distance(&RowDistance {
                distance: hidden.distance,
                x: seen,
                target: &target,
                labels,
                weights,
                factor: (hidden.weight * each) as f32,
                loss: &rows,
                dx: &dx,
            });
            machine.multiply(&rows, weights, &rows);
            machine.sum(&rows, &sum);
            machine.scale(&sum, each as f32, &sum);
            machine.add(term, &sum, term);
            machine.scale(&sum, hidden.weight as f32, &sum);
            machine.add(loss, &sum, loss);
            let dx = match projecting {
                Some((all, projected)) => {
                    let by_x = all.backward(device, index, &dx);
                    projected.borrow_mut().push(ProjectedState { index, x: x.clone(), dy: dx });
                    by_x
                }
                None => dx,
            };
            match &gradient {
                Some(all) => machine.add(all, &dx, all),
                None => gradient = Some(dx),
            }
        }
        gradient
    }
}
