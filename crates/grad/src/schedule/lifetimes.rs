//! Last uses: after each slot's last use a free is inserted, at the level where its storage lives.

use std::collections::{BTreeMap, BTreeSet};

use super::step::{Slot, Step};
use crate::graph::Graph;

/// Slots a step reads or writes, loops included.
fn slots(graph: &Graph, step: &Step, out: &mut BTreeSet<Slot>) {
    match step {
        Step::Alloc(slot, _) | Step::Free(slot) => {
            out.insert(*slot);
        }
        Step::Forward(node) => {
            let node = &graph.nodes[*node];
            out.extend(node.ins.iter().chain(&node.outs).map(|val| Slot::Value(*val)));
        }
        Step::Backward(_, route) => {
            out.extend(route.reads.iter().map(|val| Slot::Value(*val)));
            out.extend(route.dy.iter().flatten().map(|grad| Slot::Grad(*grad)));
            out.extend(route.dx.iter().flatten().map(|(grad, _)| Slot::Grad(*grad)));
        }
        Step::Add(from, into, _, _) => out.extend([Slot::Grad(*from), Slot::Grad(*into)]),
        Step::Loop(body) => {
            let mut all = BTreeSet::new();
            body.iter().for_each(|step| slots(graph, step, &mut all));
            out.extend(all.into_iter().filter(|slot| !overwritten(graph, body, *slot)));
        }
        Step::Fetch(val) | Step::Await(val) => {
            out.insert(Slot::Value(*val));
        }
        Step::Below | Step::Settle => {}
    }
}

/// True if a loop's operations only write a value again, next to others that are wanted. It then needs no storage for
/// all rows on account of the loop; whoever reads it later holds it until then.
fn overwritten(graph: &Graph, body: &[Step], slot: Slot) -> bool {
    let Slot::Value(val) = slot else { return false };
    !graph.values[val.index()].total
        && body.iter().all(|step| match step {
            Step::Forward(node) => !graph.nodes[*node].ins.contains(&val),
            Step::Backward(_, route) => !route.reads.contains(&val),
            _ => true,
        })
}

/// True if any of the steps reads or writes the slot.
pub(super) fn touches(graph: &Graph, steps: &[Step], slot: Slot) -> bool {
    let mut all = BTreeSet::new();
    steps.iter().for_each(|step| slots(graph, step, &mut all));
    all.contains(&slot)
}

/// Inserts a free after the last use of every slot that is not in `stay`. Slots that only loops touch, and that each
/// such loop writes before reading, live for one tile and are freed inside the loop. `at_hand` has storage before the
/// first step.
pub(super) fn insert_frees(
    graph: &Graph,
    steps: Vec<Step>,
    stay: &BTreeSet<Slot>,
    at_hand: BTreeSet<Slot>,
) -> Vec<Step> {
    let mut outer: BTreeSet<Slot> = stay.union(&at_hand).copied().collect();
    for step in &steps {
        let Step::Loop(body) = step else {
            slots(graph, step, &mut outer);
            continue;
        };
        let mut made = BTreeSet::new();
        for step in body {
            let mut touched = BTreeSet::new();
            slots(graph, step, &mut touched);
            outer.extend(
                touched.iter().copied().filter(|slot| !made.contains(slot) && !makes(graph, step, *slot)),
            );
            made.extend(touched);
        }
    }
    let steps: Vec<Step> = steps
        .into_iter()
        .map(|step| match step {
            Step::Loop(body) => Step::Loop(free_after_last_use(graph, body, &outer)),
            other => other,
        })
        .collect();
    free_after_last_use(graph, steps, stay)
        .into_iter()
        .filter(|step| !matches!(step, Step::Free(slot) if !outer.contains(slot)))
        .collect()
}

/// True if the step writes the slot without reading it.
fn makes(graph: &Graph, step: &Step, slot: Slot) -> bool {
    match (step, slot) {
        (Step::Forward(node), Slot::Value(val)) => graph.nodes[*node].outs.contains(&val),
        (Step::Backward(_, route), Slot::Grad(grad)) => {
            route.dx.iter().flatten().any(|dx| *dx == (grad, false))
        }
        (Step::Add(_, into, false, _), Slot::Grad(grad)) => *into == grad,
        _ => false,
    }
}

fn free_after_last_use(graph: &Graph, steps: Vec<Step>, stay: &BTreeSet<Slot>) -> Vec<Step> {
    let mut last: BTreeMap<Slot, usize> = BTreeMap::new();
    for (index, step) in steps.iter().enumerate() {
        let mut touched = BTreeSet::new();
        slots(graph, step, &mut touched);
        touched.into_iter().for_each(|slot| {
            last.insert(slot, index);
        });
    }
    let mut out = Vec::with_capacity(steps.len() * 2);
    for (index, step) in steps.into_iter().enumerate() {
        out.push(step);
        let ended = last.iter().filter(|(slot, at)| **at == index && !stay.contains(slot));
        out.extend(ended.map(|(slot, _)| Step::Free(*slot)));
    }
    out
}
