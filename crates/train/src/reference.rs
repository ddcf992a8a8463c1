//! A model that a step's micro batches are compared with, in the run itself, and the pass over them before the step learns.
//!
//! The reference is a frozen copy of the weights that the run starts from, or the base of an adapter, which takes no memory. Its
//! log-probabilities are what a column next to the tokens would have, so the objectives do not know where they are from. A copy may move
//! after the policy (TR-DPO: Gorbatovski and others, 2024).

use std::borrow::Borrow;
use std::rc::Rc;

use fathom_grad::{Params, Value};
use fathom_model::Model;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType};

use crate::micro_batch::{MicroBatch, Totals};
use crate::objective::Answers;
use crate::pass::Pass;
use crate::step::{InStep, Trainer};

/// Rows of a weight that move together.
const TILE_ROWS: usize = 256;

/// Which model a step asks besides its own; for plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refers {
    /// None: micro batches have what they need.
    #[default]
    Not,
    /// A frozen copy of the start.
    Copy,
    /// The policy without its adapter.
    AdapterOff,
}

/// How a copy moves: every so many steps `reference <- alpha policy + (1 - alpha) reference`; with 1 it becomes the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sync {
    /// The policy's share.
    pub alpha: f32,
    /// Steps between two moves.
    pub steps: u64,
}

/// The model that answers are compared with.
pub struct Reference {
    model: Model,
    /// Its own weights, which policies over one base share; the policy's if none.
    params: Option<Rc<Params>>,
    sync: Option<Sync>,
}

impl Reference {
    /// A copy, with weights of the same parts as the policy's.
    pub fn copy(model: Model, params: Params, sync: Option<Sync>) -> Reference {
        Reference { model, params: Some(Rc::new(params)), sync }
    }

    /// A policy without its adapter, over its weights.
    pub fn adapter_off(policy: &Model) -> Reference {
        Reference { model: policy.without_adapter(), params: None, sync: None }
    }

    /// The same to another policy over the same base: a copy stays where it is, and the other without its adapter is the base.
    fn of_other(&self, policy: &Model) -> Reference {
        match &self.params {
            Some(_) => Reference { model: self.model.clone(), params: self.params.clone(), sync: self.sync },
            None => Reference::adapter_off(policy),
        }
    }

    /// A pass that asks it, in the place of a trainer's model.
    pub(crate) fn pass<'a>(&'a self, trainer: &'a Trainer, how: &'a InStep) -> Pass<'a> {
        let params = self.params.as_deref().unwrap_or(&trainer.params);
        Pass { model: &self.model, params, ..trainer.pass(how) }
    }

    /// Its weights, if they are its own and change.
    pub(crate) fn moving(&self) -> Option<&Params> {
        self.params.as_deref().filter(|_| self.sync.is_some())
    }
}

impl Trainer {
    /// Has micro batches compared with this model from here on.
    pub fn refer_to(&mut self, reference: Reference) {
        self.reference = Some(reference);
    }

    /// Asks the models that another adapter over the same base asks, each of which is in memory once: a teacher, and what micro batches
    /// are compared with.
    pub fn ask_whom(&mut self, other: &Trainer) {
        self.teacher.clone_from(&other.teacher);
        self.reference = other.reference.as_ref().map(|reference| reference.of_other(&self.model));
    }

    /// A pass that asks the policy.
    pub(crate) fn pass<'a>(&'a self, how: &'a InStep) -> Pass<'a> {
        let Trainer { device, model, params, counters, .. } = self;
        Pass { device, model, params, counters, how }
    }

    /// The model that micro batches are compared with, if it is in memory.
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    /// Micro batches with what the reference says of them, and with what the objective has to know of all of the step's together; `None`
    /// where they have all that.
    pub(crate) fn look_ahead(
        &self,
        micro_batches: &[impl Borrow<MicroBatch>],
        how: &InStep,
    ) -> Option<Vec<MicroBatch>> {
        let weigh = how.goal.objective.weigh()?;
        let terms = how.goal.objective.terms();
        let first = &*terms.first()?.loss;
        let device = &self.device;
        // Alone in its step a micro batch knows all by itself.
        let others = micro_batches.len() > 1 || device.mesh.size(Axis::Dp) > 1;
        let looks = weigh.looks_ahead() && others;
        let reference = self.reference.as_ref().filter(|_| weigh.asks_reference());
        if reference.is_none() && !looks {
            return None;
        }
        let mut all: Vec<MicroBatch> = micro_batches.iter().map(|micro| micro.borrow().clone()).collect();
        if let Some(reference) = reference {
            let pass = reference.pass(self, how);
            for micro in &mut all {
                let losses = pass.losses(micro, first);
                micro.reference = losses.into_iter().map(|loss| -loss).collect();
            }
        }
        if looks {
            let pass = self.pass(how);
            let ahead = all.iter().map(|micro| {
                let losses = pass.losses(micro, first);
                if losses.is_empty() { [0.0; 2] } else { weigh.ahead(&Answers::of(micro, &losses)) }
            });
            let [sum, count] =
                ahead.fold([0.0; 2], |sums: [f64; 2], more| [sums[0] + more[0], sums[1] + more[1]]);
            device.pool.enter("objective", -1);
            let sums = device.from_f32(1, 2, &[sum as f32, count as f32], Category::Data);
            device.mesh.group(&[Axis::Dp]).all_reduce(device, &sums);
            if let [sum, count] = device.to_f32(&sums)[..] {
                for micro in &mut all {
                    let ahead = Some([sum, count].map(f64::from));
                    micro.step = Some(Totals { ahead, ..micro.step.unwrap_or_else(|| micro.totals()) });
                }
            }
        }
        Some(all)
    }

    /// After so many steps of a run: moves the reference, if it is due. Ranks with the same weights call this together.
    pub fn move_reference(&mut self, step: u64) {
        let Trainer { device, params, reference, .. } = self;
        let Some(Reference { params: Some(own), sync: Some(Sync { alpha, steps }), .. }) = reference else {
            return;
        };
        if !step.is_multiple_of((*steps).max(1)) {
            return;
        }
        params.settle(device);
        device.pool.enter("reference", -1);
        let part = |value: &Value| value.own_part().tensor();
        for ((_, from), (_, to)) in params.iter().zip(own.iter()) {
            let (from, to) = (part(&from.value), part(&to.value));
            for start in (0..from.rows()).step_by(TILE_ROWS) {
                let rows = start..from.rows().min(start + TILE_ROWS);
                let (from, to) = (from.view_rows(rows.clone()), to.view_rows(rows));
                let term = device.empty(from.rows(), from.cols(), DType::F32, Category::Params);
                device.machine.scale(&from, *alpha, &term);
                device.machine.scale(&to, 1.0 - *alpha, &to);
                device.machine.add(&to, &term, &to);
            }
        }
    }
}
