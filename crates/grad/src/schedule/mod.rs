//! From a graph and a table of places to explicit steps: allocations, operations, replays and frees, in order.
//!
//! The steps are computed before anything runs, so the machine, the planner and a reader see the same list. Backward
//! runs the units (rows regions and single operations) in reverse; values that a unit needs and that are missing are
//! recomputed by the smallest slice of operations that yields them.

mod backward;
mod lifetimes;
mod offloaded;
mod replay;
mod step;

use std::collections::BTreeSet;

use crate::graph::{Graph, Val};

use crate::params::Params;
use crate::places::{Place, Places};
pub(crate) use step::Analysis;
pub use step::{Route, Slot, Step};

/// Everything on which a segment's schedule depends besides its graph.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// Places of activations.
    pub places: &'a Places,
    /// The segment's layer.
    pub layer: i32,
    /// The gradient of the input is wanted.
    pub input_grad: bool,
    /// For the further inputs: whether their gradients are wanted.
    pub memory_grads: &'a [bool],
    /// True if a place has an engine; otherwise its values stay in memory.
    pub reaches: &'a dyn Fn(Place) -> bool,
    /// True if weight gradients are deferred until after the backward pass.
    pub split: bool,
}

/// The steps of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Forward steps.
    pub forward: Vec<Step>,
    /// Values kept for the backward pass (without the input), in memory or on disk.
    pub kept: Vec<Val>,
    /// The backward pass reads the segment's input.
    pub keeps_input: bool,
    /// Those of these that are offloaded between forward and backward.
    pub offloaded: Vec<Val>,
    /// Those of the offloaded values that the backward pass reads first: fetched by the segment above.
    pub first_reads: Vec<Val>,
    /// Backward steps; empty if nothing wants a gradient.
    pub backward: Vec<Step>,
    /// The gradient of the output, which is given.
    pub dy: u32,
    /// The gradient of the input, which is returned.
    pub dx: Option<u32>,
    /// The gradients of the further inputs, which are returned.
    pub dmemory: Vec<Option<u32>>,
    /// Number of gradient slots.
    pub num_grads: u32,
}

impl Schedule {
    /// True if the backward pass replays a node.
    pub fn replays(&self, node: usize) -> bool {
        fn any(steps: &[Step], node: usize) -> bool {
            steps.iter().any(|step| match step {
                Step::Forward(index) => *index == node,
                Step::Loop(steps) => any(steps, node),
                _ => false,
            })
        }
        any(&self.backward, node)
    }

    /// The forward steps of a segment without a backward pass.
    pub fn forward_only(graph: &Graph, params: &Params) -> Schedule {
        let analysis = Analysis::new(graph, params, false, &[]);
        Schedule { forward: forward(&analysis, &[]), ..Schedule::default() }
    }

    /// Computes the steps of a segment.
    pub fn new(graph: &Graph, params: &Params, at: At<'_>) -> Schedule {
        let At { places, layer, input_grad, memory_grads, reaches, split } = at;
        let analysis = Analysis::new(graph, params, input_grad, memory_grads);
        let needed: BTreeSet<Val> = (0..graph.nodes.len()).flat_map(|node| analysis.reads(node)).collect();
        let is_kept = |val: &Val| {
            let info = &graph.values[val.index()];
            info.producer.is_some() && (info.total || places.place(layer, info.name) != Place::Recompute)
        };
        let kept: Vec<Val> = needed.iter().copied().filter(is_kept).collect();
        let forward = offloaded::with_settle(graph, forward(&analysis, &kept));
        let mut schedule = Schedule { forward, kept, ..Schedule::default() };
        if !analysis.wants[graph.output.index()] {
            return schedule;
        }
        let backward = backward::Backward::new(&analysis, &schedule.kept, split).run();
        schedule.num_grads = backward.num_grads;
        (schedule.dx, schedule.dmemory) = (backward.dx, backward.dmemory);
        let handed_out = schedule.dx.iter().chain(schedule.dmemory.iter().flatten());
        let stay: BTreeSet<Slot> = handed_out.map(|grad| Slot::Grad(*grad)).collect();
        let at_hand =
            schedule.kept.iter().copied().chain(graph.given()).map(Slot::Value).chain([Slot::Grad(0)]);
        let steps = lifetimes::insert_frees(graph, backward.steps, &stay, at_hand.collect());
        schedule.keeps_input =
            graph.input.is_some_and(|input| lifetimes::touches(graph, &steps, Slot::Value(input)));
        let held = graph.input.into_iter().filter(|_| schedule.keeps_input).chain(schedule.kept.clone());
        // The next segment reads the output, which is its input and is offloaded with it.
        let leaves = |val: &Val| {
            let info = &graph.values[val.index()];
            *val != graph.output && !info.total && reaches(places.place(layer, info.name))
        };
        schedule.offloaded = held.filter(leaves).collect();
        (schedule.backward, schedule.first_reads) = offloaded::with_reads(graph, steps, &schedule.offloaded);
        schedule
    }
}

/// The forward steps: units in order; in a region only values that leave it, or are kept, have storage for all rows.
fn forward(analysis: &Analysis<'_>, kept: &[Val]) -> Vec<Step> {
    let graph = analysis.graph;
    let mut steps = Vec::new();
    for (unit, range) in analysis.units.iter().enumerate() {
        if !analysis.is_region(unit) {
            steps.extend(range.clone().map(Step::Forward));
            continue;
        }
        let outs = range.clone().flat_map(|node| graph.nodes[node].outs.iter().copied());
        let is_full = |val: &Val| {
            analysis.crosses[val.index()] || graph.values[val.index()].total || kept.contains(val)
        };
        let full = outs.filter(is_full);
        steps.extend(full.map(|val| Step::Alloc(Slot::Value(val), val)));
        steps.push(Step::Loop(range.clone().map(Step::Forward).collect()));
    }
    let mut stay: BTreeSet<Slot> = kept.iter().map(|val| Slot::Value(*val)).collect();
    stay.insert(Slot::Value(graph.output));
    let at_hand = graph.given().map(Slot::Value).collect();
    lifetimes::insert_frees(graph, steps, &stay, at_hand)
}
