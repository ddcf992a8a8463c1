//! The smallest slice of operations that recomputes missing values.

use std::collections::BTreeSet;

use super::step::{Analysis, Slot, Step};
use crate::graph::Val;

/// Nodes of `unit` that must run to compute `targets`, and the values from outside the unit that they read.
pub(super) struct Slice {
    pub nodes: BTreeSet<usize>,
    pub externals: BTreeSet<Val>,
}

pub(super) fn slice(
    analysis: &Analysis<'_>,
    unit: usize,
    targets: &BTreeSet<Val>,
    present: &BTreeSet<Val>,
) -> Slice {
    let mut nodes = BTreeSet::new();
    let mut externals = BTreeSet::new();
    let mut open: Vec<Val> = targets.iter().copied().collect();
    while let Some(val) = open.pop() {
        if present.contains(&val) {
            continue;
        }
        match analysis.graph.values[val.index()].producer {
            Some(node) if analysis.unit_of[node] == unit => {
                if nodes.insert(node) {
                    open.extend(&analysis.graph.nodes[node].ins);
                }
            }
            _ => {
                externals.insert(val);
            }
        }
    }
    Slice { nodes, externals }
}

/// Steps that compute `missing` with storage for all rows, earliest unit first. Adds them to `present`.
///
/// # Panics
/// If the segment's input would have to be recomputed.
pub(super) fn materialise(
    analysis: &Analysis<'_>,
    missing: BTreeSet<Val>,
    present: &mut BTreeSet<Val>,
) -> Vec<Step> {
    let mut open: BTreeSet<Val> = missing.difference(present).copied().collect();
    let mut passes: Vec<(usize, BTreeSet<Val>, BTreeSet<usize>)> = Vec::new();
    while let Some(unit) = open.iter().map(|val| analysis.unit_making(*val)).max() {
        let Some(unit) = unit else { panic!("a segment's input cannot be computed again") };
        let targets: BTreeSet<Val> =
            open.iter().copied().filter(|val| analysis.unit_making(*val) == Some(unit)).collect();
        open.retain(|val| !targets.contains(val));
        let Slice { nodes, externals } = slice(analysis, unit, &targets, present);
        open.extend(externals);
        passes.push((unit, targets, nodes));
    }
    let mut steps = Vec::new();
    for (unit, targets, nodes) in passes.into_iter().rev() {
        if analysis.is_region(unit) {
            steps.extend(targets.iter().map(|val| Step::Alloc(Slot::Value(*val), *val)));
            steps.push(Step::Loop(nodes.into_iter().map(Step::Forward).collect()));
            present.extend(targets);
        } else {
            present.extend(nodes.iter().flat_map(|node| analysis.graph.nodes[*node].outs.iter().copied()));
            steps.extend(nodes.into_iter().map(Step::Forward));
        }
    }
    steps
}
