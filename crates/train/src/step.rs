//! One training step: forward and backward passes of the micro-batches, then the update.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use fathom_grad::{AdamW, Counters, Grads, Moments, Offload, ParamId, Params, Update};
use fathom_model::{LoadedModel, Model, ModelView, NarrowLayers, Spec};
use fathom_tensor::mesh::Axis;
use fathom_tensor::spill::Spill;
use fathom_tensor::{BalanceBias, Category, DType, Device, InFlight, Tensor};

use crate::error::Result;
use crate::in_step::InStep;
use crate::loaded::{DeviceMicroBatch, StepObjective};
use crate::micro_batch::MicroBatch;
use crate::parallel::pipeline::{Lap, Pipeline, Watch};
use crate::parallel::{self, Sharding, shares};
use crate::reference::Reference;
use crate::run::Amax;

/// A model in training, with everything that a step needs except data.
pub struct Trainer {
    /// Compute and memory.
    pub device: Device,
    /// The architecture.
    pub model: Model,
    /// Its weights.
    pub params: Params,
    /// FLOPs and times.
    pub counters: Counters,
    /// The offload engines, needed by steps whose places use them ([`crate::offload::open`]).
    pub offload: Option<Offload>,
    /// Start of the timing of a step's passes; `None` disables it.
    pub(crate) watch: Option<Instant>,
    /// Times of the last step's passes, for plans and for timed steps.
    pub(crate) laps: RefCell<Vec<Lap>>,
    /// The teacher of the objective, shared with other adapters over the same base: its weights are frozen, and not
    /// part of checkpoints.
    pub teacher: Option<Rc<LoadedModel>>,
    /// Number of the run's current or next step, from 1; sources may read it.
    pub number: u64,
    /// The reference, if the run has one in memory.
    pub(crate) reference: Option<Reference>,
    grads: Grads,
    optimizer: AdamW,
    loss: Tensor,
    count: Tensor,
    /// Sums of the objective's metrics on this rank.
    metrics: RefCell<Vec<[f64; 2]>>,
    /// f32 [sums, 1]: sums accumulated on the machine, during a step.
    terms: Option<Tensor>,
    /// f32 [sums, 2]: both together, over all ranks. A step's results are read while the next one runs, so they stay,
    /// like its loss.
    sums: Option<Tensor>,
    /// f32 [layers, experts]: token counts of the step's routing.
    loads: Option<Tensor>,
    flops: Tensor,
}

/// Results of a step, to be read one step late.
#[derive(Debug)]
pub struct StepResult {
    /// Sum of the weighted losses; divided by `count` it is the mean whose gradient was computed.
    pub loss: InFlight,
    /// Norm of the mean's gradient before clipping.
    pub norm: InFlight,
    /// Nonzero if nothing was updated.
    pub skipped: InFlight,
    /// Divisor of the sum of the losses, over all ranks: see [`crate::Objective::count`].
    pub count: InFlight,
    /// f32 [sums, 2]: for each of the objective's metrics and label metrics, a sum and its divisor, over all ranks;
    /// `None` without any.
    pub metrics: Option<InFlight>,
    /// FLOPs of the model over all ranks.
    pub model_flops: InFlight,
    /// Tokens of the stream that this rank has, or has a part of.
    pub tokens: u64,
    /// f32 [layers, experts]: slots of each expert over all ranks; `None` without experts.
    pub loads: Option<InFlight>,
}

impl Trainer {
    /// Creates gradients and optimizer state for the trainable weights; all persistent memory of steps is allocated
    /// here.
    pub fn new(device: &Device, model: Model, params: Params) -> Trainer {
        Trainer::sharded(device, model, params, Sharding::default(), Moments::default())
    }

    /// [`Trainer::new`] with a choice of sharding among ranks with the same weights, and of moments.
    pub fn sharded(
        device: &Device,
        model: Model,
        params: Params,
        sharding: Sharding,
        moments: Moments,
    ) -> Trainer {
        let shares = Rc::new(shares(device, &model, &params, sharding));
        let grads = Grads::shared(device, &params, shares.clone());
        let optimizer = AdamW::shared(device, &params, shares, moments);
        let scalar = || device.zeros(1, 1, DType::F32, Category::Data);
        let (loss, count, flops, counters) = (scalar(), scalar(), scalar(), Counters::default());
        let loads = model.spec.moe.as_ref().map(|moe| {
            let loads = device.zeros(model.spec.layers.len(), moe.experts, DType::F32, Category::Optimizer);
            counters.count_loads(&loads);
            loads
        });
        let (device, laps) = (device.clone(), RefCell::default());
        Trainer {
            device,
            model,
            params,
            counters,
            offload: None,
            watch: None,
            laps,
            teacher: None,
            number: 1,
            reference: None,
            grads,
            optimizer,
            loss,
            count,
            metrics: RefCell::default(),
            terms: None,
            sums: None,
            flops,
            loads,
        }
    }

    /// Enables low-precision GEMMs in linear layers, according to a recipe's `precision`; `None` disables them.
    ///
    /// # Errors
    /// If the model or the mesh is not compatible with them.
    pub fn narrow(&mut self, how: Option<&NarrowLayers>) -> Result<()> {
        crate::weights::narrowed(&self.device, &self.model, &mut self.params, how)
    }

    /// History of delayed scaling; `None` if it is not used.
    pub fn amax(&self) -> Option<Amax> {
        let (history, row) = self.params.narrowing()?.history()?;
        let bits = self.device.to_f32(history).into_iter().map(f32::to_bits).collect();
        Some(Amax { row, bits })
    }

    /// Restores the history of delayed scaling. A history of another length or other layers is ignored: the recipe has
    /// changed.
    pub(crate) fn set_amax(&self, amax: Option<&Amax>) {
        let (Some(amax), Some(narrowing)) = (amax, self.params.narrowing()) else { return };
        let Some((history, _)) = narrowing.history().filter(|(x, _)| x.len() == amax.bits.len()) else {
            return;
        };
        let bytes: Vec<u8> = amax.bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        self.device.machine.write(history, &bytes);
        narrowing.resume(&self.device, amax.row);
    }

    /// The model with its weights, without gradients and optimizer state.
    pub fn into_model(self) -> LoadedModel {
        let Trainer { device, model, params, .. } = self;
        LoadedModel { device, model, params }
    }

    /// Sets another stage's architecture for the same weights.
    pub fn set_spec(&mut self, spec: Spec) {
        self.model.spec = spec;
        self.params.forget_segments();
    }

    /// True if steps change a weight: by its gradient, or as a bias of expert selection.
    pub(crate) fn changes(&self, id: ParamId) -> bool {
        self.params.get(id).trainable || self.model.choice_biases().any(|(_, bias)| bias == id)
    }

    /// The optimizer's state.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The optimizer's state, for loading.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// Gradients of the last accumulation, with respect to the summed loss.
    pub fn grads(&self) -> &Grads {
        &self.grads
    }

    /// Runs the micro-batches, whose first contributions overwrite the previous step's gradients. Returns the tokens of
    /// this rank's stream and its part of the divisor of the sum. The loss stays in a device scalar.
    pub fn accumulate(&mut self, micro_batches: &[impl Borrow<MicroBatch>], how: &InStep) -> (u64, f64) {
        self.grads.clear(&self.device);
        self.device.machine.zero(&self.loss);
        self.loads.iter().for_each(|loads| self.device.machine.zero(loads));
        self.laps.borrow_mut().clear();
        let sums = how.goal.sums();
        *self.metrics.borrow_mut() = vec![[0.0; 2]; sums];
        self.make_sums(how);
        self.terms = how.goal.adds().then(|| {
            self.device.pool.enter("metrics", -1);
            self.device.zeros(sums, 1, DType::F32, Category::Data)
        });
        match self.look_ahead(micro_batches, how) {
            Some(micro_batches) => self.run(&micro_batches, how),
            None => self.run(micro_batches, how),
        }
        self.grads.settle(&self.device);
        let tokens: u64 = micro_batches.iter().map(|micro| micro.borrow().tokens() as u64).sum();
        // Only the first rank of those that share a stream counts it, and none on a machine without data.
        let counts = self.device.mesh.index(Axis::Cp) == 0 && self.device.machine.has_data();
        let ours = micro_batches.iter().filter(|_| counts);
        let of_ours = ours.map(|micro| how.goal.objective.count(micro.borrow()));
        (tokens, of_ours.sum())
    }

    /// Allocates the accumulators of an objective's metrics, if it has any and they do not exist: called before the
    /// first step, so that earlier work already has the peak of its plan.
    pub fn make_sums(&mut self, how: &InStep) {
        let sums = how.goal.sums();
        if sums > 0 && self.sums.as_ref().is_none_or(|made| made.rows() != sums) {
            self.device.pool.enter("metrics", -1);
            self.sums = Some(self.device.zeros(sums, 2, DType::F32, Category::Data));
        }
    }

    /// One step: gradients of all micro-batches, then the update. Accumulation equals one big batch bit for bit if
    /// micro-batches are whole chunks of 128 tokens.
    ///
    /// # Errors
    /// The disk of activations failed, and nothing was updated; or the disk of weights and optimizer state failed, and
    /// they are undefined: the last checkpoint must be used.
    pub fn step(&mut self, micro_batches: &[impl Borrow<MicroBatch>], how: &InStep) -> Result<StepResult> {
        self.step_with(micro_batches, how, |_, _| Ok(()))
    }

    /// [`Trainer::step`] with a callback, which is called after the gradients are complete and before anything is
    /// updated.
    ///
    /// # Errors
    /// Those of [`Trainer::step`] and of `before_update`; then nothing is updated.
    pub fn step_with(
        &mut self,
        micro_batches: &[impl Borrow<MicroBatch>],
        how: &InStep,
        before_update: impl FnOnce(&Device, &Params) -> Result<()>,
    ) -> Result<StepResult> {
        let before = self.counters.model_flops();
        let (tokens, count) = self.accumulate(micro_batches, how);
        let flops = (self.counters.model_flops() - before) as f32;
        self.device.machine.write(&self.flops, &flops.to_le_bytes());
        self.device.machine.write(&self.count, &(count as f32).to_le_bytes());
        self.grads.complete(&self.device);
        parallel::sums(&self.device, &self.loss, &self.count);
        let metrics = self.metrics();
        // Every rank has counted its own tokens in its own layers.
        self.loads.iter().for_each(|loads| self.device.mesh.everybody().all_reduce(&self.device, loads));
        self.device.mesh.everybody().all_reduce(&self.device, &self.flops);
        self.device.mesh.check()?;
        if let Some(offload) = &self.offload {
            offload.check()?;
        }
        self.check_state()?;
        before_update(&self.device, &self.params)?;
        let update = Update { loss: &self.loss, count: &self.count };
        let device = self.device.clone();
        let report = self.counters.span("adamw", "", -1, || {
            self.optimizer.update(&device, &mut self.params, &self.grads, update, &how.adamw)
        });
        self.balance();
        if let Some(narrowing) = self.params.narrowing() {
            narrowing.end_step(&self.device);
        }
        self.check_state()?;
        self.device.mesh.check()?;
        let [loss, count, model_flops] =
            [&self.loss, &self.count, &self.flops].map(|scalar| self.device.machine.read(scalar));
        let loads = self.loads.as_ref().map(|loads| self.device.machine.read(loads));
        let metrics = metrics.map(|metrics| self.device.machine.read(&metrics));
        let (norm, skipped) = (report.norm, report.skipped);
        Ok(StepResult { loss, count, metrics, model_flops, norm, skipped, tokens, loads })
    }

    /// Sums of the objective's metrics over all ranks, f32 [metrics, 2]; `None` without any.
    fn metrics(&mut self) -> Option<Tensor> {
        let mine = std::mem::take(&mut *self.metrics.borrow_mut());
        let sums = self.sums.clone().filter(|_| !mine.is_empty())?;
        let bytes: Vec<u8> = mine.iter().flatten().flat_map(|x| (*x as f32).to_le_bytes()).collect();
        self.device.machine.write(&sums, &bytes);
        if let Some(terms) = self.terms.take() {
            let column = &sums.view_cols(0..1);
            self.device.machine.add(column, &terms, column);
        }
        parallel::of_last_stage(&self.device, &sums);
        Some(sums)
    }

    /// Moves the biases of expert selection towards even loads, by the model's rate.
    fn balance(&self) {
        let rate = self.model.spec.moe.as_ref().map_or(0.0, |moe| moe.bias_rate);
        let Some(loads) = self.loads.as_ref().filter(|_| rate != 0.0) else { return };
        self.device.pool.enter("balance experts", -1);
        for (layer, id) in self.model.choice_biases() {
            self.device.machine.balance_bias(&BalanceBias {
                bias: &self.params.tensor(id),
                load: &loads.view_rows(layer..layer + 1),
                rate,
                skip: self.optimizer.skip(),
            });
        }
    }

    /// Abandons the operations of a failed step, before anything is loaded.
    pub fn abandon(&mut self) {
        self.grads.abandon();
        self.params.abandon();
    }

    /// The offload engines of activations, and of weights and optimizer state.
    pub fn spills(&self) -> impl Iterator<Item = &Spill> {
        let activations = self.offload.iter().flat_map(|offload| offload.engines());
        activations.chain(self.params.disk().map(|disk| disk.spill()))
    }

    /// Bytes written to and read from disk so far, and seconds that steps waited for them.
    pub fn disk_traffic(&self) -> (u64, f64) {
        self.spills().map(Spill::stats).fold((0, 0.0), |(bytes, stall_s), stats| {
            (bytes + stats.written_bytes + stats.read_bytes, stall_s + stats.stall_s)
        })
    }

    /// The first failure of the disk of weights and optimizer state.
    fn check_state(&self) -> Result<()> {
        Ok(self.params.disk().map_or(Ok(()), |disk| disk.check())?)
    }

    /// Sum of the losses of the last accumulation.
    pub fn loss_sum(&self) -> f32 {
        self.device.machine.read(&self.loss).wait_f32()
    }

    /// Forward and backward of all micro-batches.
    fn run(&mut self, micro_batches: &[impl Borrow<MicroBatch>], how: &InStep) {
        let Trainer {
            device,
            model,
            params,
            counters,
            offload,
            watch,
            laps,
            grads,
            loss,
            metrics,
            teacher,
            terms,
            ..
        } = self;
        let (teacher, terms) = (teacher.as_deref(), terms.as_ref());
        let load = |index: usize| {
            DeviceMicroBatch::new(
                ModelView { device, model, params },
                teacher,
                micro_batches[index].borrow(),
                how,
            )
        };
        let (places, offload) = (&how.places, offload.as_ref());
        let minimised = StepObjective { goal: &how.goal, z_loss: how.z_loss, loss, metrics, terms, teacher };
        let (order, arrived) = (how.ranks.order, Cell::new(None));
        let watch = match (device.machine.clock(), *watch) {
            (Some(clock), _) => Watch::Planned(clock),
            (None, Some(started)) => Watch::Since(started),
            (None, None) => Watch::Off,
        };
        let pipeline = Pipeline {
            device,
            model,
            params,
            places,
            offload,
            counters,
            minimised,
            watch,
            laps,
            arrived,
            order,
        };
        pipeline.run(micro_batches.len(), &load, grads);
    }
}
