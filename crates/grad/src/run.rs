//! Executes a schedule's steps: the same code on every machine.

use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, Tensor};

use crate::counters::Counters;
use crate::grads::Grads;
use crate::graph::{Graph, Val, own_rows};
use crate::held::Far;
use crate::memo::{PlacedSegment, Steps};
use crate::op::{Desc, Dx, Exec, Flops, SavedValues};
use crate::param_id::ParamId;
use crate::schedule::{Route, Slot, Step};
use crate::tiles;

/// Storage of values and gradients at one level: a segment, or one tile of it.
pub(crate) struct Store {
    pub values: Vec<Option<Tensor>>,
    pub grads: Vec<Option<Tensor>>,
}

impl Store {
    pub fn new(num_values: usize, num_grads: u32) -> Store {
        Store { values: vec![None; num_values], grads: vec![None; num_grads as usize] }
    }

    fn slot(&mut self, slot: Slot) -> &mut Option<Tensor> {
        match slot {
            Slot::Value(val) => &mut self.values[val.index()],
            Slot::Grad(grad) => &mut self.grads[grad as usize],
        }
    }
}

/// Parts of a step that are cached separately: weight gradients and input gradients.
const PARTS: usize = 2;

/// Runs steps of one graph.
pub(crate) struct Runner<'a, 'x> {
    /// The segment with its place.
    pub at: &'a PlacedSegment,
    pub graph: &'a Graph,
    pub exec: &'a mut Exec<'x>,
    pub counters: &'a Counters,
    pub tile_rows: Option<usize>,
    /// Whole-segment storage.
    pub store: Store,
    /// Storage of the current tile, inside a loop.
    pub tile: Option<Store>,
    /// Main gradients; `None` in the forward pass.
    pub grads: Option<&'a mut Grads>,
    /// Offloaded values.
    pub far: Far<'a>,
    /// Deferred weight gradients; `None` if they are computed at once.
    pub due: Option<&'a mut Vec<Due>>,
    /// Cached effects of the pass's steps.
    pub known: Option<Rc<Steps>>,
}

/// Inputs of a node's deferred weight gradients.
pub(crate) struct Due {
    pub node: usize,
    pub saved: SavedValues,
    pub dy: Vec<Option<Tensor>>,
    pub rows: Range<usize>,
}

impl<'a, 'x> Runner<'a, 'x> {
    /// A forward pass that offloads nothing; `grads` and `far` are set for others.
    pub fn new(
        at: &'a PlacedSegment,
        exec: &'a mut Exec<'x>,
        counters: &'a Counters,
        tile_rows: Option<usize>,
        store: Store,
    ) -> Runner<'a, 'x> {
        let (graph, far) = (at.graph(), Far::default());
        let (tile, grads, due, known) = (None, None, None, None);
        Runner { at, graph, exec, counters, tile_rows, store, tile, grads, far, due, known }
    }
}

impl Runner<'_, '_> {
    /// Runs the steps for all tokens.
    pub fn run(&mut self, steps: &[Step]) {
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::Alloc(slot, val) => {
                    let tensor = self.alloc(*slot, *val, 0..self.exec.batch.tokens);
                    *self.store.slot(*slot) = Some(tensor);
                }
                Step::Forward(node) => self.forward(*node, number),
                Step::Backward(node, route) => self.backward(*node, route, number),
                Step::Add(from, into, accumulate, val) => self.add(*from, *into, *accumulate, *val),
                Step::Loop(body) => self.known(number, 0, |runner| runner.tiles(body)),
                Step::Free(slot) => *self.here().slot(*slot) = None,
                Step::Fetch(_) | Step::Await(_) | Step::Below | Step::Settle => self.transfer(step),
            }
        }
    }

    /// A part of a step that leaves nothing in memory: run, or repeated if its effects are cached.
    fn known(&mut self, step: usize, part: usize, work: impl FnOnce(&mut Self)) {
        let known = self.known.clone().filter(|_| self.tile.is_none() && self.due.is_none());
        let Some(known) = known else { return work(self) };
        let (number, at, on) = (PARTS * step + part, self.at, (self.exec.device, self.counters));
        if known.repeat(number, at, on, self.grads.as_deref_mut()) {
            return;
        }
        if !known.is_new(number) {
            return work(self);
        }
        known.run(number, at, on, || {
            work(self);
            self.grads.as_deref().map_or_else(Vec::new, |grads| grads.states(at.weights()))
        });
    }

    /// Steps that move values between memory and the offload engines.
    fn transfer(&mut self, step: &Step) {
        let Far { own, below } = &mut self.far;
        let device = self.exec.device;
        match (step, own, below) {
            (Step::Fetch(val), Some(own), _) => own.fetch(*val, device),
            (Step::Await(val), Some(own), _) => {
                self.store.values[val.index()] = Some(own.arrive(*val, device));
            }
            (Step::Below, _, Some(below)) => below.fetch_first(device),
            (Step::Settle, _, Some(below)) => below.settle(),
            _ => {}
        }
    }

    fn tiles(&mut self, body: &[Step]) {
        let tokens = self.exec.batch.tokens;
        let (device, counters) = (self.exec.device, self.counters);
        let tile_rows = self.tile_rows.unwrap_or(tokens).max(1);
        let every = self.due.is_some();
        let work = |rows: Range<usize>| {
            self.exec.rows = rows;
            self.tile = Some(Store::new(self.store.values.len(), self.store.grads.len() as u32));
            self.run(body);
            self.tile = None;
        };
        if every {
            // Values that tiles leave for later are in memory together.
            tiles::all(tokens, tile_rows).for_each(work)
        } else {
            tiles::each(device, counters, tokens, tile_rows, work)
        }
        self.exec.rows = 0..tokens;
    }

    fn here(&mut self) -> &mut Store {
        self.tile.as_mut().unwrap_or(&mut self.store)
    }

    /// Index of this rank among those that share rows; the first if none do.
    fn index(&self) -> usize {
        self.exec.device.mesh.index(Axis::Tp)
    }

    /// Allocates a slot shaped like `val` for these tokens.
    fn alloc(&self, slot: Slot, val: Val, rows: Range<usize>) -> Tensor {
        let info = &self.graph.values[val.index()];
        self.exec.device.pool.label(info.name, matches!(slot, Slot::Grad(_)));
        if info.total {
            return self.exec.device.zeros(1, info.cols, info.dtype, Category::Activations);
        }
        self.exec.device.empty(
            info.rows_of(&rows, self.index()),
            info.cols,
            info.dtype,
            Category::Activations,
        )
    }

    /// The current rows of a slot shaped like `val`, if it has storage.
    fn find(&self, slot: Slot, val: Val) -> Option<Tensor> {
        let (outer, inner) = match slot {
            Slot::Value(val) => {
                (&self.store.values[val.index()], self.tile.as_ref().map(|tile| &tile.values[val.index()]))
            }
            Slot::Grad(grad) => {
                (&self.store.grads[grad as usize], self.tile.as_ref().map(|tile| &tile.grads[grad as usize]))
            }
        };
        let info = &self.graph.values[val.index()];
        let whole = info.rows.is_some() || (info.total && matches!(slot, Slot::Value(_)));
        match (outer, inner) {
            (Some(full), Some(_)) if !whole => {
                Some(full.view_rows(own_rows(&self.exec.rows, info.share, self.index())))
            }
            (Some(full), _) => Some(full.clone()),
            (None, inner) => inner.cloned().flatten(),
        }
    }

    /// The current rows of a slot shaped like `val`, allocated if needed.
    fn find_or_alloc(&mut self, slot: Slot, val: Val) -> Tensor {
        self.find(slot, val).unwrap_or_else(|| {
            let tensor = self.alloc(slot, val, self.exec.rows.clone());
            *self.here().slot(slot) = Some(tensor.clone());
            tensor
        })
    }

    #[track_caller]
    fn value(&self, val: Val) -> Tensor {
        self.find(Slot::Value(val), val)
            .unwrap_or_else(|| panic!("{} has no storage", self.graph.values[val.index()].name))
    }

    fn flops(&self, node: usize) -> Flops {
        let node = &self.graph.nodes[node];
        let describe = |val: &Val| {
            let info = &self.graph.values[val.index()];
            Desc { cols: info.cols, dtype: info.dtype }
        };
        let descs: Vec<Desc> = node.ins.iter().map(describe).collect();
        let shape = |id: &ParamId| self.exec.params.shape(self.at.id(*id));
        let params: Vec<[usize; 2]> = node.params.iter().map(shape).collect();
        // Where rows are scattered or gathered, all of them are processed.
        let shares = node.ins.iter().chain(&node.outs).map(|val| self.graph.values[val.index()].share);
        let own = node.outs.first().and_then(|val| self.graph.values[val.index()].rows);
        let all = || own_rows(&self.exec.rows, shares.min().unwrap_or(1), self.index()).len();
        let rows = own.unwrap_or_else(all);
        node.op.flops(rows, &descs, &params, self.exec.batch)
    }

    fn forward(&mut self, index: usize, step: usize) {
        let node = &self.graph.nodes[index];
        let replay = self.grads.is_some();
        self.exec.device.pool.enter(node.op.name(), self.exec.layer);
        let ins: Vec<Tensor> = node.ins.iter().map(|val| self.value(*val)).collect();
        let weight = |id: &ParamId| if node.packed { self.operand(*id) } else { self.weight(*id) };
        let params: Vec<Tensor> = node.params.iter().map(weight).collect();
        let outs: Vec<Tensor> =
            node.outs.iter().map(|val| self.find_or_alloc(Slot::Value(*val), *val)).collect();
        let flops = self.flops(index).forward;
        self.counters.add(if replay { 0 } else { flops }, flops);
        self.counters.state.borrow_mut().replayed += u128::from(replay);
        let part = if replay { " replay" } else { "" };
        self.exec.weight = node.params.first().map(|id| self.at.id(*id));
        self.known(step, 0, |runner| {
            let Runner { exec, counters, .. } = runner;
            let layer = exec.layer;
            counters.span(node.op.name(), part, layer, || node.op.forward(exec, &ins, &params, &outs));
        });
    }

    /// A weight, by its index in the graph.
    fn weight(&self, id: ParamId) -> Tensor {
        self.exec.params.tensor(self.at.id(id))
    }

    /// A weight, as blocks if it is stored that way.
    fn operand(&self, id: ParamId) -> Tensor {
        self.exec.params.operand(self.at.id(id))
    }

    fn backward(&mut self, index: usize, route: &Route, step: usize) {
        let node = &self.graph.nodes[index];
        self.exec.device.pool.enter(node.op.name(), self.exec.layer);
        let saved = |vals: &[Val]| -> Vec<Option<Tensor>> {
            vals.iter()
                .map(|val| if route.reads.contains(val) { Some(self.value(*val)) } else { None })
                .collect()
        };
        let saved =
            SavedValues { ins: saved(&node.ins), outs: saved(&node.outs), params: self.reread(index) };
        let dy: Vec<Option<Tensor>> = self.output_gradients(index, route);
        let flops = self.flops(index);
        let layer = self.exec.layer;

        // Gradients of weights are computed with those of inputs if the operation can, and none is deferred.
        let together =
            node.op.backward().together && self.due.is_none() && route.dx.iter().any(Option::is_some);
        match &mut self.due {
            None if together => {}
            None => self.known(step, 0, |runner| runner.backward_weight(index, &saved, &dy)),
            Some(due) if node.params.iter().any(|id| self.exec.params.get(self.at.id(*id)).trainable) => {
                let saved = saved.for_weights(&*node.op);
                due.push(Due { node: index, saved, dy: dy.clone(), rows: self.exec.rows.clone() });
            }
            Some(_) => {}
        }
        if route.dx.iter().all(Option::is_none) {
            self.exec.carry = None;
            return;
        }
        self.counters.add(flops.input, flops.input + flops.extra);
        let mut later = Vec::new();
        let dx: Vec<Option<Dx>> = (0..node.ins.len())
            .map(|position| {
                let (grad, accumulate) = route.dx[position]?;
                let target = self.find_or_alloc(Slot::Grad(grad), node.ins[position]);
                if accumulate && !node.op.backward().accumulates {
                    let tensor = self.alloc(Slot::Grad(grad), node.ins[position], self.exec.rows.clone());
                    later.push((target, tensor.clone()));
                    return Some(Dx { tensor, accumulate: false });
                }
                Some(Dx { tensor: target, accumulate })
            })
            .collect();
        self.known(step, 1, |runner| {
            let dw = if together { runner.weight_gradients(index, &dy) } else { Vec::new() };
            let Runner { exec, counters, .. } = runner;
            exec.dw = dw;
            counters.span(node.op.name(), " backward input", layer, || {
                node.op.backward_input(exec, &saved, &dy, &dx)
            });
            exec.dw.clear();
        });
        self.exec.carry = None;
        for (target, part) in later {
            self.exec.device.machine.add(&target, &part, &target);
        }
    }

    /// The gradients of a node's weights, to be added to; empty if none is wanted. Their work is counted.
    fn weight_gradients(&mut self, index: usize, dy: &[Option<Tensor>]) -> Vec<Option<Tensor>> {
        let node = &self.graph.nodes[index];
        let Some(grads) = self.grads.as_deref_mut() else { return Vec::new() };
        self.exec.adds = true;
        let mut dw: Vec<Option<Tensor>> = Vec::new();
        for id in &node.params {
            let writes = dw.is_empty() && dy[0].is_some() && node.op.backward().writes_weight;
            let received = grads.receive(self.exec.device, self.at.id(*id), writes);
            self.exec.adds &= received.as_ref().is_none_or(|(_, adds)| *adds);
            dw.push(received.map(|(grad, _)| grad));
        }
        let work = if dw.first().is_some_and(Option::is_some) { self.flops(index).weight } else { 0 };
        self.counters.add(work, work);
        if dw.iter().any(Option::is_some) { dw } else { Vec::new() }
    }

    /// Adds to the gradients of a node's weights; meaningless ones are overwritten, or cleared first.
    fn backward_weight(&mut self, index: usize, saved: &SavedValues, dy: &[Option<Tensor>]) {
        let dw = self.weight_gradients(index, dy);
        if dw.is_empty() {
            return;
        }
        let (node, layer) = (&self.graph.nodes[index], self.exec.layer);
        let exec = &mut *self.exec;
        self.counters.span(node.op.name(), " backward weight", layer, || {
            node.op.backward_weight(exec, saved, dy, &dw)
        });
    }

    /// Computes the weight gradients that a backward pass deferred, in its order.
    pub fn make_due(&mut self, due: Vec<Due>) {
        for Due { node: index, mut saved, dy, rows } in due {
            let node = &self.graph.nodes[index];
            self.exec.device.pool.enter(node.op.name(), self.exec.layer);
            saved.params = self.reread(index);
            self.exec.rows = rows;
            self.backward_weight(index, &saved, &dy);
            self.exec.carry = None;
        }
    }

    /// The weights that a node's backward pass reads.
    fn reread(&self, index: usize) -> Vec<Tensor> {
        let node = &self.graph.nodes[index];
        let read = node.params.iter().filter(|_| node.rereads_weights());
        read.map(|id| self.weight(*id)).collect()
    }

    /// Gradients of a node's outputs; zeros for a differentiable output that received none while another did.
    fn output_gradients(&self, index: usize, route: &Route) -> Vec<Option<Tensor>> {
        let node = &self.graph.nodes[index];
        let rows = &self.exec.rows;
        let gradient = |(out, grad): (&Val, &Option<u32>)| {
            let info = &self.graph.values[out.index()];
            match grad {
                Some(grad) => self.find(Slot::Grad(*grad), *out),
                None if info.differentiable => Some(self.exec.device.zeros(
                    info.rows_of(rows, self.index()),
                    info.cols,
                    info.dtype,
                    Category::Activations,
                )),
                None => None,
            }
        };
        node.outs.iter().zip(&route.dy).map(gradient).collect()
    }

    fn add(&mut self, from: u32, into: u32, accumulate: bool, val: Val) {
        self.exec.device.pool.enter("add gradient", self.exec.layer);
        let Some(from) = self.find(Slot::Grad(from), val) else { panic!("gradient {from} has no storage") };
        let into = self.find_or_alloc(Slot::Grad(into), val);
        let machine = &self.exec.device.machine;
        if accumulate { machine.add(&into, &from, &into) } else { machine.copy(&from, &into) }
    }
}
