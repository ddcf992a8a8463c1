//! Distillation: a student learns a teacher's distribution of the next token besides the labels. The teacher is a frozen model of the
//! same step, whose whole vocabulary counts, or a column of its best tokens next to the text.
//!
//! A step minimises the weighted mean of `(1 - ratio) CE + ratio D` over tokens with labels, where D is the divergence of
//! [`fathom_tensor::Divergence`] at the temperature. It is not multiplied by the squared temperature. Distances of hidden states
//! ([`Hidden`]) are added to it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_grad::{
    Batch, Counters, CrossEntropyLoss, DivergenceLoss, Eval, Grads, Labels, LossTerm, Params, Places,
    ProjectedState, Scope, Sharing, Tables, Teacher,
};
use fathom_model::{Model, PackedTokens};
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::hidden::Hidden;
use crate::loaded::{Loaded, Minimised};
use crate::micro_batch::MicroBatch;
use crate::objective::{CrossEntropy, Measured, Objective, Weigh};
use crate::step::InStep;

/// A teacher: a model that is not trained.
pub struct Frozen {
    /// Its architecture.
    pub model: Model,
    /// Its weights, on the trainer's device.
    pub params: Params,
}

/// How a student learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Distill {
    /// Of the divergence: 0 forward, 1 reverse, between them Jensen and Shannon's.
    pub beta: f64,
    /// Divides the logits of both.
    pub temperature: f64,
    /// Share of the divergence; the rest is the cross-entropy's.
    pub ratio: f64,
    /// The teacher's best tokens alone, from the micro batch.
    pub best: Option<Best>,
    /// Hidden states that are compared besides, of a teacher that runs with the step.
    pub hidden: Option<Hidden>,
}

/// Best tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// How many of each label.
    pub tokens: usize,
    /// What is left of the mass is one more token; else the best are made to sum to one.
    pub rest: bool,
}

const METRICS: [&str; 3] = ["cross_entropy", "divergence", "hidden_distance"];

/// Which of them is of hidden states.
pub(crate) const HIDDEN: usize = 2;

/// What a teacher said of a micro batch.
pub(crate) struct Asked {
    /// Its hidden states before the head, [t, d].
    pub y: Tensor,
    /// Its residual stream after so many blocks.
    pub states: BTreeMap<usize, Tensor>,
    /// What projections of the student's stream read and what their loss says of what they wrote: from its forward pass.
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

    fn weigh(&self) -> Option<&dyn Weigh> {
        None
    }

    fn distils(&self) -> Option<&Distill> {
        Some(self)
    }

    fn measures(&self) -> &[&'static str] {
        if self.hidden.is_some() { &METRICS } else { &METRICS[..HIDDEN] }
    }

    fn measured(&self) -> Measured {
        Measured::Both
    }
}

/// What a micro batch has of a teacher, on the machine.
pub(crate) enum Known {
    /// The tables of the model that runs.
    Model(Rc<Batch>),
    /// i32 and f32 [t, k], in the order of the head.
    Best([Tensor; 2]),
}

impl Known {
    /// That of a micro batch; `order` are the tokens of this rank in the order of its head, `tokens` how many. Nothing if the objective
    /// asks no teacher.
    pub fn new(
        (device, how): (&Device, &InStep),
        teacher: Option<&Frozen>,
        micro: &MicroBatch,
        (sharing, order): (&Sharing<'_>, &dyn Fn() -> Vec<usize>),
        tokens: usize,
    ) -> Option<Known> {
        let distill = how.goal.objective.distils()?;
        let Some(Best { tokens: k, .. }) = distill.best else {
            let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
            let model = &teacher?.model;
            return Some(Known::Model(Rc::new(model.batch_of(device, packed, how.caps, sharing))));
        };
        if !device.machine.has_data() {
            let empty = |dtype| device.empty(tokens, k, dtype, Category::Data);
            return Some(Known::Best([empty(DType::I32), empty(DType::F32)]));
        }
        let order = order();
        // Each label's ids and log-probabilities alternate; a stream without labels has none.
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
        Some(Known::Best([ids, device.from_f32(tokens, k, &column(1), Category::Data)]))
    }
}

impl Loaded<'_> {
    /// What a teacher that runs with the step says, of this rank's rows: before the student's forward pass, so that no
    /// activation of that is there yet.
    pub fn ask(
        &self,
        device: &Device,
        minimised: &Minimised<'_>,
        (places, counters): (&Places, &Counters),
    ) -> Option<Asked> {
        let (Some(Known::Model(batch)), Some(Frozen { model, params })) = (&self.known, minimised.teacher)
        else {
            return None;
        };
        // Of its own: experts of the teacher are not the student's.
        let own = Counters::default();
        let scope = Scope { device, params, batch: Tables::Shared(batch.clone()), counters: &own };
        let hidden = minimised.goal.objective.distils().and_then(|distill| distill.hidden.as_ref());
        let mut run = Eval::new(scope, places.tile_rows, None)
            .with_taps(hidden.map_or_else(Vec::new, Hidden::of_teacher));
        let y = model.forward(&mut run);
        let states = run.into_taps();
        let counted = own.get();
        counters.add(counted.model_flops as u64, counted.hardware_flops as u64);
        Some(Asked { y, states, projected: Rc::default() })
    }

    /// As [`Loaded::judge`], of an objective with a teacher; `asked` is what [`Loaded::ask`] gave.
    pub fn learn(
        &self,
        (model, distill): (&Model, &Distill),
        minimised: &Minimised<'_>,
        scope: &Scope<'_>,
        (y, asked): (&Tensor, Option<&Asked>),
        grads: &mut Grads,
    ) -> Tensor {
        let Scope { device, counters, .. } = *scope;
        let machine = &device.machine;
        let (Some(weights), Some(known)) = (&self.weights, &self.known) else {
            panic!("distillation: a micro batch without weights or without a teacher");
        };
        device.pool.enter("distill", -1);
        let losses = device.empty(1, weights.cols(), DType::F32, Category::Data);
        let of_teacher = match (known, minimised.teacher) {
            (Known::Model(batch), Some(Frozen { params, .. })) => {
                Some(Scope { device, params, batch: Tables::Shared(batch.clone()), counters })
            }
            _ => None,
        };
        let teacher = match (known, minimised.teacher, &of_teacher, asked) {
            (Known::Best([ids, logps]), ..) => {
                Teacher::Best { ids, logps, rest: distill.best.is_some_and(|best| best.rest) }
            }
            (_, Some(Frozen { model, .. }), Some(scope), Some(asked)) => {
                Teacher::Model { head: model.head(0.0), scope, x: &asked.y }
            }
            _ => panic!("distillation: the teacher was not asked"),
        };
        let measures = self.measures(device, minimised);
        let labels = Labels { measures, teacher: Some(teacher), ..self.labels.clone() };
        let divergence = DivergenceLoss { beta: distill.beta as f32, temperature: distill.temperature };
        let term = |loss, factor: f64, losses: &Tensor| LossTerm {
            weights: Some(weights.clone()),
            factor: factor as f32,
            ..LossTerm::of(loss, losses)
        };
        let terms = [
            term(&CrossEntropyLoss::PLAIN, 1.0 - distill.ratio, &self.losses),
            term(&divergence, distill.ratio, &losses),
        ];
        let dy = model.head(0.0).loss(scope, y, &labels, &terms, grads);
        if let (Some(projections), Some(asked)) = (model.projections(), asked) {
            projections.learn(scope, &asked.projected.take(), grads);
        }
        device.pool.enter("distill", -1);
        let sum = device.empty(1, 1, DType::F32, Category::Data);
        for (index, (losses, share)) in
            [(&self.losses, 1.0 - distill.ratio), (&losses, distill.ratio)].into_iter().enumerate()
        {
            machine.multiply(losses, weights, losses);
            machine.zero(&sum);
            machine.sum(losses, &sum);
            if let Some(terms) = minimised.terms {
                let term = &terms.view_rows(index..index + 1);
                machine.add(term, &sum, term);
            }
            machine.scale(&sum, share as f32, &sum);
            machine.add(minimised.loss, &sum, minimised.loss);
        }
        if machine.has_data() && device.mesh.index(fathom_tensor::mesh::Axis::Cp) == 0 {
            let count = CrossEntropy.count(self.micro);
            minimised.metrics.borrow_mut()[..distill.measures().len()]
                .iter_mut()
                .for_each(|sum| sum[1] += count);
        }
        dy
    }
}
