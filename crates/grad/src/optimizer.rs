//! AdamW (Loshchilov and Hutter, 2019) with f32 moments and masters, and clipping by the global norm.
//!
//! Gradients are those of the sum of the loss; one over the count of valid tokens is applied here, so accumulating
//! over micro batches equals one big batch.

use std::ops::Range;

use fathom_tensor::{AdamW as Call, Category, DType, Device, InFlight, StepScale, Tensor};

use crate::disk::{Part, Role, chunks};
use crate::params::{Grads, Param, ParamId, Params};
use crate::shares::{SLOT, Shares};
use crate::value::Value;

#[cfg(test)]
mod tests;

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
}

impl Default for AdamWSettings {
    fn default() -> AdamWSettings {
        AdamWSettings { lr: 3e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, max_norm: 1.0 }
    }
}

/// Moments of one weight, and its f32 master if the weight itself is narrower: of the elements whose state this rank keeps,
/// shaped like the weight where that is all of them.
pub struct State {
    /// Its elements.
    pub range: Range<usize>,
    /// f32 first moment.
    pub m: Value,
    /// f32 second moment.
    pub v: Value,
    /// f32 weights.
    pub master: Option<Value>,
}

/// The optimizer's state.
pub struct AdamW {
    states: Vec<Option<State>>,
    shares: Shares,
    /// f32 [1, slots]: sums of squares.
    slots: Tensor,
    /// i32: updates made. On the device, because only it knows in time whether a step was skipped.
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

/// Walks items through the ring of the disk, or as they lie in memory without one.
fn sweep<'a>(
    params: &Params,
    items: usize,
    parts: &dyn Fn(usize) -> Vec<Part<'a>>,
    work: &mut dyn FnMut(usize, &[Tensor]),
) {
    if let Some(disk) = params.disk() {
        return disk.sweep(items, parts, work);
    }
    for item in 0..items {
        let views: Vec<Tensor> = parts(item).iter().map(|part| part.value.flat(part.range.clone())).collect();
        work(item, &views);
    }
}

/// What an update was given: both f32 [1, 1].
pub struct Update<'a> {
    /// Sum of the losses.
    pub loss: &'a Tensor,
    /// Valid tokens.
    pub count: &'a Tensor,
}

/// What an update did; read it one step late.
pub struct StepReport {
    /// Norm of the mean's gradient before clipping.
    pub norm: InFlight,
    /// Not zero: loss or gradient was not finite, or no token was valid, and nothing was changed.
    pub skipped: InFlight,
}

impl AdamW {
    /// Zero moments for every trainable weight; masters copied from the weights.
    pub fn new(device: &Device, params: &Params) -> AdamW {
        AdamW::shared(device, params, Shares::alone(device, params))
    }

    /// As [`AdamW::new`], for a rank that keeps its share of the state.
    ///
    /// # Panics
    /// If weights are on disk and their state is shared.
    pub fn shared(device: &Device, params: &Params, shares: Shares) -> AdamW {
        device.pool.enter("optimizer", -1);
        let scalar = || device.zeros(1, 1, DType::F32, Category::Optimizer);
        let (sum_squares, scale, skip, norm) = (scalar(), scalar(), scalar(), scalar());
        let room = |role: Role, weight: &Value, range: &Range<usize>| {
            let whole = range.len() == weight.len();
            assert!(
                whole || weight.away().is_none(),
                "optimizer: {weight:?} is on disk and its state shared"
            );
            let [rows, cols] = if whole { weight.shape() } else { [1, range.len()] };
            match params.disk() {
                Some(disk) if disk.what().optimizer && Value::moves(weight.shape()) && !range.is_empty() => {
                    Value::on_disk(disk, [rows, cols], DType::F32, role, weight.layer())
                }
                _ => device.empty(rows, cols, DType::F32, Category::Optimizer).into(),
            }
        };
        let state = |id: ParamId, weight: &Value| {
            let range = shares.own(id);
            State {
                m: room(Role::Moment1, weight, &range),
                v: room(Role::Moment2, weight, &range),
                master: (weight.dtype() != DType::F32).then(|| room(Role::Master, weight, &range)),
                range,
            }
        };
        let states =
            params.iter().map(|(id, param)| param.trainable.then(|| state(id, &param.value))).collect();
        let slots = device.zeros(1, shares.num_slots.max(1), DType::F32, Category::Optimizer);
        let updates = device.zeros(1, 1, DType::I32, Category::Optimizer);
        let adamw = AdamW { states, shares, slots, updates, sum_squares, scale, skip, norm };
        adamw.begin(device, params);
        adamw
    }

    /// Zero moments, and masters equal to the weights.
    fn begin(&self, device: &Device, params: &Params) {
        let machine = &device.machine;
        let items = self.items(params);
        let parts = |item: usize| {
            let Item { param, state, range, .. } = &items[item];
            let part = |value, range, read| Part { value, range, read, write: !read };
            let weight = state.master.is_some().then(|| part(&param.value, items[item].of_weight(), true));
            let state = [Some(&state.m), Some(&state.v), state.master.as_ref()];
            state.into_iter().flatten().map(|value| part(value, range.clone(), false)).chain(weight).collect()
        };
        sweep(params, items.len(), &parts, &mut |_, views| {
            machine.zero(&views[0]);
            machine.zero(&views[1]);
            if let [_, _, master, weight] = views {
                machine.copy(weight, master);
            }
        });
    }

    /// What an update goes through, in its order: whole weights, and chunks of those that are on disk or whose state is.
    fn items<'a>(&'a self, params: &'a Params) -> Vec<Item<'a>> {
        let mut items = Vec::new();
        for ((id, param), state) in params.iter().zip(&self.states) {
            let Some(state) = state else { continue };
            let len = state.range.len();
            let some_away = param.value.away().is_some() || state.m.away().is_some();
            let ranges: Vec<Range<usize>> = if some_away {
                chunks(len).collect()
            } else {
                (len > 0).then_some(0..len).into_iter().collect()
            };
            items.extend(ranges.into_iter().map(|range| Item { id, param, state, range }));
        }
        items
    }

    /// Updates made; skipped steps are none. Waits for the device.
    pub fn updates(&self, device: &Device) -> u64 {
        let bytes = device.machine.read(&self.updates).wait();
        bytes.first_chunk::<4>().map_or(0, |bytes| i32::from_le_bytes(*bytes).max(0) as u64)
    }

    /// Goes on after this many updates.
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

    /// Updates all weights in place from the gradient of the sum. Needs the weights exclusively, so no tape can
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
            // A narrow weight is read although its master says what it is: a step that is skipped must not change it.
            let part = |value, range| Part { value, range, read: true, write: true };
            let state = [Some(&state.m), Some(&state.v), state.master.as_ref()];
            let state = state.into_iter().flatten().map(|value| part(value, range.clone()));
            std::iter::once(part(&param.value, items[item].of_weight())).chain(state).collect()
        };
        sweep(params, items.len(), &parts, &mut |item, views| {
            let Item { id, param, .. } = &items[item];
            let Some(grad) = grads.get(*id) else { return };
            let grad = &grad.reshape(1, grad.len()).view_cols(items[item].of_weight());
            let weight_decay = if param.decays { settings.weight_decay } else { 0.0 };
            let (param, m, v, master) = (&views[0], &views[1], &views[2], views.get(3));
            let call =
                Call { param, master, m, v, grad, scale, skip, lr, beta1, beta2, eps, weight_decay, updates };
            machine.adamw(&call);
        });
        self.spread(device, params);
        StepReport { norm: machine.read(norm), skipped: machine.read(skip) }
    }

    /// The sum of the squares of all gradients of the whole model.
    fn square(&self, device: &Device, grads: &Grads) {
        let machine = &device.machine;
        machine.zero(&self.slots);
        for (id, grad) in grads.iter() {
            let (shares, flat) = (&self.shares.params[id.index()], grad.reshape(1, grad.len()));
            let Some(first) = shares.slot else { continue };
            let own = self.shares.own(id);
            for start in own.clone().step_by(SLOT) {
                let slot = first + start / SLOT;
                let part = flat.view_cols(start..own.end.min(start + SLOT));
                machine.sum_squares(&part, &self.slots.view_cols(slot..slot + 1));
            }
        }
        self.shares.squares.all_reduce(device, &self.slots);
        machine.zero(&self.sum_squares);
        machine.sum(&self.slots, &self.sum_squares);
    }

    /// Hands updated elements to the ranks that have the same weights and not their state.
    fn spread(&self, device: &Device, params: &Params) {
        if self.shares.whole {
            return;
        }
        let shared = |id: &ParamId| self.states[id.index()].is_some() && self.shares.group(*id).size() > 1;
        for (id, param) in params.iter().filter(|(id, _)| shared(id)) {
            let replicas = self.shares.group(id);
            let weight = param.value.flat(0..param.value.len());
            let ranges = &self.shares.params[id.index()].ranges;
            let (me, own) = (replicas.index(), self.shares.own(id));
            // A copy: the weight is written to while its own part is read.
            let mine = device.empty(1, own.len(), param.value.dtype(), Category::Comm);
            if !own.is_empty() {
                device.machine.copy(&weight.view_cols(own), &mine);
            }
            let others = || (0..replicas.size()).filter(|member| *member != me);
            let views: Vec<Tensor> = ranges.iter().map(|range| weight.view_cols(range.clone())).collect();
            let sends: Vec<(usize, &Tensor)> = others().map(|member| (member, &mine)).collect();
            let receives: Vec<(usize, &Tensor)> = others().map(|member| (member, &views[member])).collect();
            replicas.exchange(device, "gather parameters", &sends, &receives).wait();
        }
    }

    /// Sums the gradients over the ranks that have the same weights: all of them, or of shared state this rank's part.
    pub fn reduce(&self, device: &Device, grads: &Grads) {
        device.pool.enter("reduce gradients", -1);
        for (id, grad) in grads.iter().filter(|(id, _)| self.shares.group(*id).size() > 1) {
            let replicas = self.shares.group(id);
            let flat = grad.reshape(1, grad.len());
            if self.shares.whole {
                replicas.all_reduce(device, &flat);
                continue;
            }
            let ranges = &self.shares.params[id.index()].ranges;
            let parts: Vec<Tensor> = ranges.iter().map(|range| flat.view_cols(range.clone())).collect();
            let mine = &parts[replicas.index()];
            let sum = device.empty(1, mine.cols(), DType::F32, Category::Comm);
            replicas.reduce_scatter(device, &parts, &sum);
            if !mine.is_empty() {
                device.machine.copy(&sum, mine);
            }
        }
    }

    /// f32 [1, 1]: not zero if the last update left everything as it was.
    pub fn skip(&self) -> &Tensor {
        &self.skip
    }

    /// Which rank keeps the state of what.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }
}
