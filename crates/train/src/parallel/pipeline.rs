//! Runs micro-batches through the stages of a pipeline, in the order of [`super::stages::Order::acts`]. A single stage
//! runs the same code without sending anything.
//!
//! Sent buffers are freed at fixed points: a forward result when the gradient for it has come back, a gradient when the
//! next one of that stage is sent. The memory of a step therefore does not depend on the pace of other ranks. A
//! micro-batch's tables are loaded for its first forward pass and freed after its last backward pass, so the memory
//! does not depend on the number of micro-batches either.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use fathom_grad::{
    Batch, Counters, DeferredGrads, Grads, Memory, Offload, Params, Places, Scope, Spread, Tables, Tape,
};
use fathom_model::{Model, RetrievalOutput, SourceStream, Streams};
use fathom_tensor::mesh::{Axis, Group, Mesh, Transfers};
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
struct PendingForward<'a> {
    tape: Tape<'a>,
    /// The source's, and what this stage gives of it.
    source: Option<(Tape<'a>, SourceStream)>,
    /// The passes before the tape's, if the source reads neighbours of the main stream.
    meeting: Option<PendingSources<'a>>,
    /// The gradient of the result, on the last stage.
    dy: Option<Tensor>,
    /// The result in flight to the next stage.
    sending: Option<Transfers>,
    /// Gradients from the next stage.
    given: Vec<Shape>,
}

/// Rows, columns and type of a message.
type Shape = (usize, usize, DType);

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
        let mut waiting: BTreeMap<(usize, usize), PendingForward<'a>> = BTreeMap::new();
        let mut owed: BTreeMap<(usize, usize), Vec<DeferredGrads<'a>>> = BTreeMap::new();
        let mut returning: Vec<Option<Transfers>> = (0..chunks).map(|_| None).collect();
        // Sums over ranks wait until all segments that share a weight have contributed.
        let repeats = self.model.spec.segments_share_weights();
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
                    grads.set_last(index + 1 == micro_batches && !repeats);
                    let left = self.backward(&pp, held, chunk, &mut returning[chunk], grads);
                    // The first of a rank's stages finishes last.
                    if chunk == 0 && left.is_empty() {
                        loaded.remove(&index);
                    }
                    if !left.is_empty() {
                        owed.insert((index, chunk), left);
                    }
                }
                Act::Weights { micro: index, chunk } => {
                    grads.set_last(index + 1 == micro_batches && !repeats);
                    owed.remove(&(index, chunk)).into_iter().flatten().for_each(|left| left.add(grads));
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
        returning.into_iter().flatten().for_each(Transfers::wait);
    }

    /// Rank of the stage before or after one of this rank's, by index along the axis.
    fn neighbour(&self, pp: &Group, next: bool) -> usize {
        (pp.index() + if next { 1 } else { pp.size() - 1 }) % pp.size()
    }

    /// Receives tensors from another stage.
    fn arrival(&self, pp: &Group, what: &'static str, from: usize, shapes: &[Shape]) -> Vec<Tensor> {
        self.device.pool.enter("pipeline", -1);
        let room =
            |(rows, cols, dtype): &Shape| self.device.empty(*rows, *cols, *dtype, Category::Activations);
        let all: Vec<Tensor> = shapes.iter().map(room).collect();
        let taken: Vec<(usize, &Tensor)> = all.iter().map(|x| (from, x)).collect();
        pp.exchange(self.device, what, &[], &taken).wait();
        self.arrived.set(self.watch.now(&self.device.mesh));
        all
    }

    /// Shapes of the streams before a layer, or of their gradients: the rows of the main one, and of the source or its
    /// result, whose gradients are f32 sums.
    fn shapes(&self, micro: &DeviceMicroBatch<'a>, layer: usize, gradients: bool) -> Vec<Shape> {
        let (cols, dtype) = (self.model.spec.hidden, self.model.dtype(self.params));
        let share = Spread::of(&self.device.mesh).share();
        let main = (micro.batch.tokens / share, cols, dtype);
        let source = micro.source.iter().map(|source| match (layer < self.model.spec.source, gradients) {
            (true, _) => (source.tokens / share, cols, dtype),
            (false, true) => (source.tokens, cols, DType::F32),
            (false, false) => (source.tokens, cols, dtype),
        });
        std::iter::once(main).chain(source).collect()
    }

    /// A value that another stream reads, with room for its gradient.
    fn remember(&self, value: Tensor) -> Memory {
        let gradient = self.device.zeros(value.rows(), value.cols(), DType::F32, Category::Activations);
        Memory { value, gradient: Some(gradient) }
    }

    /// A sum of gradients in the type of activations.
    fn rounded(&self, sum: Tensor) -> Tensor {
        let (device, dtype) = (self.device, self.model.dtype(self.params));
        let rounded = device.empty(sum.rows(), sum.cols(), dtype, Category::Activations);
        device.machine.copy(&sum, &rounded);
        rounded
    }

    fn forward(
        &self,
        pp: &Group,
        micro: &DeviceMicroBatch<'a>,
        chunk: usize,
        grads: &mut Grads,
    ) -> PendingForward<'a> {
        let Pipeline { device, model, .. } = *self;
        let first = model.portion.first && chunk == 0;
        let last = model.portion.last && chunk + 1 == model.portion.chunks.len();
        let layers = &model.portion.chunks[chunk];
        let scope = |batch: &Rc<Batch>| {
            let batch = Tables::Shared(batch.clone());
            Scope { device, params: self.params, batch, counters: self.counters }
        };
        let tape = |scope| {
            let tape = Tape::new(scope, self.places).with_offload(self.offload);
            let tape = tape.with_split_backward(self.order == Order::ZeroBubble);
            if first { tape } else { tape.with_input_gradient() }
        };
        if model.spec.retrieval.is_some() {
            let tape = &|batch: &Rc<Batch>| tape(scope(batch));
            let mut above = tape(&micro.batch).with_input_gradient();
            let (y, meeting) = self.meet(micro, &mut above, tape);
            let dy = micro.minimise(model, &self.minimised, above.scope(), (&y, None), grads);
            drop(y);
            let (dy, meeting) = (Some(dy), Some(meeting));
            return PendingForward {
                tape: above,
                source: None,
                meeting,
                dy,
                sending: None,
                given: Vec::new(),
            };
        }
        let mut asked =
            if last { micro.ask(device, &self.minimised, (self.places, self.counters)) } else { None };
        let below = micro.source.as_ref().map(|batch| tape(scope(batch)));
        let mut tape = tape(scope(&micro.batch)).with_jitter(micro.jitter.as_ref());
        let pull = micro.pull((model, tape.scope()), &self.minimised, asked.as_mut());
        tape = tape.with_pull(pull);
        let shapes = |layer, gradients| self.shapes(micro, layer, gradients);
        let x = (!first).then(|| {
            self.arrival(pp, "forward", self.neighbour(pp, false), &shapes(layers.start, false)).into_iter()
        });
        let (y, source) = match below {
            None => (model.forward_chunk(&mut tape, chunk, x.and_then(|mut x| x.next())), None),
            Some(mut below) => {
                let result = layers.start >= model.spec.source;
                let streams = x.and_then(|mut x| {
                    let (main, source) = (x.next()?, x.next()?);
                    let source = if result {
                        SourceStream::Result(self.remember(source))
                    } else {
                        SourceStream::Rows(source)
                    };
                    Some(Streams { main, source })
                });
                let runs = [&mut below, &mut tape];
                let Streams { main, source } =
                    model.forward_streams(runs, chunk, streams, &|value| self.remember(value));
                (main, Some((below, source)))
            }
        };
        if !last {
            device.pool.enter("pipeline", -1);
            let next = self.neighbour(pp, true);
            let of_source = source.as_ref().map(|(_, source)| (next, source.rows()));
            let given: Vec<(usize, &Tensor)> = std::iter::once((next, &y)).chain(of_source).collect();
            let sending = Some(pp.exchange(device, "forward", &given, &[]));
            return PendingForward {
                tape,
                source,
                meeting: None,
                dy: None,
                sending,
                given: shapes(layers.end, true),
            };
        }
        let dy = micro.minimise(model, &self.minimised, tape.scope(), (&y, asked.as_ref()), grads);
        drop((y, asked));
        PendingForward { tape, source, meeting: None, dy: Some(dy), sending: None, given: Vec::new() }
    }

    fn backward(
        &self,
        pp: &Group,
        held: PendingForward<'a>,
        chunk: usize,
        returning: &mut Option<Transfers>,
        grads: &mut Grads,
    ) -> Vec<DeferredGrads<'a>> {
        let device = self.device;
        let PendingForward { tape, source, meeting, dy, sending, given } = held;
        let (dy, of_source) = match dy {
            Some(dy) => (Some(dy), None),
            None => {
                let mut arrived = self.arrival(pp, "backward", self.neighbour(pp, true), &given).into_iter();
                (arrived.next(), arrived.next())
            }
        };
        // The next stage received this long ago: it has sent back its gradient.
        sending.into_iter().for_each(Transfers::wait);
        let mut owed = Vec::new();
        let mut back = |tape: Tape<'a>, dy, grads: &mut Grads| match self.order {
            Order::OneByOne => tape.backward(dy, grads),
            Order::ZeroBubble => {
                let (dx, left) = tape.backward_input(dy, grads);
                owed.push(left);
                dx
            }
        };
        // Layers after this one's have terms of the gradient of the source's result.
        if let (Some((_, SourceStream::Result(Memory { gradient: Some(sum), .. }))), Some(more)) =
            (&source, &of_source)
        {
            device.machine.copy(more, sum);
        }
        let dx = dy.and_then(|dy| back(tape, dy, grads));
        let dx = match (meeting, dx) {
            (Some(meeting), Some(dx)) => {
                meeting.backward(self, dx, &mut back, grads);
                None
            }
            (_, dx) => dx,
        };
        let dsource = source.and_then(|(below, source)| {
            let inside = self.model.portion.chunks[chunk].start < self.model.spec.source;
            match source {
                SourceStream::Rows(_) => back(below, of_source?, grads),
                SourceStream::Result(Memory { gradient, .. }) if inside => {
                    let dy = self.rounded(gradient?);
                    back(below, dy, grads)
                }
                SourceStream::Result(Memory { gradient, .. }) => gradient,
            }
        });
        let first = self.model.portion.first && chunk == 0;
        if let Some(dx) = dx.filter(|_| !first) {
            returning.take().into_iter().for_each(Transfers::wait);
            device.pool.enter("pipeline", -1);
            let before = self.neighbour(pp, false);
            let given: Vec<(usize, &Tensor)> =
                [Some(&dx), dsource.as_ref()].into_iter().flatten().map(|dx| (before, dx)).collect();
            *returning = Some(pp.exchange(device, "backward", &given, &[]));
        }
        owed
    }
}

/// The backward pass of a tape: the gradient of its input.
type Back<'b, 'a> = &'b mut dyn FnMut(Tape<'a>, Tensor, &mut Grads) -> Option<Tensor>;

/// Forward passes before that of the main stream's last layers, whose backward passes are still to come.
struct PendingSources<'a> {
    below: Tape<'a>,
    rows: Tape<'a>,
    source: Tape<'a>,
    chunks: Memory,
    neighbours: Memory,
}

impl<'a> Pipeline<'a> {
    /// Runs a micro-batch forward; `above` is the tape of the main stream's last layers. Returns the hidden states before
    /// the head.
    fn meet(
        &self,
        micro: &DeviceMicroBatch<'a>,
        above: &mut Tape<'a>,
        tape: &dyn Fn(&Rc<Batch>) -> Tape<'a>,
    ) -> (Tensor, PendingSources<'a>) {
        let Some(batch) = &micro.source else { panic!("step: a micro-batch without a stream of neighbours") };
        let mut below = tape(&micro.batch).with_jitter(micro.jitter.as_ref());
        // Its input is that of the main stream's last layers too, so it stays in memory.
        let mut rows = tape(&micro.batch).with_input_gradient().with_offload(None);
        let mut source = tape(batch);
        let runs = [&mut below, &mut rows, &mut source, above];
        let RetrievalOutput { main, chunks, neighbours } =
            self.model.forward_retrieval(runs, &|value| self.remember(value));
        (main, PendingSources { below, rows, source, chunks, neighbours })
    }
}

impl<'a> PendingSources<'a> {
    /// The backward passes from the gradient of the rows where both streams meet.
    fn backward(self, pipeline: &Pipeline<'a>, dx: Tensor, back: Back<'_, 'a>, grads: &mut Grads) {
        let PendingSources { below, rows, source, chunks, neighbours } = self;
        drop((chunks.value, neighbours.value));
        if let Some(sum) = neighbours.gradient {
            back(source, pipeline.rounded(sum), grads);
        }
        let more = chunks.gradient.and_then(|sum| back(rows, pipeline.rounded(sum), grads));
        if let Some(more) = more {
            pipeline.device.machine.add(&dx, &more, &dx);
        }
        back(below, dx, grads);
    }
}
