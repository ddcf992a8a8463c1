//! One training step: micro batches forward and backward, then the update.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use fathom_grad::{
    AdamW, AdamWSettings, Counters, Grads, Moments, Offload, OnDisk, ParamId, Params, Places, Update,
};
use fathom_model::{Caps, Model, NarrowLayers, RoundTo, Spec};
use fathom_tensor::mesh::Axis;
use fathom_tensor::spill::Spill;
use fathom_tensor::{BalanceBias, Category, DType, Device, InFlight, Tensor};

use crate::distill::Frozen;
use crate::error::Result;
use crate::loaded::{Loaded, Minimised};
use crate::micro_batch::MicroBatch;
use crate::objective::Goal;
use crate::parallel::pipeline::{Lap, Pipeline, Watch};
use crate::parallel::{self, Ranks, Sharding, shares};
use crate::reference::Reference;
use crate::run::Amax;

/// What is trained and what a step needs besides data.
pub struct Trainer {
    /// Compute and memory.
    pub device: Device,
    /// The architecture.
    pub model: Model,
    /// Its weights.
    pub params: Params,
    /// FLOPs and times.
    pub counters: Counters,
    /// What lies behind memory; needed by steps whose places name it ([`crate::offload::open`]).
    pub offload: Option<Offload>,
    /// Since when the parts of a step are timed; never, if nothing is given.
    pub(crate) watch: Option<Instant>,
    /// When the last step's parts began and ended: of plans, and of steps that are watched.
    pub(crate) laps: RefCell<Vec<Lap>>,
    /// Whom an objective with a teacher asks, and other adapters over the same base: its weights are frozen, and no checkpoint has
    /// them.
    pub teacher: Option<Rc<Frozen>>,
    /// The step of the run that is made or comes next, from 1: sources may ask.
    pub number: u64,
    /// The model that micro batches are compared with, if the run has it in memory.
    pub(crate) reference: Option<Reference>,
    grads: Grads,
    optimizer: AdamW,
    loss: Tensor,
    count: Tensor,
    /// What the objective's metrics add up to on this rank.
    metrics: RefCell<Vec<[f64; 2]>>,
    /// f32 [sums, 1]: the same where the machine adds them up, while a step runs.
    terms: Option<Tensor>,
    /// f32 [sums, 2]: both together, of all ranks. A step is read while the next one runs, so they stay, as its loss does.
    sums: Option<Tensor>,
    /// f32 [layers, experts]: what routers chose in the step.
    loads: Option<Tensor>,
    flops: Tensor,
}

/// Settings of a step.
#[derive(Clone, Debug)]
pub struct InStep {
    /// Where activations live.
    pub places: Places,
    /// What of weights and optimizer state is on disk: for plans. A trainer's own are where its weights were declared.
    pub on_disk: OnDisk,
    /// Sizes that shapes are charged with.
    pub caps: Caps,
    /// Over which ranks: for plans. A trainer's own are its device's.
    pub ranks: Ranks,
    /// Low-precision GEMMs: for plans. A trainer's own are what [`Trainer::narrow`] was given.
    pub narrow: Option<NarrowLayers>,
    /// What projections are rounded to: for plans. A trainer's own is what [`Trainer::round_to`] was given.
    pub round_to: Option<RoundTo>,
    /// Weight of the z-loss.
    pub z_loss: f32,
    /// What is minimised.
    pub goal: Goal,
    /// The update.
    pub adamw: AdamWSettings,
}

/// What a step returns; read it one step late.
#[derive(Debug)]
pub struct StepResult {
    /// Sum of the losses, each times its weight: over `count` it is the mean whose gradient was taken.
    pub loss: InFlight,
    /// Norm of the mean's gradient before clipping.
    pub norm: InFlight,
    /// Not zero: nothing was changed.
    pub skipped: InFlight,
    /// What the sum of the losses is divided by, of all ranks: see [`crate::Objective::count`].
    pub count: InFlight,
    /// f32 [sums, 2]: of each of the objective's metrics, and of what is measured at labels, a sum and what it is divided by, of all
    /// ranks; none without.
    pub metrics: Option<InFlight>,
    /// FLOPs of the model, of all ranks.
    pub model_flops: InFlight,
    /// Tokens of the stream that this rank has, or has a part of.
    pub tokens: u64,
    /// f32 [layers, experts]: slots of each expert, of all ranks; none without experts.
    pub loads: Option<InFlight>,
}

impl Trainer {
    /// Gradients and optimizer state for the trainable weights; everything a step keeps exists from here on.
    pub fn new(device: &Device, model: Model, params: Params) -> Trainer {
        Trainer::sharded(device, model, params, Sharding::default(), Moments::default())
    }

    /// As [`Trainer::new`], saying what ranks with the same weights share and which moments are kept.
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

    /// Has products of linear layers made of narrow operands, as a recipe's `precision` says; of all as they are without.
    ///
    /// # Errors
    /// If the model or the mesh does not go with it.
    pub fn narrow(&mut self, how: Option<&NarrowLayers>) -> Result<()> {
        crate::state::narrowed(&self.device, &self.model, &mut self.params, how)
    }

    /// What delayed scaling looks back on; `None` if nothing is scaled so.
    pub fn amax(&self) -> Option<Amax> {
        let (history, row) = self.params.narrowing()?.history()?;
        let bits = self.device.to_f32(history).into_iter().map(f32::to_bits).collect();
        Some(Amax { row, bits })
    }

    /// Goes on with what was looked back on before. A history of another length or of other layers is left alone: the recipe has
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

    /// What is left of it without gradients and optimizer state.
    pub fn into_model(self) -> (Device, Model, Params) {
        (self.device, self.model, self.params)
    }

    /// Another stage's architecture over the same weights.
    pub fn set_spec(&mut self, spec: Spec) {
        self.model.spec = spec;
        self.params.forget_segments();
    }

    /// Whether steps change a weight: by its gradient, or as the choice of experts goes.
    pub(crate) fn changes(&self, id: ParamId) -> bool {
        self.params.get(id).trainable || self.model.choice_biases().any(|(_, bias)| bias == id)
    }

    /// The optimizer's state.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The optimizer's state, to be loaded.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// Gradients of the last accumulation, of the sum of the loss.
    pub fn grads(&self) -> &Grads {
        &self.grads
    }

    /// Runs the micro batches, whose first contributions overwrite the gradients of the step before, and returns (tokens of its stream,
    /// its part of what the sum is divided by). The loss is left in a device scalar.
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
        let tokens: u64 = micro_batches.iter().map(|micro| micro.borrow().ids.len() as u64).sum();
        // A stream that several ranks share is counted by the first of them, and nothing on a machine without data.
        let counts = self.device.mesh.index(Axis::Cp) == 0 && self.device.machine.has_data();
        let ours = micro_batches.iter().filter(|_| counts);
        let of_ours = ours.map(|micro| how.goal.objective.count(micro.borrow()));
        (tokens, of_ours.sum())
    }

    /// Room for what an objective's metrics add up to, if it has any and there is none yet: before the first step, so that whatever is
    /// done before that has the peak of its plan.
    pub fn make_sums(&mut self, how: &InStep) {
        let sums = how.goal.sums();
        if sums > 0 && self.sums.as_ref().is_none_or(|made| made.rows() != sums) {
            self.device.pool.enter("metrics", -1);
            self.sums = Some(self.device.zeros(sums, 2, DType::F32, Category::Data));
        }
    }

    /// One step: gradients of all micro batches, then the update. Accumulating equals one big batch bit for bit when
    /// micro batches are whole chunks of 128 tokens.
    ///
    /// # Errors
    /// The disk behind activations failed, and nothing was updated; or the disk behind weights and optimizer state, and
    /// what they are is undefined: the last checkpoint is what there is.
    pub fn step(&mut self, micro_batches: &[impl Borrow<MicroBatch>], how: &InStep) -> Result<StepResult> {
        self.step_with(micro_batches, how, |_, _| Ok(()))
    }

    /// As [`Trainer::step`]; `before_update` is called when the gradients are there and nothing was updated yet.
    ///
    /// # Errors
    /// As [`Trainer::step`], and those of `before_update`: then nothing is updated.
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
        // Every rank counted the tokens that it had, of its layers.
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

    /// The sums of the objective's metrics over all ranks, f32 [metrics, 2]; `None` without any.
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

    /// Moves the biases of the choice of experts towards even loads, if the model's experts say how far.
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

    /// Gives up what a step that failed left under way: before anything is loaded over it.
    pub fn abandon(&mut self) {
        self.grads.abandon();
        self.params.abandon();
    }

    /// The engines behind activations, and behind weights and optimizer state.
    pub fn spills(&self) -> impl Iterator<Item = &Spill> {
        let activations = self.offload.iter().flat_map(|offload| offload.engines());
        activations.chain(self.params.disk().map(|disk| disk.spill()))
    }

    /// Bytes that went to disk and came from it so far, and seconds that steps waited for them.
    pub fn disk_traffic(&self) -> (u64, f64) {
        self.spills().map(Spill::stats).fold((0, 0.0), |(bytes, stall_s), stats| {
            (bytes + stats.written_bytes + stats.read_bytes, stall_s + stats.stall_s)
        })
    }

    /// The first failure of the disk behind weights and optimizer state.
    fn check_state(&self) -> Result<()> {
        Ok(self.params.disk().map_or(Ok(()), |disk| disk.check())?)
    }

    /// Sum of the losses of the last accumulation.
    pub fn loss_sum(&self) -> f32 {
        self.device.machine.read(&self.loss).wait_f32()
    }

    /// Forward and backward of all micro batches.
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
        let load =
            |index: usize| Loaded::new(device, (model, params), teacher, micro_batches[index].borrow(), how);
        let (places, offload) = (&how.places, offload.as_ref());
        let minimised = Minimised { goal: &how.goal, z_loss: how.z_loss, loss, metrics, terms, teacher };
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
