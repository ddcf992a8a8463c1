//! Steps of a schedule, the values that they name, and the analysis of a graph.

use std::ops::Range;

use crate::graph::{Graph, Val};
use crate::op::Want;
use crate::params::Params;

/// Storage of a value or of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// An activation.
    Value(Val),
    /// A gradient; aliases share one.
    Grad(u32),
}

/// Slots that a backward operation reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Per output: its gradient, if any arrived.
    pub dy: Vec<Option<u32>>,
    /// Per input: its gradient and whether to add to it; `None` if not wanted or passed through.
    pub dx: Vec<Option<(u32, bool)>>,
    /// Values read.
    pub reads: Vec<Val>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Storage for all rows.
    Alloc(Slot, Val),
    /// Runs a node; outputs without storage get it for the current rows.
    Forward(usize),
    /// Runs a node's backward pass.
    Backward(usize, Route),
    /// `into (+)= from`; the third field adds.
    Add(u32, u32, bool, Val),
    /// Runs the steps for each tile of rows, ascending.
    Loop(Vec<Step>),
    /// The last use has passed.
    Free(Slot),
    /// Allocates memory for an offloaded value and starts to read it.
    Fetch(Val),
    /// Waits for a value that was fetched.
    Await(Val),
    /// Starts to read the first values of the segment below.
    Below,
    /// Waits until the values of the previous segment are offloaded.
    Settle,
}

/// Properties of a graph, computed before scheduling.
pub(crate) struct Analysis<'a> {
    pub graph: &'a Graph,
    pub units: Vec<Range<usize>>,
    /// Unit of each node.
    pub unit_of: Vec<usize>,
    /// Gradient wanted, per value.
    pub wants: Vec<bool>,
    /// Wanted gradients of each node; `None` if nothing flows back through it.
    pub node_wants: Vec<Option<Want>>,
    /// True if computed in one unit and read in another, or if it is the graph's input or output.
    pub crosses: Vec<bool>,
}

impl<'a> Analysis<'a> {
    pub fn new(graph: &'a Graph, params: &Params, input_grad: bool, memory_grads: &[bool]) -> Analysis<'a> {
        let units = graph.units();
        let mut unit_of = vec![0; graph.nodes.len()];
        for (unit, range) in units.iter().enumerate() {
            unit_of[range.clone()].fill(unit);
        }
        let mut wants = vec![false; graph.values.len()];
        let mut crosses = vec![false; graph.values.len()];
        if let Some(input) = graph.input {
            wants[input.index()] = input_grad;
            crosses[input.index()] = true;
        }
        for (at, val) in graph.memory.iter().enumerate() {
            wants[val.index()] = memory_grads.get(at).copied().unwrap_or(false);
            crosses[val.index()] = true;
        }
        crosses[graph.output.index()] = true;
        let reaches = reaches_output(graph);
        let mut node_wants = Vec::with_capacity(graph.nodes.len());
        for (index, node) in graph.nodes.iter().enumerate() {
            let inputs = node.ins.iter().any(|val| wants[val.index()]);
            let weights = node.params.iter().any(|id| params.get(*id).trainable);
            let flows = |out: &Val| reaches[out.index()] && graph.values[out.index()].differentiable;
            let active = (inputs || weights) && node.outs.iter().any(flows);
            node_wants.push(active.then_some(Want { inputs, weights }));
            for out in &node.outs {
                wants[out.index()] = active && graph.values[out.index()].differentiable;
            }
            for val in &node.ins {
                let producer = graph.values[val.index()].producer;
                crosses[val.index()] |= producer.is_none_or(|made| unit_of[made] != unit_of[index]);
            }
        }
        Analysis { graph, units, unit_of, wants, node_wants, crosses }
    }

    /// Values that a node's backward pass reads.
    pub fn reads(&self, node: usize) -> Vec<Val> {
        let Some(want) = self.node_wants[node] else { return Vec::new() };
        let node = &self.graph.nodes[node];
        let saves = node.op.saves(want);
        let ins = saves.ins.iter().map(|index| node.ins[*index]);
        let outs = saves.outs.iter().map(|index| node.outs[*index]);
        ins.chain(outs).collect()
    }

    /// The unit that makes a value; `None` for the input.
    pub fn unit_making(&self, val: Val) -> Option<usize> {
        self.graph.values[val.index()].producer.map(|node| self.unit_of[node])
    }

    /// True if the unit is a rows region.
    pub fn is_region(&self, unit: usize) -> bool {
        self.graph.nodes[self.units[unit].start].region.is_some()
    }
}

/// Values from which the graph's output can be reached through differentiable values.
fn reaches_output(graph: &Graph) -> Vec<bool> {
    let mut reaches = vec![false; graph.values.len()];
    reaches[graph.output.index()] = true;
    for node in graph.nodes.iter().rev() {
        if node.outs.iter().any(|out| reaches[out.index()] && graph.values[out.index()].differentiable) {
            node.ins.iter().for_each(|val| reaches[val.index()] = true);
        }
    }
    reaches
}
