//! The pass of a step's reference over its micro-batches before the step learns, and its updates.

use std::borrow::Borrow;
use std::sync::Arc;

use fathom_grad::Value;
use fathom_model::ModelView;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Tensor};

use crate::encoder::encoder_keys;
use crate::in_step::InStep;
use crate::micro_batch::{MicroBatch, StepTotals};
use crate::objective::{Answers, Compares};
use crate::pass::Pass;
use crate::reference::{Reference, Sync};
use crate::step::Trainer;

/// Number of a weight's rows that are updated together.
const TILE_ROWS: usize = 256;

impl Trainer {
    /// Sets the reference for micro-batches from here on.
    pub fn refer_to(&mut self, reference: Reference) {
        self.reference = Some(reference);
    }

    /// Shares the teacher and the reference of another adapter over the same base, so that each is in memory once.
    pub fn ask_whom(&mut self, other: &Trainer) {
        self.teacher.clone_from(&other.teacher);
        self.reference = other.reference.as_ref().map(|reference| reference.of_other(&self.model));
    }

    /// The model that is trained, with its weights.
    pub fn view(&self) -> ModelView<'_> {
        ModelView { device: &self.device, model: &self.model, params: &self.params }
    }

    /// A pass that runs the policy.
    pub(crate) fn pass<'a>(&'a self, how: &'a InStep) -> Pass<'a> {
        Pass { of: self.view(), counters: &self.counters, how }
    }

    /// The reference, if it is in memory.
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    /// Completes micro-batches with the reference's log-probabilities and the step's totals that the objective needs;
    /// `None` if nothing is missing.
    pub(crate) fn look_ahead(
        &self,
        micro_batches: &[impl Borrow<MicroBatch>],
        how: &InStep,
    ) -> Option<Vec<MicroBatch>> {
        let weigh = how.goal.objective.weigh()?;
        let device = &self.device;
        // A single micro-batch of a step has all totals itself.
        let others = micro_batches.len() > 1 || device.mesh.size(Axis::Dp) > 1;
        if let Some(compares) = weigh.compares() {
            return others.then(|| self.compare(micro_batches, (compares, weigh.group()), how));
        }
        let terms = how.goal.objective.terms();
        let first = &*terms.first()?.loss;
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
                    micro.step = Some(StepTotals { ahead, ..micro.step.unwrap_or_else(|| micro.totals()) });
                }
            }
        }
        Some(all)
    }

    /// Compares the vectors of all documents of the step, over all ranks with other micro-batches.
    fn compare(
        &self,
        micro_batches: &[impl Borrow<MicroBatch>],
        (compares, group): (&dyn Compares, usize),
        how: &InStep,
    ) -> Vec<MicroBatch> {
        let mut all: Vec<MicroBatch> = micro_batches.iter().map(|micro| micro.borrow().clone()).collect();
        let (pass, columns) = (self.pass(how), self.model.spec.hidden);
        let (mut vectors, mut keys, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for micro in &all {
            let states = pass.states(micro);
            if !states.is_empty() {
                vectors.extend(compares.vectors(&Answers { scores: &states, ..Answers::of(micro, &[]) }));
                keys.extend(encoder_keys(micro));
            }
            counts.push(micro.facts.documents());
        }
        let room = (all.len() * how.caps.docs, columns);
        let (from, vectors, keys) = self.gather_vectors((vectors, keys), room);
        if keys.is_empty() {
            return all;
        }
        let compared = compares.compare(&vectors, &keys);
        let mut start = from;
        for (micro, count) in all.iter_mut().zip(counts) {
            micro.compared = Some(Arc::new(compared.part(start..start + count, (group, columns))));
            start += count;
        }
        all
    }

    /// The vectors and keys of all ranks in their order, and the number of those before this rank's; each rank has
    /// `room` rows for its own.
    fn gather_vectors(
        &self,
        (vectors, keys): (Vec<f32>, Vec<u64>),
        (room, columns): (usize, usize),
    ) -> (usize, Vec<f32>, Vec<u64>) {
        let device = &self.device;
        let ranks = device.mesh.group(&[Axis::Dp]);
        if ranks.size() == 1 {
            return (0, vectors, keys);
        }
        device.pool.enter("objective", -1);
        // Numbers of f32 are exact up to 2^24, so that a key is three of them; a row that is used begins with 1.
        let width = columns + 4;
        let rows = vectors.chunks_exact(columns).zip(&keys).flat_map(|(vector, key)| {
            let part = |at: u32| ((key >> (22 * at)) & 0x3f_ffff) as f32;
            [1.0, part(0), part(1), part(2)].into_iter().chain(vector.iter().copied())
        });
        let mut own: Vec<f32> = rows.collect();
        own.resize(room * width, 0.0);
        let own = device.from_f32(room, width, &own, Category::Comm);
        let all = device.empty(ranks.size() * room, width, DType::F32, Category::Comm);
        let part = |rank: usize| all.view_rows(rank * room..(rank + 1) * room);
        let parts: Vec<Tensor> = (0..ranks.size()).map(part).collect();
        ranks.all_gather(device, &own, &parts).wait();
        let (mut from, mut found, mut found_keys) = (0, Vec::new(), Vec::new());
        for (row, numbers) in device.to_f32(&all).chunks_exact(width).enumerate() {
            if row == device.mesh.index(Axis::Dp) * room {
                from = found_keys.len();
            }
            if numbers[0] == 1.0 {
                found_keys.push((1..4).fold(0, |key, at| key | ((numbers[at] as u64) << (22 * (at - 1)))));
                found.extend(&numbers[4..]);
            }
        }
        (from, found, found_keys)
    }

    /// Updates the reference after `step` steps of a run, if that is due. Ranks with the same weights call this
    /// together.
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

impl Reference {
    /// A pass that runs the reference with a trainer's settings.
    pub(crate) fn pass<'a>(&'a self, trainer: &'a Trainer, how: &'a InStep) -> Pass<'a> {
        let params = self.params.as_deref().unwrap_or(&trainer.params);
        Pass { of: ModelView { model: &self.model, params, ..trainer.view() }, ..trainer.pass(how) }
    }
}
