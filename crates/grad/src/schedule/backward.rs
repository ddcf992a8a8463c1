//! The backward steps of one segment, without the frees.

use std::collections::{BTreeMap, BTreeSet};

use super::replay::{Slice, materialise, slice};
use super::step::{Analysis, Route, Slot, Step};
use crate::graph::Val;

pub(super) struct Backward<'a> {
    analysis: &'a Analysis<'a>,
    /// Values with storage for all rows.
    present: BTreeSet<Val>,
    /// The gradient slot of each value that has received a contribution.
    grads: BTreeMap<Val, u32>,
    /// Slots with storage for all rows.
    full: BTreeSet<u32>,
    /// True if the inputs and output gradients of operations with weights must outlive the backward pass.
    split: bool,
    pub steps: Vec<Step>,
    pub num_grads: u32,
    pub dx: Option<u32>,
    pub dmemory: Vec<Option<u32>>,
}

/// Steps of the current unit: those before its loop, and its body.
#[derive(Default)]
struct Body {
    before: Vec<Step>,
    steps: Vec<Step>,
}

impl<'a> Backward<'a> {
    pub fn new(analysis: &'a Analysis<'a>, kept: &[Val], split: bool) -> Backward<'a> {
        let present = analysis.graph.given().chain(kept.iter().copied()).collect();
        let grads = BTreeMap::from([(analysis.graph.output, 0)]);
        Backward {
            analysis,
            present,
            grads,
            full: BTreeSet::from([0]),
            split,
            steps: Vec::new(),
            num_grads: 1,
            dx: None,
            dmemory: Vec::new(),
        }
    }

    pub fn run(mut self) -> Backward<'a> {
        for unit in (0..self.analysis.units.len()).rev() {
            self.unit(unit);
        }
        if let Some(input) = self.analysis.graph.input {
            self.dx = self.grads.get(&input).copied();
        }
        let memory = self.analysis.graph.memory.iter();
        self.dmemory = memory.map(|val| self.grads.get(val).copied()).collect();
        self
    }

    fn unit(&mut self, unit: usize) {
        let analysis = self.analysis;
        let active: Vec<usize> =
            analysis.units[unit].clone().filter(|node| analysis.node_wants[*node].is_some()).collect();
        if active.is_empty() {
            return;
        }
        let reads: BTreeSet<Val> = active.iter().flat_map(|node| analysis.reads(*node)).collect();
        if !analysis.is_region(unit) {
            let replay = materialise(analysis, reads, &mut self.present);
            self.steps.extend(replay);
            let mut body = Body::default();
            active.iter().rev().for_each(|node| self.node(*node, &mut body, false));
            self.steps.extend(body.before);
            self.steps.extend(body.steps);
            return;
        }
        let Slice { nodes, externals } = slice(analysis, unit, &reads, &self.present);
        let replay = materialise(analysis, externals, &mut self.present);
        self.steps.extend(replay);
        let mut body = Body { before: Vec::new(), steps: nodes.into_iter().map(Step::Forward).collect() };
        active.iter().rev().for_each(|node| self.node(*node, &mut body, true));
        self.steps.extend(body.before);
        self.steps.push(Step::Loop(body.steps));
    }

    fn node(&mut self, index: usize, body: &mut Body, tiled: bool) {
        let analysis = self.analysis;
        let node = &analysis.graph.nodes[index];
        let dy: Vec<Option<u32>> = node.outs.iter().map(|out| self.grads.get(out).copied()).collect();
        let mut dx = vec![None; node.ins.len()];
        let mut passed = Vec::new();
        for (position, val) in node.ins.iter().enumerate() {
            if !analysis.wants[val.index()] {
                continue;
            }
            if node.op.backward().passes.contains(&position) {
                passed.push(*val);
            } else {
                dx[position] = Some(self.target(index, *val, body, tiled));
            }
        }
        let route = Route { dy: dy.clone(), dx, reads: analysis.reads(index) };
        let has_weights = analysis.node_wants[index].is_some_and(|want| want.weights);
        if has_weights || route.dx.iter().any(Option::is_some) {
            body.steps.push(Step::Backward(index, route));
        }
        if let Some(Some(grad)) = dy.first() {
            for val in passed {
                self.pass(index, *grad, val, body, tiled);
            }
        }
    }

    /// The slot that a node writes `val`'s gradient to, and whether it adds.
    fn target(&mut self, node: usize, val: Val, body: &mut Body, tiled: bool) -> (u32, bool) {
        let Some(&slot) = self.grads.get(&val) else {
            let slot = self.fresh(val, body, tiled);
            self.grads.insert(val, slot);
            return (slot, false);
        };
        if !self.shared(node, val, slot) {
            return (slot, true);
        }
        let own = self.fresh(val, body, tiled);
        body.steps.push(Step::Add(slot, own, false, val));
        self.grads.insert(val, own);
        (own, true)
    }

    /// True if another value, whose producer has yet to read it or is this very node, has the same slot.
    fn shared(&self, node: usize, val: Val, slot: u32) -> bool {
        let later =
            |made: usize| self.split && self.analysis.node_wants[made].is_some_and(|want| want.weights);
        let reads = |made: usize| made <= node || later(made);
        let waits = |other: &Val| self.analysis.graph.values[other.index()].producer.is_some_and(reads);
        let given = |other: &Val| self.analysis.graph.given().any(|val| val == *other);
        self.grads.iter().any(|(other, at)| *other != val && *at == slot && (waits(other) || given(other)))
    }

    /// Passes the output's gradient to an input that receives it unchanged.
    fn pass(&mut self, node: usize, from: u32, val: Val, body: &mut Body, tiled: bool) {
        if let Some(&slot) = self.grads.get(&val) {
            let (slot, _) =
                if self.shared(node, val, slot) { self.target(node, val, body, tiled) } else { (slot, true) };
            body.steps.push(Step::Add(from, slot, true, val));
        } else if self.analysis.crosses[val.index()] && !self.full.contains(&from) {
            let slot = self.fresh(val, body, tiled);
            body.steps.push(Step::Add(from, slot, false, val));
            self.grads.insert(val, slot);
        } else {
            self.grads.insert(val, from);
        }
    }

    fn fresh(&mut self, val: Val, body: &mut Body, tiled: bool) -> u32 {
        let slot = self.num_grads;
        self.num_grads += 1;
        if !tiled || self.analysis.crosses[val.index()] {
            self.full.insert(slot);
            body.before.push(Step::Alloc(Slot::Grad(slot), val));
        }
        slot
    }
}
