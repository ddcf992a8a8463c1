//! AdamW (Loshchilov and Hutter, 2019), or SGD with momentum, with f32 masters or without, and clipping by the global
//! norm.
//!
//! Gradients are those of the summed loss; the division by the number of valid tokens happens here, so accumulation
//! over micro-batches equals one big batch.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::moments::BLOCK;
use fathom_tensor::{AdamW as Call, Category, DType, Device, InFlight, MomentScales, StepScale, Tensor};

use crate::disk::{Role, StateDisk, SweptChunk, chunks};
use crate::grads::Grads;
use crate::param_id::ParamId;
use crate::params::{Param, Params};
use crate::shares::{SLOT, Shares};
use crate::value::Value;

mod moments;
mod rounded;
mod state;
#[cfg(test)]
mod tests;

pub use moments::Moments;
pub use state::State;
use state::{Views, key};

/// Hyperparameters of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWSettings {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled decay of the weights that decay.
    pub weight_decay: f32,
    /// Clip the global norm to this; 0 for no clipping.
    pub max_norm: f32,
    /// Type of the moments, and whether narrow weights have masters.
    pub moments: Moments,
}

impl Default for AdamWSettings {
    fn default() -> AdamWSettings {
        AdamWSettings {
            lr: 3e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            max_norm: 1.0,
            moments: Moments::default(),
        }
    }
}

/// The optimizer's state.
pub struct AdamW {
    states: Vec<Option<State>>,
    shares: Rc<Shares>,
    moments: Moments,
    /// f32 [1, slots]: sums of squares.
    slots: Tensor,
    /// i32: number of updates. On the device, because only it knows in time whether a step was skipped.
    updates: Tensor,
    sum_squares: Tensor,
    scale: Tensor,
    skip: Tensor,
    norm: Tensor,
}

/// A weight, or a chunk of one.
struct Item<'a> {
    id: ParamId,
    param: &'a Param,
    state: &'a State,
    /// Elements of its state.
    range: Range<usize>,
}

impl Item<'_> {
    /// Elements of the weight.
    fn of_weight(&self) -> Range<usize> {
        let first = self.state.range.start;
        first + self.range.start..first + self.range.end
    }
}

/// Walks items through the ring of the disk, or in memory without one.
fn sweep<'a>(
    params: &Params,
    items: usize,
    parts: &dyn Fn(usize) -> Vec<SweptChunk<'a>>,
    work: &mut dyn FnMut(usize, &[Tensor]),
) {
    if let Some(disk) = params.disk() {
        return disk.sweep(items, parts, work);
    }
    for item in 0..items {
        let views: Vec<Tensor> = parts(item).into_iter().filter_map(SweptChunk::in_memory).collect();
        work(item, &views);
    }
}

/// True if the state of some elements of a weight is on disk, given that none is to stay in memory.
fn moves(disk: &StateDisk, weight: &Value, range: &Range<usize>) -> bool {
    disk.what().optimizer && Value::moves(weight.shape()) && !range.is_empty()
}

/// The weights whose state stays in device memory: the first ones, up to the given part of all elements.
fn staying(params: &Params, shares: &Shares) -> BTreeSet<ParamId> {
    let Some(disk) = params.disk() else { return BTreeSet::new() };
    let moving = params.iter().filter(|(_, param)| param.trainable).filter_map(|(id, param)| {
        let range = shares.own(id);
        moves(disk, &param.value, &range).then_some((id, range.len() as u64))
    });
    let moving: Vec<(ParamId, u64)> = moving.collect();
    let all: u64 = moving.iter().map(|(_, len)| len).sum();
    let room = u128::from(all) * u128::from(disk.what().stays_percent.min(100)) / 100;
    let mut held = 0;
    let fits = |(id, len): &(ParamId, u64)| {
        held += u128::from(*len);
        (held <= room).then_some(*id)
    };
    moving.iter().map_while(fits).collect()
}

/// The inputs of an update: both f32 [1, 1].
pub struct Update<'a> {
    /// Sum of the losses.
    pub loss: &'a Tensor,
    /// Valid tokens.
    pub count: &'a Tensor,
}

/// Outcome of an update, to be read one step late.
pub struct StepReport {
    /// Norm of the mean's gradient before clipping.
    pub norm: InFlight,
    /// Nonzero if loss or gradient was not finite, or no token was valid, so that nothing was changed.
    pub skipped: InFlight,
}

impl AdamW {
    /// Zero moments for every trainable weight; masters copied from narrow weights.
    pub fn new(device: &Device, params: &Params) -> AdamW {
        AdamW::shared(device, params, Rc::new(Shares::alone(device, params.lens())), Moments::default())
    }

    /// [`AdamW::new`] for a rank with its shard of the state, and with these moments.
    ///
    /// # Panics
    /// If weights are on disk and their state is sharded.
    pub fn shared(device: &Device, params: &Params, shares: Rc<Shares>, moments: Moments) -> AdamW {
        device.pool.enter("optimizer", -1);
        let scalar = || device.zeros(1, 1, DType::F32, Category::Optimizer);
        let (sum_squares, scale, skip, norm) = (scalar(), scalar(), scalar(), scalar());
        if let Some(disk) = params.disk() {
            disk.make_moments(device, moments);
        }
        let stays = staying(params, &shares);
        let room = |id: ParamId, role: Role, weight: &Value, range: &Range<usize>, dtype: DType| {
            let whole = range.len() == weight.len();
            assert!(
                whole || weight.offloaded().is_none(),
                "optimizer: {weight:?} is on disk and its state shared"
            );
            let [rows, cols] = if whole { weight.shape() } else { [1, range.len()] };
            match params.disk() {
                Some(disk) if moves(disk, weight, range) && !stays.contains(&id) => {
                    Value::on_disk(disk, [rows, cols], dtype, role, weight.layer())
                }
                _ => device.empty(rows, cols, dtype, Category::Optimizer).into(),
            }
        };
        let state = |id: ParamId, weight: &Value| {
            let range = shares.own(id);
            let blocks = range.len().div_ceil(BLOCK);
            let scales = || device.empty(1, blocks, DType::F32, Category::Optimizer).into();
            let coded = if moments.coded() { 1 + usize::from(moments.second) } else { 0 };
            State {
                scales: (0..coded).map(|_| scales()).collect(),
                m: room(id, Role::Moment1, weight, &range, moments.dtype),
                v: moments.second.then(|| room(id, Role::Moment2, weight, &range, moments.dtype)),
                master: (weight.dtype() != DType::F32 && moments.masters)
                    .then(|| room(id, Role::Master, weight, &range, DType::F32)),
                range,
            }
        };
        let states =
            params.iter().map(|(id, param)| param.trainable.then(|| state(id, &param.value))).collect();
        let slots = device.zeros(1, shares.num_slots.max(1), DType::F32, Category::Optimizer);
        let updates = device.zeros(1, 1, DType::I32, Category::Optimizer);
        let adamw = AdamW { states, shares, moments, slots, updates, sum_squares, scale, skip, norm };
        adamw.begin(device, params);
        adamw
    }

    /// Zero moments, and masters equal to the weights.
    fn begin(&self, device: &Device, params: &Params) {
        let machine = &device.machine;
        let items = self.items(params);
        let parts = |item: usize| {
            let Item { param, state, range, .. } = &items[item];
            let of_weight = items[item].of_weight();
            let weight = param.value.chunk(of_weight, true, false);
            std::iter::once(weight)
                .filter(|_| state.master.is_some())
                .chain(state.parts(range, false))
                .collect()
        };
        sweep(params, items.len(), &parts, &mut |item, views| {
            let state = items[item].state;
            let (weight, views) = views.split_at(usize::from(state.master.is_some()));
            let Views { m, v, master, scales } = Views::of(state, views);
            [Some(m), v].into_iter().flatten().chain(scales).for_each(|moment| machine.zero(moment));
            if let (Some(to), [weight]) = (master, weight) {
                machine.copy(weight, to);
            }
        });
    }

    /// The items of an update, in order: whole weights, and chunks of those that are on disk or whose state is.
    fn items<'a>(&'a self, params: &'a Params) -> Vec<Item<'a>> {
        let mut items = Vec::new();
        for ((id, param), state) in params.iter().zip(&self.states) {
            let Some(state) = state else { continue };
            let len = state.range.len();
            let some_offloaded = param.value.offloaded().is_some() || state.m.offloaded().is_some();
            let ranges: Vec<Range<usize>> = if some_offloaded {
                chunks(len).collect()
            } else {
                (len > 0).then_some(0..len).into_iter().collect()
            };
            items.extend(ranges.into_iter().map(|range| Item { id, param, state, range }));
        }
        items
    }

    /// Number of updates, without skipped steps. Waits for the device.
    pub fn updates(&self, device: &Device) -> u64 {
        let bytes = device.machine.read(&self.updates).wait();
        bytes.first_chunk::<4>().map_or(0, |bytes| i32::from_le_bytes(*bytes).max(0) as u64)
    }

    /// Resumes after this many updates.
    ///
    /// # Panics
    /// Above 2^31 - 1.
    #[track_caller]
    pub fn set_updates(&mut self, device: &Device, updates: u64) {
        let Ok(count) = i32::try_from(updates) else { panic!("set_updates: {updates} are too many") };
        device.machine.write(&self.updates, &count.to_le_bytes());
    }

    /// The state of a weight, if it is trained.
    pub fn state(&self, id: ParamId) -> Option<&State> {
        self.states[id.index()].as_ref()
    }

    /// Updates all weights in place from the gradient of the summed loss. Needs the weights exclusively, so no tape may
    /// still hold them.
    pub fn update(
        &mut self,
        device: &Device,
        params: &mut Params,
        grads: &Grads,
        update: Update<'_>,
        settings: &AdamWSettings,
    ) -> StepReport {
        let machine = &device.machine;
        params.settle(device);
        device.pool.enter("adamw", -1);
        self.square(device, grads);
        let (sum_squares, scale, skip, norm) = (&self.sum_squares, &self.scale, &self.skip, &self.norm);
        let updates = &self.updates;
        let Update { loss, count } = update;
        machine.step_scale(&StepScale {
            sum_squares,
            loss,
            count,
            max_norm: settings.max_norm,
            scale,
            skip,
            norm,
            updates,
        });
        let AdamWSettings { lr, beta1, beta2, eps, .. } = *settings;
        let items = self.items(params);
        let parts = |item: usize| {
            let Item { param, state, range, .. } = &items[item];
            // A narrow weight is read although it follows from its master: a skipped step must not change it.
            let of_weight = items[item].of_weight();
            let weight = param.value.chunk(of_weight, true, true);
            std::iter::once(weight).chain(state.parts(range, true)).collect()
        };
        sweep(params, items.len(), &parts, &mut |item, views| {
            let Item { id, param, state, .. } = &items[item];
            let Some(grad) = grads.own(*id) else { return };
            let grad = &grad.view_cols(items[item].range.clone());
            let weight_decay = if param.decays { settings.weight_decay } else { 0.0 };
            let Views { m, v, master, scales } = Views::of(state, &views[1..]);
            let (key, first) = (key(&param.name), items[item].of_weight().start);
            let lr = lr * params.rate(*id);
            let scales = scales.first().map(|m| MomentScales { m, v: scales.get(1) });
            let param = &views[0];
            let call = Call {
                param,
                master,
                m,
                v,
                scales,
                key,
                first,
                grad,
                scale,
                skip,
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
                updates,
            };
            machine.adamw(&call);
        });
        self.round_own(device, params);
        // Updated elements are sent to the ranks that have the same weights but not their state.
        if self.hands_out() {
            params.begin_gather(device, &self.shares);
        }
        StepReport { norm: machine.read(norm), skipped: machine.read(skip) }
    }

    /// The sum of the squares of all gradients of the whole model.
    fn square(&self, device: &Device, grads: &Grads) {
        let machine = &device.machine;
        machine.zero(&self.slots);
        for id in grads.ids() {
            let (Some(first), Some(grad)) = (self.shares.params[id.index()].slot, grads.own(id)) else {
                continue;
            };
            let own = self.shares.own(id);
            if !own.is_empty() {
                // Weights are divided among ranks at slot boundaries.
                let slots = first + own.start / SLOT..first + own.end.div_ceil(SLOT);
                machine.sum_squares_slots(&grad, SLOT, &self.slots.view_cols(slots));
            }
        }
        self.shares.squares.all_reduce(device, &self.slots);
        machine.zero(&self.sum_squares);
        machine.sum(&self.slots, &self.sum_squares);
    }

    /// Types of the moments and masters.
    pub fn moments(&self) -> Moments {
        self.moments
    }

    /// f32 [1, 1]: nonzero if the last update changed nothing.
    pub fn skip(&self) -> &Tensor {
        &self.skip
    }

    /// Distribution of the state over ranks.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }
}
