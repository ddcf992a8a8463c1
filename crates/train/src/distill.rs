//! Distillation: besides the labels, a student learns a teacher's distribution of the next token. The teacher is a
//! frozen model that runs in the same step, with its whole vocabulary, or a column of its best tokens stored with the
//! text.
//!
//! A step minimises the weighted mean of `(1 - ratio) CE + ratio D` over tokens with labels, where D is the divergence
//! of [`fathom_tensor::Divergence`] at the temperature, not multiplied by the squared temperature. Distances of hidden
//! states ([`HiddenLoss`]) are added to it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_grad::{
    Batch, Counters, DivergenceLoss, Eval, Places, ProjectedState, Scope, Sharing, Tables, Teacher,
};
use fathom_model::{LoadedModel, PackedTokens};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::hidden::HiddenLoss;
use crate::loaded::{DeviceMicroBatch, StepObjective};
use crate::micro_batch::MicroBatch;
use crate::objective::{Best, CrossEntropy, LabelMetrics, Objective, TeacherUse, WeightedLoss};
use crate::step::InStep;

/// How a student learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Distill {
    /// Kind of divergence: 0 is forward KL, 1 reverse, values between are generalised Jensen-Shannon.
    pub beta: f64,
    /// Divides the logits of both models.
    pub temperature: f64,
    /// Weight of the divergence; cross-entropy has the rest.
    pub ratio: f64,
    /// Uses only the teacher's best tokens, which the micro-batch has.
    pub best: Option<Best>,
    /// Hidden states to compare as well, with a teacher that runs in the step.
    pub hidden: Option<HiddenLoss>,
}

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

impl Objective for Distill {
    fn name(&self) -> &'static str {
        "distill"
    }

    /// Labels, weighted.
    fn count(&self, micro: &MicroBatch) -> f64 {
        CrossEntropy.count(micro)
    }

    fn terms(&self) -> Vec<WeightedLoss> {
        let divergence = DivergenceLoss { beta: self.beta as f32, temperature: self.temperature };
        vec![
            WeightedLoss { weight: 1.0 - self.ratio, ..WeightedLoss::cross_entropy() },
            WeightedLoss::new(self.ratio, divergence),
        ]
    }

    fn teacher(&self) -> Option<TeacherUse<'_>> {
        Some(TeacherUse { best: self.best, hidden: self.hidden.as_ref() })
    }

    fn measured(&self) -> LabelMetrics {
        LabelMetrics::Both
    }
}

/// The teacher's side of a micro-batch, on the machine.
pub(crate) enum TeacherInputs {
    /// Tables of the teacher that runs in the step.
    Model(Rc<Batch>),
    /// Ids (i32) and log-probabilities (f32), [t, k], in the order of the head.
    Best([Tensor; 2]),
}

impl TeacherInputs {
    /// The teacher's side of a micro-batch: `order` gives this rank's tokens in the order of its head, `tokens` their
    /// number. `None` if the objective has no teacher.
    pub fn new(
        (device, how): (&Device, &InStep),
        teacher: Option<&LoadedModel>,
        micro: &MicroBatch,
        (sharing, order): (&Sharing<'_>, &dyn Fn() -> Vec<usize>),
        tokens: usize,
    ) -> Option<TeacherInputs> {
        let teacher_use = how.goal.objective.teacher()?;
        let Some(Best { tokens: k, .. }) = teacher_use.best else {
            let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
            let model = &teacher?.model;
            return Some(TeacherInputs::Model(Rc::new(model.batch_of(device, packed, how.caps, sharing))));
        };
        if !device.machine.has_data() {
            let empty = |dtype| device.empty(tokens, k, dtype, Category::Data);
            return Some(TeacherInputs::Best([empty(DType::I32), empty(DType::F32)]));
        }
        let order = order();
        // A label's ids and log-probabilities alternate; a stream without labels has none.
        let column = |odd: usize| -> Vec<f32> {
            let value =
                |token: usize, at: usize| micro.best.get((token * k + at) * 2 + odd).copied().unwrap_or(0.0);
            order
                .iter()
                .flat_map(|token| (0..k).map(move |at| (*token, at)))
                .map(|(t, at)| value(t, at))
                .collect()
        };
        let ids: Vec<i32> = column(0).iter().map(|id| *id as i32).collect();
        let ids = device.from_i32(&ids, Category::Data).reshape(tokens, k);
        Some(TeacherInputs::Best([ids, device.from_f32(tokens, k, &column(1), Category::Data)]))
    }
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
