//! Counters of a step: FLOPs, times, and loads of experts.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use fathom_tensor::{Machine, Tensor};

/// Counts of the work so far, and its times if requested.
#[derive(Default)]
pub struct Counters {
    pub(crate) state: RefCell<Counts>,
    loads: RefCell<Option<Tensor>>,
    /// The machine whose clock spans use too.
    machine: RefCell<Option<Arc<dyn Machine>>>,
}

/// The figures of [`Counters`].
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Attention once under its mask, no replay.
    pub model_flops: u128,
    /// All executed work.
    pub hardware_flops: u128,
    /// Number of replayed operations.
    pub replayed: u128,
    /// Present when profiling.
    pub spans: Option<Vec<Span>>,
}

/// One operation's time.
#[derive(Clone, Debug)]
pub struct Span {
    /// `linear`, `attention backward`, ...
    pub name: String,
    /// Its layer.
    pub layer: i32,
    /// Start time.
    pub start: Instant,
    /// Duration in seconds.
    pub seconds: f64,
    /// The machine's own time stamps of both ends ([`fathom_tensor::Machine::stamp`]), if operations are not finished
    /// when calls return.
    pub stamps: Option<[u64; 2]>,
}

impl Counters {
    /// The figures so far.
    pub fn get(&self) -> Counts {
        self.state.borrow().clone()
    }

    /// FLOPs of the model so far.
    pub fn model_flops(&self) -> u128 {
        self.state.borrow().model_flops
    }

    /// Restarts; `profile` records the time of each operation.
    pub fn reset(&self, profile: bool) {
        *self.state.borrow_mut() = Counts { spans: profile.then(Vec::new), ..Counts::default() };
    }

    /// [`Counters::reset`]; a profile also has the machine's own times, starting now.
    pub fn reset_on(&self, profile: bool, machine: &Arc<dyn Machine>) {
        self.reset(profile);
        // The first time stamp is the beginning of the profile.
        let timed = profile && machine.stamp().is_some();
        *self.machine.borrow_mut() = timed.then(|| machine.clone());
    }

    /// Makes routers count from here on: each layer's row of this f32 [layers, experts] gets the slots of its experts.
    pub fn count_loads(&self, loads: &Tensor) {
        *self.loads.borrow_mut() = Some(loads.clone());
    }

    /// The tensor for routers' counts.
    pub(crate) fn loads(&self) -> Option<Tensor> {
        self.loads.borrow().clone()
    }

    /// FLOPs of the model, FLOPs executed, operations replayed.
    pub(crate) fn work(&self) -> [u128; 3] {
        let state = self.state.borrow();
        [state.model_flops, state.hardware_flops, state.replayed]
    }

    /// Adds known work.
    pub(crate) fn add_work(&self, [model, hardware, replayed]: [u128; 3]) {
        let mut state = self.state.borrow_mut();
        state.model_flops += model;
        state.hardware_flops += hardware;
        state.replayed += replayed;
    }

    /// True if the time of each operation is recorded.
    pub(crate) fn has_spans(&self) -> bool {
        self.state.borrow().spans.is_some()
    }

    /// Counts the work since `before` another `times` times.
    pub(crate) fn repeat_since(&self, before: [u128; 3], times: u64) {
        let mut state = self.state.borrow_mut();
        let Counts { model_flops, hardware_flops, replayed, .. } = &mut *state;
        for (now, before) in [model_flops, hardware_flops, replayed].into_iter().zip(before) {
            *now += (*now - before) * u128::from(times);
        }
    }

    /// Adds work done outside a graph.
    pub fn add(&self, model: u64, hardware: u64) {
        let mut state = self.state.borrow_mut();
        state.model_flops += u128::from(model);
        state.hardware_flops += u128::from(hardware);
    }

    /// Runs `work`, and records its time when profiling.
    pub fn span<T>(&self, name: &str, part: &str, layer: i32, work: impl FnOnce() -> T) -> T {
        if self.state.borrow().spans.is_none() {
            return work();
        }
        let stamp = || self.machine.borrow().as_ref().and_then(|machine| machine.stamp());
        let (start, from) = (Instant::now(), stamp());
        let result = work();
        let (seconds, to) = (start.elapsed().as_secs_f64(), stamp());
        let stamps = from.zip(to).map(|(from, to)| [from, to]);
        let span = Span { name: format!("{name}{part}"), layer, start, seconds, stamps };
        if let Some(spans) = &mut self.state.borrow_mut().spans {
            spans.push(span);
        }
        result
    }
}
