//! One tape per micro batch: segments run forward one after the other, and backward in reverse.

use fathom_tensor::spill::{Codec, Tag};
use fathom_tensor::{Device, Tensor};

use crate::batch::Tables;
use crate::grads::Grads;
use crate::graph::{Ctx, Graph, Spread, Val};
use crate::held::{Far, Held, Holding, Leaving, Offload};
use crate::op::{Desc, Exec, KvMemory};
use crate::params::{ParamId, Params, Weights};
use crate::places::Places;
use crate::run::{Counters, Due, Runner, Store};
use crate::schedule::{At, Schedule};

/// The inputs of a forward pass; cheap to clone. It borrows the weights, so they cannot change while a tape lives.
#[derive(Clone)]
pub struct Scope<'a> {
    /// Compute and memory.
    pub device: &'a Device,
    /// Weights.
    pub params: &'a Params,
    /// The micro batch.
    pub batch: Tables<'a>,
    /// FLOPs and times.
    pub counters: &'a Counters,
}

impl Scope<'_> {
    /// How the work is sharded over ranks.
    pub fn spread(&self) -> Spread {
        Spread::of(&self.device.mesh)
    }
}

/// A segment that ran forward and waits for its backward pass.
struct Done {
    layer: i32,
    graph: Graph,
    schedule: Schedule,
    holding: Holding,
}

impl Done {
    /// Weights that its backward pass needs.
    fn weights(&self) -> Vec<ParamId> {
        if self.schedule.backward.is_empty() {
            return Vec::new();
        }
        let nodes = self.graph.nodes.iter().enumerate();
        let needs = nodes.filter(|(index, node)| node.rereads_weights() || self.schedule.replays(*index));
        needs.flat_map(|(_, node)| node.params.iter().copied()).collect()
    }
}

/// Runs segments without keeping activations; with a key-value cache if one is given.
pub struct Eval<'a> {
    scope: Scope<'a>,
    places: Places,
    kv: Option<&'a mut dyn KvMemory>,
    /// Weights of the next segment, being fetched.
    ahead: Option<Weights<'a>>,
}

/// Runs segments and remembers what their backward passes need.
pub struct Tape<'a> {
    scope: Scope<'a>,
    places: &'a Places,
    offload: Option<&'a Offload>,
    done: Vec<Done>,
    /// Weights of the next segment, being fetched.
    ahead: Option<Weights<'a>>,
    /// The output of the last segment depends on something trainable.
    input_grad: bool,
    /// Weight gradients are deferred.
    split: bool,
}

/// Deferred weight gradients ([`Tape::backward_input`]), as zero-bubble schedules need them.
#[must_use = "weight gradients are made where they are added"]
pub struct Owed<'a> {
    scope: Scope<'a>,
    head_groups: usize,
    /// In the order of the backward pass.
    segments: Vec<Debt>,
}

/// The deferred weight gradients of one segment.
struct Debt {
    layer: i32,
    graph: Graph,
    due: Vec<Due>,
}

impl Owed<'_> {
    /// Adds them to the main gradients.
    pub fn add(self, grads: &mut Grads) {
        let Owed { scope, head_groups, segments } = self;
        for Debt { layer, graph, due } in segments {
            let named = graph.weights();
            let read = graph.nodes.iter().filter(|node| node.rereads_weights());
            let read = read.flat_map(|node| node.params.iter().copied());
            let weights = scope.params.fetch(scope.device, read);
            weights.wait();
            grads.enter(scope.device, &named);
            let mut exec = exec(&scope, layer, head_groups);
            let mut runner = Runner::new(&graph, &mut exec, scope.counters, None, Store::new(0, 0));
            runner.grads = Some(&mut *grads);
            runner.make_due(due);
            drop(runner);
            grads.leave(scope.device, &named);
        }
    }
}

/// Runs a model's segments, recording or not: the model's forward function is written once over this.
pub trait Segments<'a> {
    /// Runs one segment: `body` names the operations of a block at `layer` (-1 outside the blocks).
    fn segment(&mut self, layer: i32, x: Option<Tensor>, body: &dyn Fn(&mut Ctx<'a>, Val) -> Val) -> Tensor;

    /// Blocks of a segment.
    fn layers_per_segment(&self) -> usize;
}

fn record<'a>(scope: &Scope<'a>, x: Option<&Tensor>, body: &dyn Fn(&mut Ctx<'a>, Val) -> Val) -> Graph {
    let desc = x.map(|x| Desc { cols: x.cols(), dtype: x.dtype() });
    Ctx::record(scope.params, scope.spread(), desc, body)
}

/// A segment's weights, in memory; starts to fetch those of the next segment. The head counts as a segment where it
/// `follows`.
fn weights<'a>(
    scope: &Scope<'a>,
    graph: &Graph,
    ahead: &mut Option<Weights<'a>>,
    follows: bool,
) -> Weights<'a> {
    let ids = graph.weights();
    let weights = scope.params.fetch(scope.device, ids.iter().copied());
    if !weights.is_empty() {
        *ahead = scope.params.fetch_after(scope.device, &ids, follows);
    }
    weights.wait();
    weights
}

fn exec<'a>(scope: &'a Scope<'_>, layer: i32, head_groups: usize) -> Exec<'a> {
    let (device, params, batch) = (scope.device, scope.params, &*scope.batch);
    let (rows, kv, adds, carry, loads, trains) = (0..batch.tokens, None, true, None, None, true);
    Exec { device, params, batch, kv, rows, layer, head_groups, adds, carry, loads, trains }
}

/// Tells the machine where a block's operations begin and end.
fn block(device: &Device, run: impl FnOnce()) {
    device.machine.enter_block();
    run();
    device.machine.leave_block();
}

impl<'a> Eval<'a> {
    /// An evaluation pass; rows regions run in tiles of `tile_rows`.
    pub fn new(scope: Scope<'a>, tile_rows: Option<usize>, kv: Option<&'a mut dyn KvMemory>) -> Eval<'a> {
        Eval { scope, places: Places::none().with_tiles(tile_rows), kv, ahead: None }
    }
}

impl<'a> Segments<'a> for Eval<'a> {
    fn layers_per_segment(&self) -> usize {
        1
    }

    fn segment(&mut self, layer: i32, x: Option<Tensor>, body: &dyn Fn(&mut Ctx<'a>, Val) -> Val) -> Tensor {
        let graph = record(&self.scope, x.as_ref(), body);
        let schedule = Schedule::forward_only(&graph, self.scope.params);
        let _weights = weights(&self.scope, &graph, &mut self.ahead, false);
        let mut exec = exec(&self.scope, layer, self.places.head_groups);
        exec.kv = self.kv.as_deref_mut().map(|kv| kv as &mut dyn KvMemory);
        exec.trains = false;
        let mut store = Store::new(graph.values.len(), 0);
        if let Some(input) = graph.input {
            store.values[input.index()] = x;
        }
        let (counters, tile_rows) = (self.scope.counters, self.places.tile_rows);
        let mut runner = Runner::new(&graph, &mut exec, counters, tile_rows, store);
        block(self.scope.device, || runner.run(&schedule.forward));
        take_output(&mut runner.store, &graph)
    }
}

impl<'a> Tape<'a> {
    /// A tape for one micro batch.
    pub fn new(scope: Scope<'a>, places: &'a Places) -> Tape<'a> {
        Tape { scope, places, offload: None, done: Vec::new(), ahead: None, input_grad: false, split: false }
    }

    /// What the tape runs with.
    pub fn scope(&self) -> &Scope<'a> {
        &self.scope
    }

    /// The same tape, whose reverse pass returns the gradient of the first segment's input.
    pub fn with_input_gradient(mut self) -> Tape<'a> {
        self.input_grad = true;
        self
    }

    /// The same tape, whose reverse pass is [`Tape::backward_input`].
    pub fn with_split_backward(mut self, split: bool) -> Tape<'a> {
        self.split = split;
        self
    }

    /// The same tape, with memory behind it for what [`Place::Host`](crate::Place::Host) and
    /// [`Place::Disk`](crate::Place::Disk) name; without it such values stay. After a failed transfer the step goes on
    /// with values that mean nothing: ask [`Offload::check`] before the update.
    pub fn with_offload(mut self, offload: Option<&'a Offload>) -> Tape<'a> {
        self.offload = offload;
        self
    }

    /// The reverse pass from the gradient of the last segment's output; adds to `grads` and returns the gradient of
    /// the first segment's input if [`Tape::with_input_gradient`] asked for it. Storage is released segment by segment.
    pub fn backward(self, dy: Tensor, grads: &mut Grads) -> Option<Tensor> {
        self.reverse(dy, grads, None)
    }

    /// As [`Tape::backward`], deferring the weight gradients: their operands stay in memory. They have the same bits if those of
    /// every tape are added in the order of the micro batches. For tapes
    /// [`with_split_backward`](Tape::with_split_backward).
    ///
    /// # Panics
    /// If the tape is of another kind.
    #[track_caller]
    pub fn backward_input(self, dy: Tensor, grads: &mut Grads) -> (Option<Tensor>, Owed<'a>) {
        assert!(self.split, "backward_input: the tape was not made to be split");
        let (scope, head_groups, mut segments) = (self.scope.clone(), self.places.head_groups, Vec::new());
        let dx = self.reverse(dy, grads, Some(&mut segments));
        (dx, Owed { scope, head_groups, segments })
    }

    fn reverse(mut self, dy: Tensor, grads: &mut Grads, mut debts: Option<&mut Vec<Debt>>) -> Option<Tensor> {
        if let Some(top) = self.done.last_mut() {
            top.holding.fetch_first(self.scope.device);
        }
        let mut dy = Some(dy);
        self.ahead = None;
        while let Some(done) = self.done.pop() {
            let weights = self.scope.params.fetch(self.scope.device, done.weights());
            let below = self.done.last().map(Done::weights).unwrap_or_default();
            self.ahead = Some(self.scope.params.fetch(self.scope.device, below));
            weights.wait();
            let named = if done.schedule.backward.is_empty() { Vec::new() } else { done.graph.weights() };
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
        done: Done,
        dy: Tensor,
        grads: &mut Grads,
        debts: Option<&mut Vec<Debt>>,
    ) -> Option<Tensor> {
        let Done { layer, graph, schedule, mut holding } = done;
        if schedule.backward.is_empty() {
            return None;
        }
        let mut store = Store::new(graph.values.len(), schedule.num_grads);
        for (val, held) in &mut holding.vals {
            if !schedule.away.contains(val) {
                store.values[val.index()] = Some(held.arrive(self.scope.device));
            }
        }
        store.grads[schedule.dy as usize] = Some(dy);
        let mut exec = exec(&self.scope, layer, self.places.head_groups);
        let (counters, tile_rows) = (self.scope.counters, self.places.tile_rows);
        let (own, below) = (Some(&mut holding), self.done.last_mut().map(|done| &mut done.holding));
        let mut due = Vec::new();
        let mut runner = Runner::new(&graph, &mut exec, counters, tile_rows, store);
        runner.grads = Some(grads);
        runner.far = Far { own, below };
        runner.due = debts.is_some().then_some(&mut due);
        block(self.scope.device, || runner.run(&schedule.backward));
        let dx = schedule.dx.and_then(|dx| runner.store.grads[dx as usize].take());
        drop(runner);
        if let Some(debts) = debts {
            debts.push(Debt { layer, graph, due });
        }
        dx
    }
}

impl<'a> Segments<'a> for Tape<'a> {
    fn layers_per_segment(&self) -> usize {
        self.places.segment_layers.max(1)
    }

    fn segment(&mut self, layer: i32, x: Option<Tensor>, body: &dyn Fn(&mut Ctx<'a>, Val) -> Val) -> Tensor {
        let graph = record(&self.scope, x.as_ref(), body);
        let offload = self.offload;
        let reaches = |place| offload.is_some_and(|offload| offload.engine(place).is_some());
        let (input_grad, split) = (self.input_grad, self.split);
        let at = At { places: self.places, layer, input_grad, reaches: &reaches, split };
        let schedule = Schedule::new(&graph, self.scope.params, at);
        self.input_grad |=
            graph.nodes.iter().flat_map(|node| &node.params).any(|id| self.scope.params.get(*id).trainable);
        let input = x.clone().filter(|_| schedule.keeps_input);
        let weights = weights(&self.scope, &graph, &mut self.ahead, true);
        let mut exec = exec(&self.scope, layer, self.places.head_groups);
        exec.loads = self.scope.counters.loads();
        let mut store = Store::new(graph.values.len(), 0);
        if let Some(val) = graph.input {
            store.values[val.index()] = x;
        }
        let (counters, tile_rows) = (self.scope.counters, self.places.tile_rows);
        let below = self.done.last_mut().map(|done| &mut done.holding);
        let mut runner = Runner::new(&graph, &mut exec, counters, tile_rows, store);
        runner.far = Far { own: None, below };
        block(self.scope.device, || runner.run(&schedule.forward));
        drop(weights);
        let mut store = runner.store;
        let output = take_output(&mut store, &graph);
        // Nobody may hold a value that leaves.
        drop(take_input(&mut store, &graph));
        let device = self.scope.device;
        let leave = |val: Val, tensor: Tensor| {
            let info = &graph.values[val.index()];
            let tag = Tag { name: info.name, layer };
            // Statistics, indices and what is wider than the rest are few bytes, and the products hang on them.
            let plain = !info.differentiable || info.dtype != graph.values[graph.output.index()].dtype;
            let how = (self.places, if plain { Codec::AsIs } else { self.places.codec });
            let offload = self.offload.filter(|_| schedule.away.contains(&val));
            match offload.and_then(|offload| Leaving::of(how, offload, &tensor, tag)) {
                Some(how) => (val, Held::leave(tensor, &how, device)),
                None => (val, Held::here(tensor)),
            }
        };
        let keep = |val: &Val| {
            if *val == graph.output {
                // The next segment reads it.
                return (*val, Held::here(output.clone()));
            }
            let tensor = store.values[val.index()].take();
            leave(*val, tensor.unwrap_or_else(|| panic!("{} was not kept", graph.values[val.index()].name)))
        };
        let mut vals: Vec<(Val, Held)> = schedule.kept.iter().map(keep).collect();
        vals.extend(graph.input.zip(input).map(|(val, tensor)| leave(val, tensor)));
        let holding = Holding { vals, first_reads: schedule.first_reads.clone() };
        self.done.push(Done { layer, graph, schedule, holding });
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
