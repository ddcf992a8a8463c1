//! A tape per micro-batch: segments run forward one after the other, and backward in reverse.

use std::collections::BTreeMap;
use std::rc::Rc;

use fathom_tensor::spill::{Codec, Tag};
use fathom_tensor::{Device, Tensor};

use crate::context::Context;
use crate::grads::Grads;
use crate::graph::{Ctx, Graph, Val};
use crate::held::{Far, HeldValue, HeldValues, Offload, OffloadArgs};
use crate::memo::{Key, Pass, PassKey, PlacedSegment, Segment, Which};
use crate::op::{Desc, LayerMemory};
use crate::owed::{Debt, DeferredGrads};
use crate::param_id::ParamId;
use crate::params::Weights;
use crate::places::{Place, Places};
use crate::run::{Runner, Store};
use crate::schedule::{At, Schedule};
use crate::scope::{Scope, exec};

/// A further input of segments: an encoder's output, an image's features. It has its own number of rows, all of which
/// are on each of the ranks that share a sub-layer ([`Ctx::enter`] in the segment that makes it).
#[derive(Clone, Debug)]
pub struct Memory {
    /// [rows, cols].
    pub value: Tensor,
    /// f32 [rows, cols], to which backward passes add; `None` if the gradient is not wanted. Each of the ranks has a
    /// term of it, which the backward pass of [`Ctx::enter`] sums.
    pub gradient: Option<Tensor>,
}

impl Memory {
    /// Descriptions for recording a segment: the shape of each, and its rows.
    pub fn descs(all: &[Memory]) -> Vec<(Desc, usize)> {
        all.iter().map(|memory| (Desc::of(&memory.value), memory.value.rows())).collect()
    }
}

/// A segment that ran forward and awaits its backward pass.
struct PendingSegment {
    at: PlacedSegment,
    memory: Vec<Memory>,
    holding: HeldValues,
}

/// Runs segments without keeping activations; with a key-value cache if one is given.
pub struct Eval<'a> {
    scope: Scope<'a>,
    places: Places,
    batch: usize,
    kv: Option<&'a mut dyn LayerMemory>,
    /// Weights of the next segment, being fetched.
    ahead: Option<Weights<'a>>,
    /// Numbers of blocks after which the residual stream is saved, and the saved streams.
    taps: (Vec<usize>, BTreeMap<usize, Tensor>),
}

/// A callback for the residual stream, called during the forward pass with the number of blocks before it. A returned
/// value of the stream's shape and type is added to the gradient there.
pub type Pull = Box<dyn Fn(usize, &Tensor) -> Option<Tensor>>;

/// Runs segments and keeps the values that their backward passes need.
pub struct Tape<'a> {
    scope: Scope<'a>,
    places: &'a Places,
    /// Indices of the table of places and of the batch in the cache.
    numbers: [usize; 2],
    offload: Option<&'a Offload>,
    done: Vec<PendingSegment>,
    /// Weights of the next segment, being fetched.
    ahead: Option<Weights<'a>>,
    /// True if the output of the last segment depends on something trainable.
    input_grad: bool,
    /// True if weight gradients are deferred.
    split: bool,
    /// Noise for the rows of the embedding's output.
    jitter: Option<Jitter>,
    /// Callback for the residual stream.
    pull: Option<Pull>,
    /// Gradients returned by it, with the number of segments before each.
    pulls: Vec<(usize, Tensor)>,
}

/// Noise on the embedding's output, which is the same whenever it is computed.
#[derive(Clone, Debug)]
pub struct Jitter {
    /// i32 [1, rows]: random key of each row.
    pub keys: Tensor,
    /// f32 [1, rows]: scale of each row.
    pub scales: Tensor,
}

/// Names the operations of a segment, given its input and further inputs.
pub type Body<'s, 'a> = &'s dyn Fn(&mut Ctx<'a>, Val, &[Val]) -> Val;

/// Runs a model's segments, recording or not: the model's forward function is written once over this.
pub trait Segments<'a> {
    /// Runs one segment: `body` names the operations of a block. It is not called if a segment of the same kind is
    /// cached.
    fn segment(
        &mut self,
        which: impl Into<Which>,
        x: Option<Tensor>,
        body: &dyn Fn(&mut Ctx<'a>, Val) -> Val,
    ) -> Tensor {
        self.run(which.into(), x, &[], &|cx, x, _| body(cx, x))
    }

    /// Runs a segment that reads `memory` besides its input.
    fn run(&mut self, which: Which, x: Option<Tensor>, memory: &[Memory], body: Body<'_, 'a>) -> Tensor;

    /// Number of blocks per segment.
    fn layers_per_segment(&self) -> usize;

    /// Called with the output of the embedding before the first block reads it: training adds noise here.
    fn embedded(&self, _x: &Tensor) {}

    /// Called with the residual stream after this number of the model's blocks; 0 for the first block's input.
    fn passed(&mut self, _blocks: usize, _x: &Tensor) {}
}

/// Start of a segment: its identity, its input, and its further inputs.
#[derive(Clone, Copy)]
struct Start<'s> {
    which: &'s Which,
    x: Option<&'s Tensor>,
    memory: &'s [Memory],
}

/// The cached segment of a kind, or one that is recorded and scheduled now.
fn placed<'a>(
    scope: &Scope<'a>,
    Start { which, x, memory }: Start<'_>,
    pass: impl FnOnce() -> Pass,
    schedule: &dyn Fn(&Graph) -> Schedule,
    body: Body<'_, 'a>,
) -> PlacedSegment {
    let alike = which.alike.clone().filter(|_| scope.params.memo().is_on());
    let which = &Which { alike, ..*which };
    let record = || {
        let graph = Ctx::record(scope.params, scope.spread(), x.map(Desc::of), &Memory::descs(memory), body);
        let schedule = schedule(&graph);
        Segment::new(graph, schedule, which)
    };
    let segment = match &which.alike {
        None => Rc::new(record()),
        Some(alike) => {
            let input = x.map(|x| (x.cols(), x.dtype()));
            let of = |Memory { value, gradient }: &Memory| {
                (value.cols(), value.dtype(), value.rows(), gradient.is_some())
            };
            let memory = memory.iter().map(of).collect();
            let key = Key { kind: alike.kind.clone(), input, memory, spread: scope.spread(), pass: pass() };
            scope.params.memo().segment(key, record)
        }
    };
    PlacedSegment::new(segment, which)
}

/// Stores a segment's further inputs for a pass.
fn remember(store: &mut Store, graph: &Graph, memory: &[Memory]) {
    for (val, memory) in graph.memory.iter().zip(memory) {
        store.values[val.index()] = Some(memory.value.clone());
    }
}

/// A segment's weights, in memory; starts to fetch those of the next segment. The head counts as a segment if it
/// `follows`.
fn weights<'a>(
    scope: &Scope<'a>,
    at: &PlacedSegment,
    ahead: &mut Option<Weights<'a>>,
    follows: bool,
) -> Weights<'a> {
    let weights = scope.params.fetch(scope.device, at.weights());
    if !weights.is_empty() {
        let ids: Vec<ParamId> = at.weights().collect();
        *ahead = scope.params.fetch_after(scope.device, &ids, follows);
    }
    weights.wait();
    weights
}

/// The state on which a pass's steps depend.
fn found(scope: &Scope<'_>, at: &PlacedSegment, batch: usize, grads: Option<&Grads>) -> PassKey {
    let alike = scope.batch.context.as_ref().is_none_or(Context::is_same_everywhere);
    PassKey {
        backward: grads.is_some(),
        layer: if alike { -1 } else { at.layer },
        batch,
        grads: grads.map_or_else(Vec::new, |grads| grads.states(at.weights())),
        packings: scope.params.packings(at.weights()),
        all_tiles: scope.device.pool.is_recording(),
        counts: scope.counters.loads().is_some(),
    }
}

/// Index of a batch in the cache, for a machine without data.
fn batch_number(scope: &Scope<'_>) -> usize {
    if scope.device.machine.has_data() { 0 } else { scope.params.memo().batch(&scope.batch) }
}

/// Marks the beginning and end of a block's operations for the machine.
fn block(device: &Device, run: impl FnOnce()) {
    device.machine.enter_block();
    run();
    device.machine.leave_block();
}

impl<'a> Eval<'a> {
    /// An evaluation pass; rows regions run in tiles of `tile_rows`.
    pub fn new(scope: Scope<'a>, tile_rows: Option<usize>, kv: Option<&'a mut dyn LayerMemory>) -> Eval<'a> {
        let batch = batch_number(&scope);
        let taps = Default::default();
        Eval { scope, places: Places::none().with_tiles(tile_rows), batch, kv, ahead: None, taps }
    }

    /// Saves the residual stream after each of these numbers of blocks.
    pub fn with_taps(mut self, blocks: Vec<usize>) -> Eval<'a> {
        self.taps.0 = blocks;
        self
    }

    /// The saved streams, by number of blocks.
    pub fn into_taps(self) -> BTreeMap<usize, Tensor> {
        self.taps.1
    }
}

impl<'a> Segments<'a> for Eval<'a> {
    fn layers_per_segment(&self) -> usize {
        1
    }

    fn passed(&mut self, blocks: usize, x: &Tensor) {
        let (wanted, found) = &mut self.taps;
        if wanted.contains(&blocks) {
            found.insert(blocks, x.clone());
        }
    }

    fn run(&mut self, which: Which, x: Option<Tensor>, memory: &[Memory], body: Body<'_, 'a>) -> Tensor {
        let scope = &self.scope;
        let schedule = |graph: &Graph| Schedule::forward_only(graph, scope.params);
        let (counters, tile_rows) = (scope.counters, self.places.tile_rows);
        let at = placed(
            scope,
            Start { which: &which, x: x.as_ref(), memory },
            || Pass::Eval(tile_rows),
            &schedule,
            body,
        );
        let _weights = weights(scope, &at, &mut self.ahead, false);
        let mut exec = exec(scope, &at, self.places.head_groups);
        exec.kv = self.kv.as_deref_mut().map(|kv| kv as &mut dyn LayerMemory);
        exec.trains = false;
        let known = exec.kv.is_none() && !counters.has_spans();
        let graph = at.graph();
        let mut store = Store::new(graph.values.len(), 0);
        if let Some(input) = graph.input {
            store.values[input.index()] = x;
        }
        remember(&mut store, graph, memory);
        let mut runner = Runner::new(&at, &mut exec, counters, tile_rows, store);
        if known {
            runner.known = at.steps(scope.device, || found(scope, &at, self.batch, None));
        }
        block(scope.device, || runner.run(&at.schedule().forward));
        take_output(&mut runner.store, graph)
    }
}

impl<'a> Tape<'a> {
    /// A tape for one micro-batch.
    pub fn new(scope: Scope<'a>, places: &'a Places) -> Tape<'a> {
        let numbers = [scope.params.memo().places(places), batch_number(&scope)];
        let (done, input_grad, split) = (Vec::new(), false, false);
        let (offload, ahead, jitter, pull, pulls) = (None, None, None, None, Vec::new());
        Tape { scope, places, numbers, offload, done, ahead, input_grad, split, jitter, pull, pulls }
    }

    /// The tape's scope.
    pub fn scope(&self) -> &Scope<'a> {
        &self.scope
    }

    /// Makes the backward pass return the gradient of the first segment's input.
    pub fn with_input_gradient(mut self) -> Tape<'a> {
        self.input_grad = true;
        self
    }

    /// Adds noise to the embedding's output.
    pub fn with_jitter(mut self, jitter: Option<&Jitter>) -> Tape<'a> {
        self.jitter = jitter.cloned();
        self
    }

    /// Sets the callback for the residual stream.
    pub fn with_pull(mut self, pull: Option<Pull>) -> Tape<'a> {
        self.pull = pull;
        self
    }

    /// Makes the backward pass [`Tape::backward_input`].
    pub fn with_split_backward(mut self, split: bool) -> Tape<'a> {
        self.split = split;
        self
    }

    /// Sets the engines for values in [`Place::Host`](crate::Place::Host) and [`Place::Disk`](crate::Place::Disk);
    /// without them such values stay in memory. After a failed transfer the step continues with meaningless values:
    /// call [`Offload::check`] before the update.
    pub fn with_offload(mut self, offload: Option<&'a Offload>) -> Tape<'a> {
        self.offload = offload;
        self
    }

    /// Calls `see` for the values that segments hold in memory for their backward passes, first segment first: the
    /// layer (negative before and after the blocks), the value's name and the value. A segment's input comes first, as
    /// `block.in`.
    pub fn each_kept(&self, see: &mut dyn FnMut(i32, &str, &Tensor)) {
        for PendingSegment { at, holding, .. } in &self.done {
            let graph = at.graph();
            let held = holding.vals.iter().filter_map(|(val, held)| Some((*val, held.tensor()?)));
            let (input, others): (Vec<_>, Vec<_>) = held.partition(|(val, _)| Some(*val) == graph.input);
            input.into_iter().for_each(|(_, x)| see(at.layer, "block.in", x));
            others.into_iter().for_each(|(val, x)| see(at.layer, graph.values[val.index()].name, x));
        }
    }

    /// The backward pass from the gradient of the last segment's output; adds to `grads` and returns the gradient of
    /// the first segment's input if [`Tape::with_input_gradient`] was set. Storage is released segment by segment.
    pub fn backward(self, dy: Tensor, grads: &mut Grads) -> Option<Tensor> {
        self.reverse(dy, grads, None)
    }

    /// [`Tape::backward`] with deferred weight gradients: their operands stay in memory. They have the same bits if
    /// those of every tape are added in the order of the micro-batches. For tapes
    /// [`with_split_backward`](Tape::with_split_backward).
    ///
    /// # Panics
    /// If the tape is of another kind.
    #[track_caller]
    pub fn backward_input(self, dy: Tensor, grads: &mut Grads) -> (Option<Tensor>, DeferredGrads<'a>) {
        assert!(self.split, "backward_input: the tape was not made to be split");
        let (scope, head_groups, mut segments) = (self.scope.clone(), self.places.head_groups, Vec::new());
        let dx = self.reverse(dy, grads, Some(&mut segments));
        (dx, DeferredGrads { scope, head_groups, segments })
    }

    /// The segment, with the steps for the tape's places.
    fn placed(&self, start: Start<'_>, body: Body<'_, 'a>) -> PlacedSegment {
        let Start { which, memory, .. } = start;
        let (places, input_grad, split) = (self.places, self.input_grad, self.split);
        let wanted: Vec<bool> = memory.iter().map(|memory| memory.gradient.is_some()).collect();
        let reaches = |place| self.offload.is_some_and(|offload| offload.engine(place).is_some());
        let pass = || Pass::Tape {
            places: self.numbers[0],
            rules: places.rules_of(which.layer),
            input_grad,
            behind: [Place::Host, Place::Disk].map(reaches),
            split,
        };
        let schedule = |graph: &Graph| {
            let (layer, memory_grads) = (which.layer, &wanted[..]);
            let at = At { places, layer, input_grad, memory_grads, reaches: &reaches, split };
            Schedule::new(graph, self.scope.params, at)
        };
        placed(&self.scope, start, pass, &schedule, body)
    }

    fn reverse(mut self, dy: Tensor, grads: &mut Grads, mut debts: Option<&mut Vec<Debt>>) -> Option<Tensor> {
        if let Some(top) = self.done.last_mut() {
            top.holding.fetch_first(self.scope.device);
        }
        let mut dy = Some(dy);
        self.ahead = None;
        while let Some(done) = self.done.pop() {
            if let (Some(dy), Some((_, more))) =
                (&dy, self.pulls.pop_if(|(before, _)| *before == self.done.len()))
            {
                self.scope.device.machine.add(dy, &more, dy);
            }
            let weights = self.scope.params.fetch(self.scope.device, done.at.reread());
            let below = self.done.last().into_iter().flat_map(|below| below.at.reread());
            self.ahead = Some(self.scope.params.fetch(self.scope.device, below));
            weights.wait();
            let trains = !done.at.schedule().backward.is_empty();
            let named: Vec<ParamId> = done.at.weights().filter(|_| trains).collect();
            if debts.is_none() {
                grads.enter(self.scope.device, &named);
            }
            dy = self.backward_segment(done, dy?, grads, debts.as_deref_mut());
            if debts.is_none() {
                grads.leave(self.scope.device, &named);
            }
        }
        dy
    }

    fn backward_segment(
        &mut self,
        done: PendingSegment,
        dy: Tensor,
        grads: &mut Grads,
        debts: Option<&mut Vec<Debt>>,
    ) -> Option<Tensor> {
        let PendingSegment { at, memory, mut holding } = done;
        let (graph, schedule) = (at.graph(), at.schedule());
        if schedule.backward.is_empty() {
            return None;
        }
        let mut store = Store::new(graph.values.len(), schedule.num_grads);
        for (val, held) in &mut holding.vals {
            if !schedule.offloaded.contains(val) {
                store.values[val.index()] = Some(held.arrive(self.scope.device));
            }
        }
        remember(&mut store, graph, &memory);
        store.grads[schedule.dy as usize] = Some(dy);
        let mut exec = exec(&self.scope, &at, self.places.head_groups);
        let (counters, tile_rows) = (self.scope.counters, self.places.tile_rows);
        let (own, below) = (Some(&mut holding), self.done.last_mut().map(|done| &mut done.holding));
        let mut due = Vec::new();
        let mut runner = Runner::new(&at, &mut exec, counters, tile_rows, store);
        if !counters.has_spans() {
            let found = || found(&self.scope, &at, self.numbers[1], Some(grads));
            runner.known = at.steps(self.scope.device, found);
        }
        runner.grads = Some(grads);
        runner.far = Far { own, below };
        runner.due = debts.is_some().then_some(&mut due);
        block(self.scope.device, || runner.run(&schedule.backward));
        let dx = schedule.dx.and_then(|dx| runner.store.grads[dx as usize].take());
        for (memory, slot) in memory.iter().zip(&schedule.dmemory) {
            let added = slot.and_then(|slot| runner.store.grads[slot as usize].take());
            if let (Some(sum), Some(added)) = (&memory.gradient, added) {
                self.scope.device.machine.add(sum, &added, sum);
            }
        }
        drop(runner);
        if let Some(debts) = debts {
            debts.push(Debt { at, due });
        }
        dx
    }
}

impl<'a> Segments<'a> for Tape<'a> {
    fn layers_per_segment(&self) -> usize {
        self.places.segment_layers.max(1)
    }

    fn passed(&mut self, blocks: usize, x: &Tensor) {
        let more = self.pull.as_ref().and_then(|pull| pull(blocks, x));
        self.pulls.extend(more.map(|more| (self.done.len() - 1, more)));
    }

    fn embedded(&self, x: &Tensor) {
        if let Some(Jitter { keys, scales }) = &self.jitter {
            self.scope.device.machine.jitter(x, keys, scales);
        }
    }

    fn run(&mut self, which: Which, x: Option<Tensor>, memory: &[Memory], body: Body<'_, 'a>) -> Tensor {
        let offload = self.offload;
        let layer = which.layer;
        let at = self.placed(Start { which: &which, x: x.as_ref(), memory }, body);
        let (graph, schedule) = (at.graph(), at.schedule());
        self.input_grad |= at.weights().any(|id| self.scope.params.get(id).trainable)
            || memory.iter().any(|memory| memory.gradient.is_some());
        let input = x.clone().filter(|_| schedule.keeps_input);
        let weights = weights(&self.scope, &at, &mut self.ahead, true);
        let mut exec = exec(&self.scope, &at, self.places.head_groups);
        exec.loads = self.scope.counters.loads();
        let mut store = Store::new(graph.values.len(), 0);
        if let Some(val) = graph.input {
            store.values[val.index()] = x;
        }
        remember(&mut store, graph, memory);
        let (counters, tile_rows) = (self.scope.counters, self.places.tile_rows);
        let below = self.done.last_mut().map(|done| &mut done.holding);
        let mut runner = Runner::new(&at, &mut exec, counters, tile_rows, store);
        if !counters.has_spans() {
            runner.known = at.steps(self.scope.device, || found(&self.scope, &at, self.numbers[1], None));
        }
        runner.far = Far { own: None, below };
        block(self.scope.device, || runner.run(&schedule.forward));
        drop(weights);
        let mut store = runner.store;
        let output = take_output(&mut store, graph);
        // Nothing else may hold a value that is offloaded.
        drop(take_input(&mut store, graph));
        let device = self.scope.device;
        let leave = |val: Val, tensor: Tensor| {
            let info = &graph.values[val.index()];
            let tag = Tag { name: info.name, layer };
            // Statistics, indices and values of a wider type are few bytes, and products depend on them.
            let plain = !info.differentiable || info.dtype != graph.values[graph.output.index()].dtype;
            let how = (self.places, if plain { Codec::AsIs } else { self.places.codec });
            let offload = offload.filter(|_| schedule.offloaded.contains(&val));
            match offload.and_then(|offload| OffloadArgs::of(how, offload, &tensor, tag)) {
                Some(how) => (val, HeldValue::leave(tensor, &how, device)),
                None => (val, HeldValue::here(tensor)),
            }
        };
        let keep = |val: &Val| {
            if *val == graph.output {
                // The next segment reads it.
                return (*val, HeldValue::here(output.clone()));
            }
            let tensor = store.values[val.index()].take();
            leave(*val, tensor.unwrap_or_else(|| panic!("{} was not kept", graph.values[val.index()].name)))
        };
        let mut vals: Vec<(Val, HeldValue)> = schedule.kept.iter().map(keep).collect();
        vals.extend(graph.input.zip(input).map(|(val, tensor)| leave(val, tensor)));
        let holding = HeldValues { vals, first_reads: schedule.first_reads.clone() };
        self.done.push(PendingSegment { at: at.clone(), memory: memory.to_vec(), holding });
        output
    }
}

/// The segment's input, out of the storage of its forward pass.
fn take_input(store: &mut Store, graph: &Graph) -> Option<Tensor> {
    store.values[graph.input?.index()].take()
}

fn take_output(store: &mut Store, graph: &Graph) -> Tensor {
    store.values[graph.output.index()].take().unwrap_or_else(|| panic!("the segment made no output"))
}
