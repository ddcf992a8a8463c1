//! AdamW (Loshchilov and Hutter, 2019) with f32 moments and masters, and clipping by the global norm.
//!
//! Gradients are those of the sum of the loss; one over the count of valid tokens is applied here, so accumulating
//! over micro batches equals one big batch.

use std::ops::Range;

use fathom_tensor::{AdamW as Call, Category, DType, Device, InFlight, StepScale, Tensor};

use crate::disk::{Part, Role, chunks};
use crate::params::{Grads, Param, ParamId, Params};
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

/// Moments of one weight, and its f32 master if the weight itself is narrower.
pub struct State {
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
    /// Its elements.
    range: Range<usize>,
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
        device.pool.enter("optimizer", -1);
        let scalar = || device.zeros(1, 1, DType::F32, Category::Optimizer);
        let (sum_squares, scale, skip, norm) = (scalar(), scalar(), scalar(), scalar());
        let room = |role: Role, weight: &Value| match params.disk() {
            Some(disk) if disk.what().optimizer && Value::moves(weight.shape()) => {
                Value::on_disk(disk, weight.shape(), DType::F32, role, weight.layer())
            }
            _ => {
                let [rows, cols] = weight.shape();
                device.empty(rows, cols, DType::F32, Category::Optimizer).into()
            }
        };
        let state = |weight: &Value| State {
            m: room(Role::Moment1, weight),
            v: room(Role::Moment2, weight),
            master: (weight.dtype() != DType::F32).then(|| room(Role::Master, weight)),
        };
        let states = params.iter().map(|(_, param)| param.trainable.then(|| state(&param.value))).collect();
        let updates = device.zeros(1, 1, DType::I32, Category::Optimizer);
        let adamw = AdamW { states, updates, sum_squares, scale, skip, norm };
        adamw.begin(device, params);
        adamw
    }

    /// Zero moments, and masters equal to the weights.
    fn begin(&self, device: &Device, params: &Params) {
        let machine = &device.machine;
        let items = self.items(params);
        let parts = |item: usize| {
            let Item { param, state, range, .. } = &items[item];
            let part = |value, read| Part { value, range: range.clone(), read, write: !read };
            let weight = state.master.is_some().then(|| part(&param.value, true));
            let state = [Some(&state.m), Some(&state.v), state.master.as_ref()];
            state.into_iter().flatten().map(|value| part(value, false)).chain(weight).collect()
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
            let len = param.value.len();
            let some_away = param.value.away().is_some() || state.m.away().is_some();
            let ranges: Vec<Range<usize>> =
                if some_away { chunks(len).collect() } else { std::iter::once(0..len).collect() };
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
        machine.zero(&self.sum_squares);
        for (_, grad) in grads.iter() {
            machine.sum_squares(grad, &self.sum_squares);
        }
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
            let part = |value| Part { value, range: range.clone(), read: true, write: true };
            let values = [Some(&param.value), Some(&state.m), Some(&state.v), state.master.as_ref()];
            values.into_iter().flatten().map(part).collect()
        };
        sweep(params, items.len(), &parts, &mut |item, views| {
            let Item { id, param, range, .. } = &items[item];
            let Some(grad) = grads.get(*id) else { return };
            let grad = &grad.reshape(1, grad.len()).view_cols(range.clone());
            let weight_decay = if param.decays { settings.weight_decay } else { 0.0 };
            let (param, m, v, master) = (&views[0], &views[1], &views[2], views.get(3));
            let call =
                Call { param, master, m, v, grad, scale, skip, lr, beta1, beta2, eps, weight_decay, updates };
            machine.adamw(&call);
        });
        StepReport { norm: machine.read(norm), skipped: machine.read(skip) }
    }
}
