//! Runs micro-batches through the stages of a pipeline, in the order of [`super::stages::Order::acts`]. A single stage
//! runs the same code without sending anything.
//!
//! Sent buffers are freed at fixed points: a forward result when the gradient for it has come back, a gradient when the
//! next one of that stage is sent. The memory of a step therefore does not depend on the pace of other ranks. A
//! micro-batch's tables are loaded for its first forward pass and freed after its last backward pass, so the memory
//! does not depend on the number of micro-batches either.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Instant;

use fathom_grad::{Counters, DeferredGrads, Grads, Offload, Params, Places, Scope, Tables, Tape};
use fathom_model::Model;
use fathom_tensor::mesh::{Axis, Flying, Group, Mesh};
use fathom_tensor::{Category, Clock, DType, Device, Tensor};

use super::stages::{Act, Order};
use crate::loaded::{DeviceMicroBatch, StepObjective};

/// A timed part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    pub act: Act,
    /// When its inputs had arrived.
    pub start_s: f64,
    pub end_s: f64,
    /// Seconds within it spent waiting for messages.
    pub wait_s: f64,
    /// Seconds of the step spent waiting up to its end.
    pub waited_s: f64,
}

/// Clock for the parts of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Watch<'a> {
    /// No timing.
    Off,
    /// The clock of a machine without data.
    Planned(&'a Clock),
    /// Wall time since an instant.
    Since(Instant),
}

impl Watch<'_> {
    /// Seconds elapsed, and seconds spent waiting so far.
    fn now(&self, mesh: &Mesh) -> Option<[f64; 2]> {
        match self {
            Watch::Off => None,
            Watch::Planned(clock) => Some([clock.now(), clock.times().exposed_s]),
            Watch::Since(started) => Some([started.elapsed().as_secs_f64(), mesh.traffic().wait_s]),
        }
    }
}

/// Everything that a rank needs to run a step's micro-batches.
pub(crate) struct Pipeline<'a> {
    pub device: &'a Device,
    pub model: &'a Model,
    pub params: &'a Params,
    pub places: &'a Places,
    pub offload: Option<&'a Offload>,
    pub counters: &'a Counters,
    /// Objective and accumulators of the last stage.
    pub minimised: StepObjective<'a>,
    /// The clock.
    pub watch: Watch<'a>,
    /// The recorded times.
    pub laps: &'a RefCell<Vec<Lap>>,
    /// When the inputs of the current part had arrived.
    pub arrived: Cell<Option<[f64; 2]>>,
    /// Order in which micro-batches pass through the stages.
    pub order: Order,
}

/// A forward pass whose backward pass is still to come.
struct Waiting<'a> {
    tape: Tape<'a>,
    /// The gradient of the result, on the last stage.
    dy: Option<Tensor>,
    /// The result in flight to the next stage.
    sending: Option<Flying>,
    rows: (usize, usize, DType),
}

impl<'a> Pipeline<'a> {
    /// Runs forward and backward passes of `micro_batches` micro-batches, each put on the machine by `load`; adds to
    /// `grads`.
    ///
    /// # Panics
    /// If the micro-batches do not fill the stages in whole groups.
    #[track_caller]
    pub fn run(&self, micro_batches: usize, load: &dyn Fn(usize) -> DeviceMicroBatch<'a>, grads: &mut Grads) {
        let pp = self.device.mesh.group(&[Axis::Pp]);
        let chunks = self.model.portion.chunks.len();
        let acts = self.order.acts(pp.index(), pp.size(), chunks, micro_batches);
        let acts = acts.unwrap_or_else(|message| panic!("pipeline: {message}"));
        let mut loaded: BTreeMap<usize, DeviceMicroBatch<'a>> = BTreeMap::new();
        let mut waiting: BTreeMap<(usize, usize), Waiting<'a>> = BTreeMap::new();
        let mut owed: BTreeMap<(usize, usize), DeferredGrads<'a>> = BTreeMap::new();
        let mut returning: Vec<Option<Flying>> = (0..chunks).map(|_| None).collect();
        let now = || self.watch.now(&self.device.mesh);
        for act in acts {
            self.arrived.set(now());
            match act {
                Act::Forward { micro: index, chunk } => {
                    let tables = loaded.entry(index).or_insert_with(|| load(index));
                    let held = self.forward(&pp, tables, chunk, grads);
                    waiting.insert((index, chunk), held);
                }
                Act::Backward { micro: index, chunk } => {
                    let Some(held) = waiting.remove(&(index, chunk)) else { continue };
                    grads.set_last(index + 1 == micro_batches);
                    let left = self.backward(&pp, held, chunk, &mut returning[chunk], grads);
                    // The first of a rank's stages finishes last.
                    if chunk == 0 && left.is_none() {
                        loaded.remove(&index);
                    }
                    owed.extend(left.map(|left| ((index, chunk), left)));
                }
                Act::Weights { micro: index, chunk } => {
                    grads.set_last(index + 1 == micro_batches);
                    owed.remove(&(index, chunk)).into_iter().for_each(|left| left.add(grads));
                    loaded.remove(&index);
                }
            }
            if let (Some([start_s, before_s]), Some([end_s, waited_s])) = (self.arrived.get(), now()) {
                self.laps.borrow_mut().push(Lap {
                    act,
                    start_s,
                    end_s,
                    wait_s: waited_s - before_s,
                    waited_s,
                });
            }
        }
        returning.into_iter().flatten().for_each(Flying::wait);
    }

    /// Rank of the stage before or after one of this rank's, by index along the axis.
    fn neighbour(&self, pp: &Group, next: bool) -> usize {
        (pp.index() + if next { 1 } else { pp.size() - 1 }) % pp.size()
    }

    /// Receives a tensor from another stage.
    fn arrival(
        &self,
        pp: &Group,
        what: &'static str,
        from: usize,
        (rows, cols, dtype): (usize, usize, DType),
    ) -> Tensor {
        self.device.pool.enter("pipeline", -1);
        let x = self.device.empty(rows, cols, dtype, Category::Activations);
        pp.exchange(self.device, what, &[], &[(from, &x)]).wait();
        self.arrived.set(self.watch.now(&self.device.mesh));
        x
    }

    fn forward(
        &self,
        pp: &Group,
        micro: &DeviceMicroBatch<'a>,
        chunk: usize,
        grads: &mut Grads,
    ) -> Waiting<'a> {
        let Pipeline { device, model, .. } = *self;
        let first = model.portion.first && chunk == 0;
        let last = model.portion.last && chunk + 1 == model.portion.chunks.len();
        let batch = Tables::Shared(micro.batch.clone());
        let scope = Scope { device, params: self.params, batch, counters: self.counters };
        let share = scope.spread().share();
        let rows = (micro.batch.tokens / share, model.spec.hidden, model.dtype(self.params));
        let mut asked =
            if last { micro.ask(device, &self.minimised, (self.places, self.counters)) } else { None };
        let mut tape = Tape::new(scope, self.places).with_offload(self.offload);
        tape = tape.with_split_backward(self.order == Order::ZeroBubble).with_jitter(micro.jitter.as_ref());
        let pull = micro.pull((model, tape.scope()), &self.minimised, asked.as_mut());
        tape = tape.with_pull(pull);
        let x = (!first).then(|| self.arrival(pp, "forward", self.neighbour(pp, false), rows));
        if !first {
            tape = tape.with_input_gradient();
        }
        let y = model.forward_chunk(&mut tape, chunk, x);
        if !last {
            device.pool.enter("pipeline", -1);
            let sending = pp.exchange(device, "forward", &[(self.neighbour(pp, true), &y)], &[]);
            return Waiting { tape, dy: None, sending: Some(sending), rows };
        }
        let dy = micro.minimise(model, &self.minimised, tape.scope(), (&y, asked.as_ref()), grads);
        drop((y, asked));
        Waiting { tape, dy: Some(dy), sending: None, rows }
    }

    fn backward(
        &self,
        pp: &Group,
        held: Waiting<'a>,
        chunk: usize,
        returning: &mut Option<Flying>,
        grads: &mut Grads,
    ) -> Option<DeferredGrads<'a>> {
        let device = self.device;
        let Waiting { tape, dy, sending, rows } = held;
        let dy = dy.unwrap_or_else(|| self.arrival(pp, "backward", self.neighbour(pp, true), rows));
        // The next stage received this long ago: it has sent back its gradient.
        sending.into_iter().for_each(Flying::wait);
        let (dx, owed) = match self.order {
            Order::OneByOne => (tape.backward(dy, grads), None),
            Order::ZeroBubble => {
                let (dx, owed) = tape.backward_input(dy, grads);
                (dx, Some(owed))
            }
        };
        let first = self.model.portion.first && chunk == 0;
        if let Some(dx) = dx.filter(|_| !first) {
            returning.take().into_iter().for_each(Flying::wait);
            device.pool.enter("pipeline", -1);
            *returning = Some(pp.exchange(device, "backward", &[(self.neighbour(pp, false), &dx)], &[]));
        }
        owed
    }
}
