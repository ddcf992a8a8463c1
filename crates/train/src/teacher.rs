//! The teacher that runs in a step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_grad::{Counters, Eval, Places, ProjectedState, Scope, Tables, Teacher};
use fathom_model::LoadedModel;
use fathom_tensor::{Device, Tensor};

use crate::hidden_loss::HiddenLoss;
use crate::loaded::{DeviceMicroBatch, StepObjective};
use crate::objective::TeacherUse;
use crate::teacher_inputs::TeacherInputs;

/// A teacher's outputs for a micro-batch.
pub(crate) struct TeacherOutputs {
    /// Its hidden states before the head, [t, d].
    pub y: Tensor,
    /// Its residual stream, by number of blocks before it.
    pub states: BTreeMap<usize, Tensor>,
    /// Inputs of the projections of the student's stream and the gradients of their outputs, from the student's forward
    /// pass.
    pub projected: Rc<RefCell<Vec<ProjectedState>>>,
}

impl DeviceMicroBatch<'_> {
    /// Runs the teacher over this rank's rows. This comes before the student's forward pass, so that none of the
    /// student's activations are in memory yet.
    pub fn ask(
        &self,
        device: &Device,
        minimised: &StepObjective<'_>,
        (places, counters): (&Places, &Counters),
    ) -> Option<TeacherOutputs> {
        let (Some(TeacherInputs::Model(batch)), Some(LoadedModel { model, params, .. })) =
            (&self.known, minimised.teacher)
        else {
            return None;
        };
        // Separate counters: the teacher's experts are not the student's.
        let own = Counters::default();
        let scope = Scope { device, params, batch: Tables::Shared(batch.clone()), counters: &own };
        let hidden = minimised.goal.objective.teacher().and_then(|teacher| teacher.hidden);
        let mut run = Eval::new(scope, places.tile_rows, None)
            .with_taps(hidden.map_or_else(Vec::new, HiddenLoss::of_teacher));
        let y = model.forward(&mut run);
        let states = run.into_taps();
        let counted = own.get();
        counters.add(counted.model_flops as u64, counted.hardware_flops as u64);
        Some(TeacherOutputs { y, states, projected: Rc::default() })
    }

    /// Over whose weights a teacher's head runs, if a model teaches.
    pub fn of_teacher<'b>(&'b self, minimised: &StepObjective<'b>, scope: &Scope<'b>) -> Option<Scope<'b>> {
        let (Some(TeacherInputs::Model(batch)), Some(LoadedModel { params, .. })) =
            (&self.known, minimised.teacher)
        else {
            return None;
        };
        let batch = Tables::Shared(batch.clone());
        Some(Scope { device: scope.device, params, batch, counters: scope.counters })
    }

    /// The teacher's distributions, if the objective has a teacher; `asked` is what [`DeviceMicroBatch::ask`] gave.
    pub fn teacher<'b>(
        &'b self,
        minimised: &StepObjective<'_>,
        (scope, asked): (Option<&'b Scope<'b>>, Option<&'b TeacherOutputs>),
    ) -> Option<Teacher<'b>> {
        let TeacherUse { best, .. } = minimised.goal.objective.teacher()?;
        Some(match (&self.known, minimised.teacher, scope, asked) {
            (Some(TeacherInputs::Best([ids, logps])), ..) => {
                Teacher::Best { ids, logps, rest: best.is_some_and(|best| best.rest) }
            }
            (_, Some(LoadedModel { model, .. }), Some(scope), Some(asked)) => {
                Teacher::Model { head: model.head(0.0), scope, x: &asked.y }
            }
            _ => panic!("distillation: the teacher was not asked"),
        })
    }
}
