//! A teacher's inputs for a micro-batch, on the machine.

use std::rc::Rc;

use fathom_grad::{Batch, SharedStream};
use fathom_model::{LoadedModel, PackedTokens};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::in_step::InStep;
use crate::micro_batch::MicroBatch;
use crate::objective::Best;

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
        (sharing, order): (&SharedStream<'_>, &dyn Fn() -> Vec<usize>),
        tokens: usize,
    ) -> Option<TeacherInputs> {
        let teacher_use = how.goal.objective.teacher()?;
        let Some(Best { tokens: k, .. }) = teacher_use.best else {
            let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
            let model = &teacher?.model;
            // Its layers may pass no states, or read more rows.
            let sharing = &SharedStream { states: None, ..*sharing };
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
